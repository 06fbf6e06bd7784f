"""Questions to a server that wait for their answer, for threads: a connection each, which is kept for the next one.

A question that is lost with its connection is asked again, after a pause that grows, until the patience of the target
is over; one that must not happen twice is not, once it was sent (`OutcomeUnknownError`). A server that refuses for now
is asked again too, but not one that says it is full: only somebody who makes room changes that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from seawall.client.connection.connection import Connection
from seawall.client.connection.retry import Backoff, seconds
from seawall.client.connection.targets import Target
from seawall.client.read.answer_size import AnswerSize
from seawall.errors import FullError, OutcomeUnknownError, RetryableError, SeawallError, WrongStateError
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

#: Connections that are kept while nobody asks anything.
IDLE_CONNECTIONS_MAX: Final = 4

#: What a connection for questions offers: everything that is read or published over one.
ASKING_FEATURES: Final = int(
    Features.LZ4
    | Features.ZSTD
    | Features.PUSH
    | Features.READ_BY_POSITION
    | Features.LONG_POLL
    | Features.STORED_BLOCKS
    | Features.IDEMPOTENCY_KEYS
)

_Result = TypeVar("_Result")


def asking_hello(target: Target) -> Hello:
    """What a connection without a session says first."""
    return Hello(max_payload=PAYLOAD_SIZE_MIN, features=ASKING_FEATURES, token=target.token, name=target.name)


class Requests:
    """Connections for questions. Threads may share it."""

    def __init__(self, target: Target, clock: Clock | None = None) -> None:
        self.target = target
        self.clock = clock or OsClock()
        self.answer_size = AnswerSize()
        self._idle: list[Connection] = []
        #: Those with a question under way that nobody waits for right now.
        self._asked: set[Connection] = set()
        self._lock = threading.Lock()
        self._turn = 0
        self._is_closed = False
        disown_on_fork(self)

    def disown(self) -> None:
        """This is a forked child: the connections are the parent's, and threads that held the lock are not here."""
        self._lock = threading.Lock()
        self._idle.clear()
        self._asked.clear()

    def check_open(self) -> None:
        """Raise `WrongStateError` once it is closed."""
        if self._is_closed:
            raise WrongStateError("this log is closed")

    def ask(self, payload: ControlPayload, *, wait_s: float = 0.0, is_repeatable: bool = True) -> Frame:
        """The answer to a question; raises what the server refuses. `wait_s` is what the server may take by itself."""
        timeout_s = self.target.timeout_s + wait_s
        return self.use(lambda connection: connection.request(payload, timeout_s=timeout_s), is_repeatable)

    def fetch(self, fetch: Fetch, wait_s: float) -> Frame:
        """The answer to a read, for which no more is asked than the link allows."""

        def ask(connection: Connection) -> Frame:
            allowed = replace(fetch, max_bytes=self.answer_size.at_most(fetch.max_bytes))
            with self.sizing(allowed.max_bytes):
                frame = connection.request(allowed, timeout_s=self.target.timeout_s + wait_s)
            self.answer_size.arrived(frame.header.payload_length)
            return frame

        return self.use(ask)

    @contextmanager
    def sizing(self, asked: int) -> Iterator[None]:
        """Around the wait for an answer of up to so many bytes: ask for less after it is lost."""
        try:
            yield
        except (ConnectionError, TimeoutError):
            self.answer_size.lost(asked)
            raise

    def find_server(self) -> None:
        """See that there is a server which lets us in; raises what is in the way."""
        self.use(lambda _: None)

    def use(
        self, work: Callable[[Connection], _Result], is_repeatable: bool = True, first: Connection | None = None
    ) -> _Result:
        """Do something with a connection, and again with another one if it is lost.

        `first` is a connection that a question was left under way on, which is used before all others. Who leaves one
        under way says so when it is not wanted any more (`let_go`).
        """
        deadline_ns = self.clock.monotonic_ns() + int(self.target.timeout_s * 1e9)
        backoff = Backoff()
        while True:
            connection = None
            try:
                connection = self._take(deadline_ns) if first is None else self._take_back(first)
                result = work(connection)
            except FullError:
                self._end(connection, keep=True)
                raise
            except (ConnectionError, RetryableError) as error:
                is_refused = isinstance(error, RetryableError)
                self._end(connection, keep=is_refused)
                if connection is not None and connection is first:
                    # It was left alone for a while: that it is gone says nothing.
                    first = None
                    continue
                if connection is not None and not is_repeatable and not is_refused:
                    raise OutcomeUnknownError(f"the connection was lost before the answer came: {error}") from error
                pause_ns = backoff.pause_ns()
                if self.clock.monotonic_ns() + pause_ns >= deadline_ns:
                    if is_refused:
                        raise
                    raise RetryableError(f"no answer of {self.target}: {error}") from error
                await_streams([], None, seconds(pause_ns))
            except TimeoutError as error:
                self._end(connection, keep=False)
                if is_repeatable:
                    raise RetryableError(str(error)) from error
                raise OutcomeUnknownError(str(error)) from error
            except SeawallError:
                self._end(connection, keep=True)
                raise
            except BaseException:
                self._end(connection, keep=False)
                raise
            else:
                self._end(connection, keep=True)
                return result

    def open_connection(self, deadline_ns: int) -> Connection:
        """A connection of its own, with any of the servers."""
        addresses = self.target.addresses
        failure: Exception | None = None
        for _ in addresses:
            address = addresses[self._turn % len(addresses)]
            left_s = seconds(deadline_ns - self.clock.monotonic_ns())
            timeout_s = max(0.001, min(self.target.connect_timeout_s, left_s))
            try:
                return Connection.open(
                    address, asking_hello(self.target), timeout_s=timeout_s, clock=self.clock, tls=self.target.tls
                )
            except ConnectionError as error:
                self._turn += 1
                failure = error
        assert failure is not None, "a target has an address"
        raise failure

    def close(self) -> None:
        """End all connections; closing twice is fine."""
        with self._lock:
            self._is_closed = True
            ended, self._idle = [*self._idle, *self._asked], []
            self._asked.clear()
        for connection in ended:
            connection.close()

    def _take(self, deadline_ns: int) -> Connection:
        while True:
            with self._lock:
                self.check_open()
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.open_connection(deadline_ns)
            try:
                # What came meanwhile: pings, which are answered, and the end.
                connection.receive()
            except ConnectionError:
                connection.close()
                continue
            if connection.goodbye is None:
                return connection
            connection.close()

    def let_go(self, connection: Connection) -> None:
        """End a connection on which a question was left under way."""
        with self._lock:
            self._asked.discard(connection)
        connection.close()

    def _take_back(self, connection: Connection) -> Connection:
        with self._lock:
            self.check_open()
            self._asked.discard(connection)
        return connection

    def _end(self, connection: Connection | None, *, keep: bool) -> None:
        if connection is None:
            return
        with self._lock:
            if keep and not self._is_closed and connection.is_asked:
                self._asked.add(connection)
                return
            if keep and not self._is_closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()
