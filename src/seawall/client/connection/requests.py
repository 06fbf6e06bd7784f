"""Blocking requests to a server over a pool of connections, with retries. Each request has a connection of its own.

A request whose connection is lost is sent again with exponential backoff until the target's timeout; a request that is
not repeatable is not, once it was sent (`OutcomeUnknownError`). A request that the server refuses with a retryable
error is repeated too, except for `FullError`: that does not pass by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from seawall.client.connection.attempts import RequestAttempts
from seawall.client.connection.connection import Connection
from seawall.client.connection.retry import seconds
from seawall.client.connection.targets import Target
from seawall.client.read.response_size import ResponseSize
from seawall.errors import FullError, RetryableError, SeawallError, WrongStateError
from seawall.io.interfaces import Clock
from seawall.io.network.waitable_streams import await_streams
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import disown_on_fork
from seawall.limits import PAYLOAD_SIZE_MIN
from seawall.wire.format.codes import Features
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.frames import ControlPayload
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Hello

#: Idle connections that are kept for the next requests.
IDLE_CONNECTIONS_MAX: Final = 4

#: Features that a connection without a session offers: everything that requests and reads use.
REQUEST_FEATURES: Final = int(
    Features.LZ4
    | Features.ZSTD
    | Features.PUSH
    | Features.READ_BY_POSITION
    | Features.LONG_POLL
    | Features.STORED_BLOCKS
    | Features.IDEMPOTENCY_KEYS
)

_Result = TypeVar("_Result")


def request_hello(target: Target) -> Hello:
    """The HELLO of a connection without a session."""
    return Hello(max_payload=PAYLOAD_SIZE_MIN, features=REQUEST_FEATURES, token=target.token, name=target.name)


class Requests:
    """A pool of connections for requests. Threads may share it."""

    def __init__(self, target: Target, clock: Clock | None = None, *, keepalive_ms: int = 0) -> None:
        """`keepalive_ms` is how long a connection may be idle before the server pings it; 0 is the server's time. The
        server closes a connection whose client does not answer."""
        self.target = target
        self._keepalive_ms = keepalive_ms
        self.clock = clock or OsClock()
        self.response_size = ResponseSize()
        self._idle: list[Connection] = []
        #: Connections with a prefetch in flight that no thread waits for right now.
        self._in_flight: set[Connection] = set()
        #: Connections that threads use right now.
        self._used: set[Connection] = set()
        self._lock = threading.Lock()
        self._next_address = 0
        self._is_closed = False
        disown_on_fork(self)

    def disown(self) -> None:
        """Run in a forked child: drop the parent's connections, and the lock that a thread of the parent may hold."""
        self._lock = threading.Lock()
        self._idle.clear()
        self._in_flight.clear()
        self._used.clear()

    def check_open(self) -> None:
        """Raise `WrongStateError` if the log is closed."""
        if self._is_closed:
            raise WrongStateError("this log is closed")

    def request(self, payload: ControlPayload, *, wait_s: float = 0.0, is_repeatable: bool = True) -> Frame:
        """The response to a request; raises the server's refusal. The server may take `wait_s` beyond the timeout."""
        timeout_s = self.target.timeout_s + wait_s
        return self.with_connection(lambda connection: connection.request(payload, timeout_s=timeout_s), is_repeatable)

    def fetch(self, fetch: Fetch, wait_s: float) -> Frame:
        """The response to a fetch, which asks for no more bytes than the link has sustained (`ResponseSize`)."""

        def fetch_sized(connection: Connection) -> Frame:
            allowed = replace(fetch, max_bytes=self.response_size.at_most(fetch.max_bytes))
            with self.tracking_loss(allowed.max_bytes):
                frame = connection.request(allowed, timeout_s=self.target.timeout_s + wait_s)
            self.response_size.arrived(frame.header.payload_length)
            return frame

        return self.with_connection(fetch_sized)

    @contextmanager
    def tracking_loss(self, size: int) -> Iterator[None]:
        """Wrap the wait for a response of up to `size` bytes: later fetches ask for less if it is lost."""
        try:
            yield
        except (ConnectionError, TimeoutError):
            self.response_size.lost(size)
            raise

    def check_server(self) -> None:
        """Connect to check that a server accepts this client; raises the error that prevents it."""
        self.with_connection(lambda _: None)

    def with_connection(
        self, work: Callable[[Connection], _Result], is_repeatable: bool = True, first: Connection | None = None
    ) -> _Result:
        """Run `work` with a connection, and again with another one if the connection is lost.

        `first` is a connection with a request in flight, to be used before all others. A caller that leaves a request
        in flight calls `discard` when it does not want the response any more.
        """
        attempts = RequestAttempts(self.target, self.clock.monotonic_ns(), is_repeatable=is_repeatable)
        while True:
            connection = None
            try:
                connection = self._take(attempts.deadline_ns) if first is None else self._reclaim(first)
                result = work(connection)
            except FullError:
                self._release(connection, keep=True)
                raise
            except (ConnectionError, RetryableError) as error:
                self._release(connection, keep=isinstance(error, RetryableError))
                if connection is not None and connection is first:
                    # It was idle for a while: its loss does not count as a failed attempt.
                    first = None
                    continue
                now_ns = self.clock.monotonic_ns()
                pause_ns = attempts.pause_ns(error, now_ns, was_sent=connection is not None)
                await_streams([], None, seconds(pause_ns))
            except TimeoutError as error:
                self._release(connection, keep=False)
                raise attempts.timed_out(error) from error
            except SeawallError:
                self._release(connection, keep=True)
                raise
            except BaseException:
                self._release(connection, keep=False)
                raise
            else:
                self._release(connection, keep=True)
                return result

    def open_connection(self, deadline_ns: int) -> Connection:
        """Open a new connection to the first address that answers."""
        addresses = self.target.addresses
        failure: Exception | None = None
        for _ in addresses:
            address = addresses[self._next_address % len(addresses)]
            left_s = seconds(deadline_ns - self.clock.monotonic_ns())
            timeout_s = max(0.001, min(self.target.connect_timeout_s, left_s))
            try:
                hello = replace(request_hello(self.target), keepalive_ms=self._keepalive_ms)
                return Connection.open(address, hello, timeout_s=timeout_s, clock=self.clock, tls=self.target.tls)
            except ConnectionError as error:
                self._next_address += 1
                failure = error
        assert failure is not None, "a target has at least one address"
        raise failure

    def close(self) -> None:
        """Close all connections; idempotent. Threads that wait for a response get `WrongStateError`."""
        with self._lock:
            self._is_closed = True
            ended, self._idle = [*self._idle, *self._in_flight], []
            self._in_flight.clear()
            for connection in self._used:
                connection.stop()
        for connection in ended:
            connection.close()

    def _take(self, deadline_ns: int) -> Connection:
        connection = self._usable(deadline_ns)
        self._use(connection)
        return connection

    def _use(self, connection: Connection) -> None:
        """Note that a thread uses a connection."""
        with self._lock:
            if not self._is_closed:
                self._used.add(connection)
                return
        connection.close()
        self.check_open()

    def _usable(self, deadline_ns: int) -> Connection:
        """A connection that is idle, or a new one."""
        while True:
            with self._lock:
                self.check_open()
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.open_connection(deadline_ns)
            try:
                # Answers pings that arrived meanwhile, and notices a closed connection.
                connection.receive()
            except ConnectionError:
                connection.close()
                continue
            if connection.goodbye is None:
                return connection
            connection.close()

    def discard(self, connection: Connection) -> None:
        """Close a connection that has a request in flight."""
        with self._lock:
            self._in_flight.discard(connection)
        connection.close()

    def _reclaim(self, connection: Connection) -> Connection:
        with self._lock:
            self.check_open()
            self._in_flight.discard(connection)
            self._used.add(connection)
        return connection

    def _release(self, connection: Connection | None, *, keep: bool) -> None:
        if connection is None:
            return
        with self._lock:
            self._used.discard(connection)
            if keep and not self._is_closed and connection.has_pending_request:
                self._in_flight.add(connection)
                return
            if keep and not self._is_closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()
