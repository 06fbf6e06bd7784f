"""One connection to a server on an event loop, with many concurrent requests and frames that the server pushes.

    connection = await AsyncConnection.open("host:1992", Hello(…), timeout_s=5)
    frame = await connection.request(Bounds(topic_id), timeout_s=30)

Responses are matched by request id; every other frame goes to `on_frame`. The connection answers pings, and drops a
server that is silent for too long. However it ends, pending requests fail with `ConnectionError` and `on_lost` is
called once.

A connection belongs to the loop it was opened on. This module must not know about sessions or topics.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from seawall.client.connection.connection import OnResponseStart, refusal_of
from seawall.errors import ProtocolError
from seawall.io.network.sockets import parse_address
from seawall.io.network.tls import closed_before_welcome, handshake_error
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import disown_on_fork, release_inherited
from seawall.limits import FETCH_DATA_HEADER_SIZE
from seawall.wire.format.codes import Command, KeepaliveCommand, Kind
from seawall.wire.format.decoder import Frame, FrameDecoder
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import FrameHeader
from seawall.wire.lwp2.frames import ControlPayload, encode_control, encode_ping, encode_pong
from seawall.wire.lwp2.session import Goodbye, Hello, Welcome, parse_goodbye, parse_welcome

_MS: Final = 1e-3


class PendingRequest:
    """A request whose response is in flight. Created by `AsyncConnection.send_request`."""

    __slots__ = ("_on_start", "_start", "request_id", "response")

    def __init__(self, request_id: int, response: asyncio.Future[Frame]) -> None:
        self.request_id = request_id
        self.response = response
        self._on_start: OnResponseStart | None = None
        self._start: tuple[FrameHeader, bytes] | None = None

    def on_start(self, on_start: OnResponseStart) -> None:
        """Call `on_start` once, as soon as the first bytes of a data response are there."""
        if self._start is not None:
            header, start = self._start
            on_start(header, memoryview(start))
        else:
            self._on_start = on_start

    def started(self, header: FrameHeader, start: memoryview) -> None:
        """Note that the first bytes of the response are there."""
        if self._start is None:
            # Copied for a later `on_start`: the decoder's buffer moves.
            self._start = header, bytes(start[:FETCH_DATA_HEADER_SIZE])
            on_start, self._on_start = self._on_start, None
            if on_start is not None:
                on_start(header, start)


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection whose handshake is complete. Created by `open`."""

    def __init__(self, address: str, max_payload: int) -> None:
        self.address = address
        self._decoder = FrameDecoder(max_payload)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, PendingRequest] = {}
        self._next_id = 0
        self._received_at = self._sent_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._welcome: Welcome | None = None
        self._failure: ConnectionError | None = None
        #: True while the transport's write buffer is above its high-water mark.
        self.is_write_blocked = False
        self.goodbye: Goodbye | None = None
        #: Called for frames that answer no request, for new space in the write buffer, and for the end.
        self.on_frame: Callable[[AsyncConnection, Frame], None] | None = None
        self.on_space: Callable[[], None] | None = None
        self.on_lost: Callable[[AsyncConnection, Exception], None] | None = None
        disown_on_fork(self)

    @classmethod
    async def open(
        cls, address: str, hello: Hello, *, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> AsyncConnection:
        """Connect, send HELLO and wait for WELCOME; raises the server's refusal as an error of `seawall.errors`."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        connection = None
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(address, hello.max_payload),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=None if tls is None else host,
                )
                frame = await connection.request(hello, timeout_s=timeout_s)
        except TimeoutError as error:
            if connection is not None:
                connection.close()
            raise ConnectionError(f"{address} did not welcome us within {timeout_s:.3g} s") from error
        except BaseException as error:
            if connection is not None:
                connection.close()
            # With TLS 1.3 a server verifies the client's certificate after the client's handshake is complete.
            refused = error.__cause__ if isinstance(error, ConnectionError) else error
            if isinstance(refused, ssl.SSLError):
                raise handshake_error(address, refused) from error
            if tls is not None and connection is not None and isinstance(error, ConnectionError):
                raise closed_before_welcome(error) from error
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                raise ConnectionError(error.errno, f"no connection with {address}: {error}") from error
            raise
        if frame.header.command != Command.WELCOME:
            connection.close()
            raise ConnectionError(f"{address} answered HELLO by command {frame.header.command:#x}")
        connection._welcome = parse_welcome(frame.payload)
        connection._keep_alive()
        return connection

    @property
    def welcome(self) -> Welcome:
        """The WELCOME of the server: what it granted."""
        assert self._welcome is not None, "created by `open` only"
        return self._welcome

    @property
    def has_partial_frame(self) -> bool:
        """True if a frame has arrived in part; it is lost with the connection."""
        return self._decoder.pending_size > 0

    @property
    def is_open(self) -> bool:
        """True while requests can be sent."""
        return self._failure is None and self.goodbye is None

    def close(self) -> None:
        """Send GOODBYE and close; idempotent."""
        transport = self._transport
        is_idle = transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()
        if self._failure is None and self._welcome is not None and transport is not None and is_idle:
            # Only if the write buffer is empty: otherwise the GOODBYE could wait forever.
            transport.write(encode_control(Goodbye(0, 0)))
            if transport.get_extra_info("sslcontext") is None:
                # A TLS transport would wait for the peer's close_notify, and the loop may end before that.
                transport.close()
        self._finish(ConnectionError("the connection was closed"))

    def disown(self) -> None:
        """Run in a forked child: leave the socket, the transport and the loop to the parent."""
        self._failure = self._failure or ConnectionError(f"the connection with {self.address} is the parent process's")
        if self._transport is not None and not self._transport.is_closing():
            release_inherited(self._transport.get_extra_info("socket").fileno())

    def new_id(self) -> int:
        """A request id that is unique on this connection."""
        self._next_id += 1
        return self._next_id

    def send(self, *buffers: Buffer) -> None:
        """Send bytes; the transport buffers what the socket does not accept now."""
        if self._transport is None or self._failure is not None:
            raise self._failure or ConnectionError(f"no connection with {self.address}")
        self._sent_at = self._loop.time()
        self._transport.writelines(buffers)

    async def request(self, payload: ControlPayload, *, timeout_s: float) -> Frame:
        """Send a request and wait for its response; raises the server's refusal, or `TimeoutError`."""
        return await self.wait_response(self.send_request(payload), timeout_s=timeout_s)

    def send_request(self, payload: ControlPayload) -> PendingRequest:
        """Send a request. `wait_response` waits for its response, `forget` drops it."""
        request = PendingRequest(self.new_id(), self._loop.create_future())
        self.send(encode_control(payload, request_id=request.request_id, timestamp_ns=OsClock().wall_ns()))
        self._pending[request.request_id] = request
        return request

    async def wait_response(self, request: PendingRequest, *, timeout_s: float) -> Frame:
        """Wait for the response to a request; raises the server's refusal, or `TimeoutError`."""
        try:
            async with asyncio.timeout(timeout_s):
                frame = await request.response
        finally:
            self.forget(request)
        refusal = refusal_of(frame)
        if refusal is not None:
            raise refusal
        return frame

    def forget(self, request: PendingRequest) -> None:
        """Ignore the response when it arrives."""
        self._pending.pop(request.request_id, None)
        request.response.cancel()

    # --- callbacks of the event loop -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        # The transport of uvloop has the same methods, but does not inherit from asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """The buffer that receives the next bytes."""
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived in the buffer."""
        self._received_at = self._loop.time()
        self._decoder.received(nbytes)
        try:
            for frame in self._decoder.frames():
                self._handle(frame)
            self._notify_started()
        except (ProtocolError, ConnectionError) as error:
            self._finish(ConnectionError(f"{self.address}: {error}"))

    def eof_received(self) -> bool:
        """The server sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        error = ConnectionError(f"{self.address} has closed the connection{f': {exc}' if exc else ''}")
        error.__cause__ = exc
        self._finish(error)

    def pause_writing(self) -> None:
        """The write buffer is above its high-water mark."""
        self.is_write_blocked = True

    def resume_writing(self) -> None:
        """The write buffer has space again."""
        self.is_write_blocked = False
        if self.on_space is not None:
            self.on_space()

    # --- internal --------------------------------------------------------------------------------------------------

    def _handle(self, frame: Frame) -> None:
        header = frame.header
        if header.kind == Kind.KEEPALIVE:
            if header.command == KeepaliveCommand.PING and self._failure is None:
                self.send(encode_pong(header.id))
        elif header.kind == Kind.CONTROL and header.command == Command.GOODBYE:
            self.goodbye = parse_goodbye(frame.payload)
        else:
            request = self._pending.get(header.id) if header.kind == Kind.CONTROL else None
            if request is not None and not request.response.done():
                request.response.set_result(frame)
                if header.command == Command.FETCH_DATA:
                    request.started(header, frame.payload)
            elif self.on_frame is not None:
                self.on_frame(self, frame)
            elif header.kind == Kind.CONTROL and header.command == Command.ERROR and not header.id:
                self._finish(ConnectionError(f"{self.address}: {refusal_of(frame)}"))

    def _notify_started(self) -> None:
        """Notify the pending request whose data response has started to arrive."""
        partial = self._decoder.beginning()
        if partial is None or len(partial[1]) < FETCH_DATA_HEADER_SIZE:
            return
        header, start = partial
        request = self._pending.get(header.id)
        if request is not None and header.kind == Kind.CONTROL and header.command == Command.FETCH_DATA:
            request.started(header, start)

    def _keep_alive(self) -> None:
        """Ping a quiet server, and end the connection to a silent one."""
        welcome = self.welcome
        now = self._loop.time()
        if self._failure is not None:
            return
        if welcome.idle_ms and now - self._received_at >= welcome.idle_ms * _MS:
            self._finish(ConnectionError(f"{self.address} has been silent for {now - self._received_at:.1f} s"))
            return
        pause = max(1, welcome.keepalive_ms) * _MS
        if now - min(self._received_at, self._sent_at) >= pause / 2:
            self.send(encode_ping(self.new_id()))
        self._timer = self._loop.call_later(pause / 2, self._keep_alive)

    def _finish(self, error: ConnectionError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        for request in self._pending.values():
            if not request.response.done():
                request.response.set_exception(error)
                # Marks the error as retrieved: asyncio would log a future that no task awaits.
                request.response.exception()
        if self.on_lost is not None:
            self.on_lost(self, error)
