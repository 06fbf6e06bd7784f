"""One connection with a server on an event loop: many questions at once, and whatever the server says by itself.

    connection = await AsyncConnection.open("host:1992", Hello(…), timeout_s=5)
    frame = await connection.request(Bounds(topic_id), timeout_s=30)

Answers are told apart by their ids; every other frame goes to `on_frame`. Pings are answered; a server that is silent
for too long is gone. However it ends, whoever waits gets a `ConnectionError` and `on_lost` is called once.

It must not know sessions or topics, and belongs to the loop it was opened on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from seawall.client.connection.connection import Begun, refusal_of
from seawall.errors import ProtocolError
from seawall.io.network.sockets import parse_address
from seawall.io.network.tls import ended_unwelcome, refused_handshake
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
    """A question whose answer is under way; made by `AsyncConnection.ask`."""

    __slots__ = ("_beginning", "_begun", "answer", "request_id")

    def __init__(self, request_id: int, answer: asyncio.Future[Frame]) -> None:
        self.request_id = request_id
        self.answer = answer
        self._begun: Begun | None = None
        self._beginning: tuple[FrameHeader, bytes] | None = None

    def when_begun(self, begun: Begun) -> None:
        """Have `begun` called once, as soon as the beginning of an answer of data is there."""
        if self._beginning is not None:
            header, start = self._beginning
            begun(header, memoryview(start))
        else:
            self._begun = begun

    def has_begun(self, header: FrameHeader, start: memoryview) -> None:
        """The beginning of the answer is there."""
        if self._beginning is None:
            # What begins an answer is kept for whoever asks later: the rest of it moves.
            self._beginning = header, bytes(start[:FETCH_DATA_HEADER_SIZE])
            begun, self._begun = self._begun, None
            if begun is not None:
                begun(header, start)


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection that has been welcomed. Made by `open`."""

    def __init__(self, address: str, max_payload: int) -> None:
        self.address = address
        self._decoder = FrameDecoder(max_payload)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, PendingRequest] = {}
        self._next_id = 0
        self._heard = self._spoke = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._welcome: Welcome | None = None
        self._end: ConnectionError | None = None
        #: Whether the transport has as much as it should hold.
        self.is_clogged = False
        self.goodbye: Goodbye | None = None
        #: Who gets frames that answer no question, who is told of room, and who of the end.
        self.on_frame: Callable[[AsyncConnection, Frame], None] | None = None
        self.on_space: Callable[[], None] | None = None
        self.on_lost: Callable[[AsyncConnection, Exception], None] | None = None
        disown_on_fork(self)

    @classmethod
    async def open(
        cls, address: str, hello: Hello, *, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> AsyncConnection:
        """Connect, say HELLO and await WELCOME; a refusal is an error of the tree."""
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
            # With TLS 1.3 a server judges the certificate of a client when the client's handshake is already over.
            refused = error.__cause__ if isinstance(error, ConnectionError) else error
            if isinstance(refused, ssl.SSLError):
                raise refused_handshake(address, refused) from error
            if tls is not None and connection is not None and isinstance(error, ConnectionError):
                raise ended_unwelcome(error) from error
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                raise ConnectionError(error.errno, f"no connection with {address}: {error}") from error
            raise
        if frame.header.command != Command.WELCOME:
            connection.close()
            raise ConnectionError(f"{address} answered HELLO by command {frame.header.command:#x}")
        connection._welcome = parse_welcome(frame.payload)
        connection._look()
        return connection

    @property
    def welcome(self) -> Welcome:
        """What the server granted."""
        assert self._welcome is not None, "only `open` makes one"
        return self._welcome

    @property
    def has_part(self) -> bool:
        """Whether a frame has begun to arrive and is not complete: it is lost with the connection."""
        return self._decoder.pending_size > 0

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._end is None and self.goodbye is None

    def close(self) -> None:
        """Say so and end it; closing twice is fine."""
        transport = self._transport
        is_idle = transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()
        if self._end is None and self._welcome is not None and transport is not None and is_idle:
            # Behind anything that waits it could wait for ever.
            transport.write(encode_control(Goodbye(0, 0)))
            if transport.get_extra_info("sslcontext") is None:
                # An encrypted one would wait for the peer's farewell, and the loop may end before that.
                transport.close()
        self._finish(ConnectionError("the connection was closed"))

    def disown(self) -> None:
        """This is a forked child: leave socket, transport and loop to the parent."""
        self._end = self._end or ConnectionError(f"the connection with {self.address} is the parent process's")
        if self._transport is not None and not self._transport.is_closing():
            release_inherited(self._transport.get_extra_info("socket").fileno())

    def new_id(self) -> int:
        """An id that no other request of this connection has."""
        self._next_id += 1
        return self._next_id

    def send(self, *buffers: Buffer) -> None:
        """Send bytes; what the socket does not take now waits in the transport."""
        if self._transport is None or self._end is not None:
            raise self._end or ConnectionError(f"no connection with {self.address}")
        self._spoke = self._loop.time()
        self._transport.writelines(buffers)

    async def request(self, payload: ControlPayload, *, timeout_s: float) -> Frame:
        """Ask something and wait for the answer; raises what the server refuses, `TimeoutError` if it is not there."""
        return await self.answer(self.ask(payload), timeout_s=timeout_s)

    def ask(self, payload: ControlPayload) -> PendingRequest:
        """Ask something; `answer` waits for the answer, `forget` does without it."""
        asked = PendingRequest(self.new_id(), self._loop.create_future())
        self.send(encode_control(payload, request_id=asked.request_id, timestamp_ns=OsClock().wall_ns()))
        self._asked[asked.request_id] = asked
        return asked

    async def answer(self, asked: PendingRequest, *, timeout_s: float) -> Frame:
        """The answer to a question; raises what the server refuses, `TimeoutError` if it is not there."""
        try:
            async with asyncio.timeout(timeout_s):
                frame = await asked.answer
        finally:
            self.forget(asked)
        refusal = refusal_of(frame)
        if refusal is not None:
            raise refusal
        return frame

    def forget(self, asked: PendingRequest) -> None:
        """Pass the answer over when it comes."""
        self._asked.pop(asked.request_id, None)
        asked.answer.cancel()

    # --- what the loop calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        # The loop decides about its class: that of uvloop has the methods, and does not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where bytes are received."""
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self._heard = self._loop.time()
        self._decoder.received(nbytes)
        try:
            for frame in self._decoder.frames():
                self._take(frame)
            self._look_ahead()
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
        """The transport holds enough."""
        self.is_clogged = True

    def resume_writing(self) -> None:
        """The transport has room again."""
        self.is_clogged = False
        if self.on_space is not None:
            self.on_space()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        header = frame.header
        if header.kind == Kind.KEEPALIVE:
            if header.command == KeepaliveCommand.PING and self._end is None:
                self.send(encode_pong(header.id))
        elif header.kind == Kind.CONTROL and header.command == Command.GOODBYE:
            self.goodbye = parse_goodbye(frame.payload)
        else:
            asked = self._asked.get(header.id) if header.kind == Kind.CONTROL else None
            if asked is not None and not asked.answer.done():
                asked.answer.set_result(frame)
                if header.command == Command.FETCH_DATA:
                    asked.has_begun(header, frame.payload)
            elif self.on_frame is not None:
                self.on_frame(self, frame)
            elif header.kind == Kind.CONTROL and header.command == Command.ERROR and not header.id:
                self._finish(ConnectionError(f"{self.address}: {refusal_of(frame)}"))

    def _look_ahead(self) -> None:
        """Tell who waits for an answer of data that it has begun."""
        beginning = self._decoder.beginning()
        if beginning is None or len(beginning[1]) < FETCH_DATA_HEADER_SIZE:
            return
        header, start = beginning
        asked = self._asked.get(header.id)
        if asked is not None and header.kind == Kind.CONTROL and header.command == Command.FETCH_DATA:
            asked.has_begun(header, start)

    def _look(self) -> None:
        """Ping a quiet server, and give a silent one up."""
        welcome = self.welcome
        now = self._loop.time()
        if self._end is not None:
            return
        if welcome.idle_ms and now - self._heard >= welcome.idle_ms * _MS:
            self._finish(ConnectionError(f"{self.address} has been silent for {now - self._heard:.1f} s"))
            return
        pause = max(1, welcome.keepalive_ms) * _MS
        if now - min(self._heard, self._spoke) >= pause / 2:
            self.send(encode_ping(self.new_id()))
        self._timer = self._loop.call_later(pause / 2, self._look)

    def _finish(self, error: ConnectionError) -> None:
        if self._end is not None:
            return
        self._end = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(error)
                # Nobody may be waiting for it: that is no defect to be told of.
                asked.answer.exception()
        if self.on_lost is not None:
            self.on_lost(self, error)
