"""One connection with a server, for threads that wait: it owns its socket, and one thread uses it at a time.

    connection = Connection.open("host:1992", Hello(…), timeout_s=5, clock=OsClock())
    frame = connection.request(Bounds(topic_id), timeout_s=30)     # sends, and receives on the same thread

Pings are answered by whoever receives. A server that is silent for `idle_ms` is gone: who waits asks it before that
(`keep_alive`). Whatever ends a connection is a `ConnectionError`, and the connection is of no use afterwards; what the
server refuses is an error of the tree.

It must not know sessions or topics.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from seawall.api.publishable import HeldValues
from seawall.client.connection.refusals import error_of
from seawall.client.connection.retry import seconds
from seawall.client.publish.values_out import PART_SIZE, StreamedBatch
from seawall.errors import ProtocolError, SeawallError
from seawall.io.interfaces import Clock
from seawall.io.network.waitable_streams import WaitingStream, await_streams, open_stream
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

#: Is told header and beginning of a frame of data that is still arriving: its prefix, and maybe more.
Begun: TypeAlias = Callable[[FrameHeader, memoryview], None]


class Connection:
    """A connection that has been welcomed. Made by `open`."""

    def __init__(self, stream: WaitingStream | TlsStream, address: str, clock: Clock, max_payload: int) -> None:
        self.stream = stream
        self.address = address
        self._clock = clock
        self._decoder = FrameDecoder(max_payload)
        #: What waits for the socket: values first, with the memory that all values of the connection go through.
        self._values: StreamedBatch | None = None
        self._part: Bytes | None = None
        self._outbox: deque[memoryview] = deque()
        self._next_id = 0
        #: Questions whose answers were not taken, and frames that came behind an answer.
        self._unanswered: set[int] = set()
        self._behind: list[Frame] = []
        #: When we heard of the server, spoke to it, and asked whether it lives.
        self._heard_ns = self._spoke_ns = self._asked_ns = clock.monotonic_ns()
        #: When we asked first of all the times that were not answered.
        self._first_asked_ns = 0
        self._welcome: Welcome | None = None
        #: Whether the server will end it: what is under way is still answered.
        self.goodbye: Goodbye | None = None
        disown_on_fork(self)

    @classmethod
    def open(
        cls, address: str, hello: Hello, *, timeout_s: float, clock: Clock, tls: SSLContext | None = None
    ) -> Connection:
        """Connect, say HELLO and await WELCOME; a refusal is an error of the tree."""
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
            from seawall.io.network.tls import ended_unwelcome

            raise ended_unwelcome(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def welcome(self) -> Welcome:
        """What the server granted."""
        assert self._welcome is not None, "only `open` makes one"
        return self._welcome

    @property
    def is_clogged(self) -> bool:
        """Whether something waits for the socket to take it."""
        return self._values is not None or bool(self._outbox)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way in either direction, and nothing lies between its bytes and the socket."""
        has_nothing = not (self.is_clogged or self._behind or self._unanswered or self._decoder.pending_size)
        return has_nothing and self.goodbye is None and type(self.stream) is WaitingStream

    @property
    def has_part(self) -> bool:
        """Whether a frame has begun to arrive and is not complete: it is lost with the connection."""
        return self._decoder.pending_size > 0

    @property
    def is_asked(self) -> bool:
        """Whether an answer is under way that nobody has taken."""
        return bool(self._unanswered)

    def close(self) -> None:
        """Say so and end it; closing twice is fine."""
        if self._welcome is not None and not self.is_clogged:
            # Behind half a frame nobody would understand it, and who is gone does not need it.
            with contextlib.suppress(ConnectionError):
                self.stream.send([encode_control(Goodbye(0, 0))])
        self.stream.close()

    def disown(self) -> None:
        """This is a forked child: close its descriptor, and say nothing to the server, which talks with the parent."""
        self.stream.close()

    # --- sending ---------------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """An id that no other request of this connection has."""
        self._next_id += 1
        return self._next_id

    def send(self, *buffers: Buffer) -> None:
        """Send bytes, as far as the socket takes them now; the rest goes with `flush`."""
        self._outbox.extend(memoryview(buffer) for buffer in buffers)
        self.flush()

    @property
    def takes_values(self) -> bool:
        """Whether values can go out without their block: nothing lies between them and the socket, and the server
        knows batches whose checksum comes behind them."""
        is_known = self.welcome.features & Features.SUM_BEHIND
        return HAS_KNOWN_LAYOUT and type(self.stream) is WaitingStream and bool(is_known)

    def send_values(self, header: bytes, frame_id: int, held: HeldValues) -> None:
        """Send a batch whose block these values make, as `send` does; only where it `takes_values`, and not clogged."""
        assert not self.is_clogged, "what waits would come behind it"
        if self._part is None:
            self._part = np.empty(PART_SIZE, np.uint8)
        self._values = StreamedBatch(header, frame_id, held, self._part)
        self.flush()

    def send_control(self, payload: ControlPayload, request_id: int) -> None:
        """Send a control frame."""
        self.send(encode_control(payload, request_id=request_id, timestamp_ns=self._clock.wall_ns()))

    def flush(self) -> None:
        """Give the socket what waits for it."""
        outbox = self._outbox
        if self._values is not None and not self._flush_values(self._values):
            return
        while outbox:
            taken = self.stream.send(list(outbox))
            if not taken:
                break
            self._spoke_ns = self._clock.monotonic_ns()
            while outbox and taken >= len(outbox[0]):
                taken -= len(outbox.popleft())
            if taken:
                outbox[0] = outbox[0][taken:]
        self.stream.wants_space = bool(outbox)

    def _flush_values(self, values: StreamedBatch) -> bool:
        """Whether the socket has all of the values that waited."""
        assert isinstance(self.stream, WaitingStream), "others do not take values"
        if self.stream.send_by(values.send):
            self._spoke_ns = self._clock.monotonic_ns()
        if values.is_out:
            self._values = None
        self.stream.wants_space = not values.is_out
        return values.is_out

    def exchanged(self, now_ns: int) -> None:
        """Somebody has sent a frame over the socket and received the answer, past this connection."""
        self._spoke_ns = self._heard_ns = now_ns

    def take_up(self, unsent: bytes, received: bytes) -> None:
        """Go on where an exchange past this connection ended: send the rest, and `receive` what came first."""
        self._decoder.feed(received)
        self._behind += self._frames()
        if unsent:
            self.send(unsent)

    # --- receiving -------------------------------------------------------------------------------------------------

    def receive(self) -> list[Frame]:
        """The frames that have come; pings are answered, pongs are for the clock alone.

        It waits for nothing but the rest of a large frame that has begun to arrive, and for that a moment at the most.
        """
        if self._behind:
            behind, self._behind = self._behind, []
            return behind
        count = self._receive_bytes()
        if count is None:
            return []
        if not count:
            raise ConnectionError(f"{self.address} has closed the connection")
        self._heard_ns = self._clock.monotonic_ns()
        self._decoder.received(count)
        return self._frames()

    def _receive_bytes(self) -> int | None:
        decoder, stream = self._decoder, self.stream
        chunks = decoder.arriving
        if chunks is not None and isinstance(stream, WaitingStream):
            return stream.fill_by(chunks.receive)
        buffer = decoder.buffer()
        return stream.fill(buffer) if decoder.awaited_size else stream.receive_into(buffer)

    def _frames(self) -> list[Frame]:
        try:
            frames = self._decoder.frames()
        except ProtocolError as error:
            raise ConnectionError(f"{self.address} does not speak the protocol: {error}") from error
        return [frame for frame in frames if not self._is_answered(frame)]

    def wait(self, timeout_s: float) -> None:
        """Wait until `receive` has something to do, or there is room for what was not sent."""
        if not self._decoder.awaited_size or not self.stream.waits:
            await_streams([self.stream], None, timeout_s)
        self.flush()

    def _is_answered(self, frame: Frame) -> bool:
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
        """Ask a quiet server whether it lives; when to come again. `ConnectionError` if it does not answer.

        It may only be quiet because nobody has listened, so silence counts from a question on.
        """
        welcome = self.welcome
        pause_ns = max(1, welcome.keepalive_ms) * _MS
        is_unanswered = self._asked_ns > self._heard_ns
        if welcome.idle_ms and is_unanswered and now_ns - self._first_asked_ns >= welcome.idle_ms * _MS - pause_ns:
            raise ConnectionError(f"{self.address} has been silent for {(now_ns - self._heard_ns) // _MS} ms")
        if now_ns >= max(min(self._spoke_ns, self._heard_ns), self._asked_ns) + pause_ns:
            self.send(encode_ping(self.new_id()))
            if not is_unanswered:
                self._first_asked_ns = now_ns
            self._asked_ns = now_ns
        return max(min(self._spoke_ns, self._heard_ns), self._asked_ns) + pause_ns

    def request(self, payload: ControlPayload, *, timeout_s: float) -> Frame:
        """Ask something and wait for the answer; raises what the server refuses, `TimeoutError` if it is not there."""
        return self.answer(self.ask(payload), timeout_s=timeout_s)

    def ask(self, payload: ControlPayload) -> int:
        """Ask something; `answer` waits for the answer to what this returns."""
        request_id = self.new_id()
        self.send_control(payload, request_id)
        self._unanswered.add(request_id)
        return request_id

    def answer(self, request_id: int, *, timeout_s: float, begun: Begun | None = None) -> Frame:
        """Wait for the answer to a question; answers are taken in the order of the questions, others are passed over.

        If it is a large one of data, `begun` is called when its beginning is there, once at the most.
        """
        deadline_ns = self._clock.monotonic_ns() + int(timeout_s * 1e9)
        while True:
            frames = self.receive()
            for number, frame in enumerate(frames, 1):
                refusal = refusal_of(frame)
                if frame.header.id == request_id or (refusal is not None and not frame.header.id):
                    self._unanswered.discard(request_id)
                    self._behind = frames[number:]
                    if refusal is not None:
                        raise refusal
                    return frame
            if begun is not None and self._has_begun(request_id, begun):
                begun = None
            left_ns = deadline_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                raise TimeoutError(f"{self.address} did not answer within {timeout_s:.3g} s")
            if not frames:
                self.wait(seconds(left_ns))

    def _has_begun(self, request_id: int, begun: Begun) -> bool:
        """Whether the beginning of an answer is there, which is told then."""
        beginning = self._decoder.beginning()
        if beginning is None or beginning[0].id != request_id or len(beginning[1]) < FETCH_DATA_HEADER_SIZE:
            return False
        begun(*beginning)
        return True


def refusal_of(frame: Frame) -> SeawallError | None:
    """The error that a frame tells of, if it is one."""
    if frame.header.kind == Kind.CONTROL and frame.header.command == Command.ERROR:
        return error_of(parse_error(frame.payload))
    return None
