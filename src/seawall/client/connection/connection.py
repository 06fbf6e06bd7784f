"""One blocking connection to a server. It owns its socket; one thread uses it at a time.

    connection = Connection.open("host:1992", Hello(…), timeout_s=5, clock=OsClock())
    frame = connection.request(Bounds(topic_id), timeout_s=30)     # sends, and receives on the same thread

The receiving thread answers pings. A server that is silent for `idle_ms` counts as gone; a thread that waits pings it
before that (`keep_alive`). Every cause that ends a connection raises `ConnectionError`, and the connection is unusable
afterwards. A refusal by the server raises the matching error of `seawall.errors`.

This module must not know about sessions or topics.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from seawall.api.publishable import UnencodedBlock
from seawall.client.connection.refusals import error_of
from seawall.client.connection.retry import seconds
from seawall.client.publish.streamed_batch import PART_SIZE, StreamedBatch
from seawall.errors import ProtocolError, SeawallError
from seawall.io.interfaces import Clock
from seawall.io.network.waitable_streams import BlockingStream, await_streams, open_stream
from seawall.io.process.own_process import disown_on_fork
from seawall.kernels.codec.values import HAS_KNOWN_LAYOUT
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import FETCH_DATA_HEADER_SIZE
from seawall.wire.format.codes import Command, Features, KeepaliveCommand, Kind
from seawall.wire.format.decoder import Frame, FrameDecoder
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import FrameHeader
from seawall.wire.lwp2.frames import ControlPayload, encode_control, encode_ping, encode_pong
from seawall.wire.lwp2.session import Goodbye, Hello, Welcome, parse_error, parse_goodbye, parse_welcome

if TYPE_CHECKING:
    from ssl import SSLContext

    from seawall.io.network.tls import TlsStream

_MS: Final = 1_000_000

#: Called with the header and the first bytes (at least the data prefix) of a data frame that is still arriving.
OnResponseStart: TypeAlias = Callable[[FrameHeader, memoryview], None]


class Connection:
    """A connection whose handshake is complete. Created by `open`."""

    def __init__(self, stream: BlockingStream | TlsStream, address: str, clock: Clock, max_payload: int) -> None:
        self.stream = stream
        self.address = address
        self._clock = clock
        self._decoder = FrameDecoder(max_payload)
        #: Unsent data. A batch of streamed values goes before the outbox; all such batches share one part buffer.
        self._streaming: StreamedBatch | None = None
        self._part_buffer: Bytes | None = None
        self._outbox: deque[memoryview] = deque()
        self._next_id = 0
        #: Requests without a consumed response, and frames that arrived after a response.
        self._pending_ids: set[int] = set()
        self._queued_frames: list[Frame] = []
        #: When we last received from the server, sent to it, and pinged it.
        self._received_ns = self._sent_ns = self._pinged_ns = clock.monotonic_ns()
        #: When we sent the first of the pings that are unanswered.
        self._first_ping_ns = 0
        self._welcome: Welcome | None = None
        #: Set once the server announces that it will close. It still answers requests in flight.
        self.goodbye: Goodbye | None = None
        disown_on_fork(self)

    @classmethod
    def open(
        cls, address: str, hello: Hello, *, timeout_s: float, clock: Clock, tls: SSLContext | None = None
    ) -> Connection:
        """Connect, send HELLO and wait for WELCOME; raises the server's refusal as an error of `seawall.errors`."""
        deadline_ns = clock.monotonic_ns() + int(timeout_s * 1e9)
        connection = cls(open_stream(address, timeout_s, tls), address, clock, hello.max_payload)
        try:
            left_s = seconds(deadline_ns - clock.monotonic_ns())
            frame = connection.request(hello, timeout_s=left_s)
            if frame.header.command != Command.WELCOME:
                raise ConnectionError(f"{address} answered HELLO by command {frame.header.command:#x}")
            connection._welcome = parse_welcome(frame.payload)
        except TimeoutError as error:
            connection.close()
            raise ConnectionError(f"{address} did not welcome us within {timeout_s:.3g} s") from error
        except ConnectionError as error:
            connection.close()
            if tls is None:
                raise
            from seawall.io.network.tls import closed_before_welcome

            raise closed_before_welcome(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def welcome(self) -> Welcome:
        """The WELCOME of the server: what it granted."""
        assert self._welcome is not None, "created by `open` only"
        return self._welcome

    @property
    def is_write_blocked(self) -> bool:
        """True while unsent data waits for the socket."""
        return self._streaming is not None or bool(self._outbox)

    @property
    def is_idle(self) -> bool:
        """True if nothing is in flight in either direction and the socket is plain, without TLS."""
        is_busy = self.is_write_blocked or self._queued_frames or self._pending_ids or self._decoder.pending_size
        return not is_busy and self.goodbye is None and type(self.stream) is BlockingStream

    @property
    def has_partial_frame(self) -> bool:
        """True if a frame has arrived in part; it is lost with the connection."""
        return self._decoder.pending_size > 0

    @property
    def has_pending_request(self) -> bool:
        """True if a request is in flight whose response is not consumed."""
        return bool(self._pending_ids)

    def close(self) -> None:
        """Send GOODBYE and close; idempotent."""
        if self._welcome is not None and not self.is_write_blocked:
            # After half a frame the server could not parse it; a server that is gone does not need it.
            with contextlib.suppress(ConnectionError):
                self.stream.send([encode_control(Goodbye(0, 0))])
        self.stream.close()

    def stop(self) -> None:
        """End the wait of the thread that uses the connection, from another one. That thread closes it."""
        self.stream.stop()

    def disown(self) -> None:
        """Run in a forked child: close its descriptor without a GOODBYE, because the connection is the parent's."""
        self.stream.close()

    # --- sending ---------------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """A request id that is unique on this connection."""
        self._next_id += 1
        return self._next_id

    def send(self, *buffers: Buffer) -> None:
        """Send as many bytes as the socket accepts now; `flush` sends the rest."""
        self._outbox.extend(memoryview(buffer) for buffer in buffers)
        self.flush()

    @property
    def can_stream_values(self) -> bool:
        """True if values can be sent without building their block first: the socket is plain, and the server accepts
        batches with a trailing checksum."""
        is_supported = self.welcome.features & Features.TRAILING_CHECKSUM
        return HAS_KNOWN_LAYOUT and type(self.stream) is BlockingStream and bool(is_supported)

    def send_values(self, header: bytes, frame_id: int, held: UnencodedBlock) -> None:
        """Send a batch made of these values, as `send` does. Requires `can_stream_values` and no unsent data."""
        assert not self.is_write_blocked, "unsent data would be overtaken"
        if self._part_buffer is None:
            self._part_buffer = np.empty(PART_SIZE, np.uint8)
        self._streaming = StreamedBatch(header, frame_id, held, self._part_buffer)
        self.flush()

    def send_control(self, payload: ControlPayload, request_id: int) -> None:
        """Send a control frame."""
        self.send(encode_control(payload, request_id=request_id, timestamp_ns=self._clock.wall_ns()))

    def flush(self) -> None:
        """Send unsent data, as much as the socket accepts."""
        outbox = self._outbox
        if self._streaming is not None and not self._flush_values(self._streaming):
            return
        while outbox:
            taken = self.stream.send(list(outbox))
            if not taken:
                break
            self._sent_ns = self._clock.monotonic_ns()
            while outbox and taken >= len(outbox[0]):
                taken -= len(outbox.popleft())
            if taken:
                outbox[0] = outbox[0][taken:]
        self.stream.wants_space = bool(outbox)

    def _flush_values(self, values: StreamedBatch) -> bool:
        """Send streamed values; True once the socket has all of them."""
        assert isinstance(self.stream, BlockingStream), "values are streamed to plain sockets only"
        if self.stream.send_by(values.send):
            self._sent_ns = self._clock.monotonic_ns()
        if values.is_sent:
            self._streaming = None
        self.stream.wants_space = not values.is_sent
        return values.is_sent

    def record_exchange(self, now_ns: int) -> None:
        """Note that the caller sent a frame over the socket and received its response, bypassing this connection."""
        self._sent_ns = self._received_ns = now_ns

    def resume(self, unsent: bytes, received: bytes) -> None:
        """Continue after an exchange that bypassed this connection: send its unsent rest, queue what it received."""
        self._decoder.feed(received)
        self._queued_frames += self._frames()
        if unsent:
            self.send(unsent)

    # --- receiving -------------------------------------------------------------------------------------------------

    def receive(self) -> list[Frame]:
        """The frames that have arrived. Answers pings; pongs only update the time of the last receive.

        Does not block, except for a moment to receive the rest of a large frame that has started to arrive.
        """
        if self._queued_frames:
            queued, self._queued_frames = self._queued_frames, []
            return queued
        count = self._receive_bytes()
        if count is None:
            return []
        if not count:
            raise ConnectionError(f"{self.address} has closed the connection")
        self._received_ns = self._clock.monotonic_ns()
        self._decoder.received(count)
        return self._frames()

    def _receive_bytes(self) -> int | None:
        decoder, stream = self._decoder, self.stream
        chunks = decoder.arriving
        if chunks is not None and isinstance(stream, BlockingStream):
            return stream.fill_by(chunks.receive)
        buffer = decoder.buffer()
        return stream.fill(buffer) if decoder.awaited_size else stream.receive_into(buffer)

    def _frames(self) -> list[Frame]:
        try:
            frames = self._decoder.frames()
        except ProtocolError as error:
            raise ConnectionError(f"{self.address} does not speak the protocol: {error}") from error
        return [frame for frame in frames if not self._is_handled(frame)]

    def wait(self, timeout_s: float) -> None:
        """Wait until the socket is readable, or writable while there is unsent data."""
        if not self._decoder.awaited_size or not self.stream.waits:
            await_streams([self.stream], None, timeout_s)
        self.flush()

    def _is_handled(self, frame: Frame) -> bool:
        """True for keep-alive and GOODBYE frames, which are handled here."""
        header = frame.header
        if header.kind == Kind.KEEPALIVE:
            if header.command == KeepaliveCommand.PING:
                self.send(encode_pong(header.id))
            return True
        if header.kind == Kind.CONTROL and header.command == Command.GOODBYE:
            self.goodbye = parse_goodbye(frame.payload)
            return True
        return False

    def keep_alive(self, now_ns: int) -> int:
        """Ping a quiet server and return when to call this again; `ConnectionError` if it does not answer.

        The silence counts from the first unanswered ping: before that, we may not have read what the server sent.
        """
        welcome = self.welcome
        pause_ns = max(1, welcome.keepalive_ms) * _MS
        is_ping_pending = self._pinged_ns > self._received_ns
        if welcome.idle_ms and is_ping_pending and now_ns - self._first_ping_ns >= welcome.idle_ms * _MS - pause_ns:
            raise ConnectionError(f"{self.address} has been silent for {(now_ns - self._received_ns) // _MS} ms")
        if now_ns >= max(min(self._sent_ns, self._received_ns), self._pinged_ns) + pause_ns:
            self.send(encode_ping(self.new_id()))
            if not is_ping_pending:
                self._first_ping_ns = now_ns
            self._pinged_ns = now_ns
        return max(min(self._sent_ns, self._received_ns), self._pinged_ns) + pause_ns

    def request(self, payload: ControlPayload, *, timeout_s: float) -> Frame:
        """Send a request and wait for its response; raises the server's refusal, or `TimeoutError`."""
        return self.wait_response(self.send_request(payload), timeout_s=timeout_s)

    def send_request(self, payload: ControlPayload) -> int:
        """Send a request and return its id for `wait_response`."""
        request_id = self.new_id()
        self.send_control(payload, request_id)
        self._pending_ids.add(request_id)
        return request_id

    def wait_response(self, request_id: int, *, timeout_s: float, on_start: OnResponseStart | None = None) -> Frame:
        """Wait for the response to a request. Consume responses in the order of the requests: others are skipped.

        Calls `on_start` at most once, when the first bytes of a large data response are there.
        """
        deadline_ns = self._clock.monotonic_ns() + int(timeout_s * 1e9)
        while True:
            frames = self.receive()
            for number, frame in enumerate(frames, 1):
                refusal = refusal_of(frame)
                if frame.header.id == request_id or (refusal is not None and not frame.header.id):
                    self._pending_ids.discard(request_id)
                    self._queued_frames = frames[number:]
                    if refusal is not None:
                        raise refusal
                    return frame
            if on_start is not None and self._notify_start(request_id, on_start):
                on_start = None
            left_ns = deadline_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                raise TimeoutError(f"{self.address} did not answer within {timeout_s:.3g} s")
            if not frames:
                self.wait(seconds(left_ns))

    def _notify_start(self, request_id: int, on_start: OnResponseStart) -> bool:
        """Call `on_start` if the first bytes of the response are there; True if it was called."""
        partial = self._decoder.beginning()
        if partial is None or partial[0].id != request_id or len(partial[1]) < FETCH_DATA_HEADER_SIZE:
            return False
        on_start(*partial)
        return True


def refusal_of(frame: Frame) -> SeawallError | None:
    """The error in an ERROR frame; None for other frames."""
    if frame.header.kind == Kind.CONTROL and frame.header.command == Command.ERROR:
        return error_of(parse_error(frame.payload))
    return None
