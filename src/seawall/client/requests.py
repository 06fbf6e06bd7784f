"""Questions to a server that wait for their answer, for threads: a connection each, which is kept for the next one.

A question that is lost with its connection is asked again, after a pause that grows, until the patience of the target
is over; one that must not happen twice is not, once it was sent (`OutcomeUnknownError`). A server that refuses for now
is asked again too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from seawall.client.commands import READ_SIZE
from seawall.client.connection import Connection
from seawall.client.reading import TopicReader
from seawall.client.retry import Backoff, seconds
from seawall.client.targets import Target
from seawall.core.types import Seq
from seawall.errors import OutcomeUnknownError, RetryableError, SeawallError, WrongStateError
from seawall.io.clocks import OsClock
from seawall.io.interfaces import Clock
from seawall.io.waiting import await_streams
from seawall.limits import PAYLOAD_SIZE_MIN
from seawall.wire.codes import Features
from seawall.wire.decoder import Frame
from seawall.wire.lwp2 import ControlPayload
from seawall.wire.lwp2_reading import Fetch
from seawall.wire.lwp2_session import Hello
from seawall.wire.received import ReceivedBatch

#: Connections that are kept while nobody asks anything.
IDLE_CONNECTIONS_MAX: Final = 4

READING_FEATURES: Final = int(
    Features.LZ4
    | Features.ZSTD
    | Features.PUSH
    | Features.READ_BY_POSITION
    | Features.LONG_POLL
    | Features.STORED_BLOCKS
)

_Result = TypeVar("_Result")


def asking_hello(target: Target) -> Hello:
    """What a connection without a session says first."""
    return Hello(max_payload=PAYLOAD_SIZE_MIN, features=READING_FEATURES, token=target.token, name=target.name)


class Requests:
    """Connections for questions. Threads may share it."""

    def __init__(self, target: Target, clock: Clock | None = None) -> None:
        self.target = target
        self.clock = clock or OsClock()
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._turn = 0
        self._is_closed = False

    def ask(self, payload: ControlPayload, *, wait_s: float = 0.0, is_repeatable: bool = True) -> Frame:
        """The answer to a question; raises what the server refuses. `wait_s` is what the server may take by itself."""
        timeout_s = self.target.timeout_s + wait_s
        return self.use(lambda connection: connection.request(payload, timeout_s=timeout_s), is_repeatable)

    def find_server(self) -> None:
        """See that there is a server which lets us in; raises what is in the way."""
        self.use(lambda _: None)

    def use(self, work: Callable[[Connection], _Result], is_repeatable: bool = True) -> _Result:
        """Do something with a connection, and again with another one if it is lost."""
        deadline_ns = self.clock.monotonic_ns() + int(self.target.timeout_s * 1e9)
        backoff = Backoff()
        while True:
            connection = None
            try:
                connection = self._take(deadline_ns)
                result = work(connection)
            except (ConnectionError, RetryableError) as error:
                is_refused = isinstance(error, RetryableError)
                self._end(connection, keep=is_refused)
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
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self, deadline_ns: int) -> Connection:
        while True:
            with self._lock:
                if self._is_closed:
                    raise WrongStateError("this log is closed")
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

    def _end(self, connection: Connection | None, *, keep: bool) -> None:
        if connection is None:
            return
        with self._lock:
            if keep and not self._is_closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()


def read_all(requests: Requests, reader: TopicReader, end: Seq) -> list[ReceivedBatch]:
    """All batches up to a seq: the next answer is on its way while one is verified."""
    found: list[ReceivedBatch] = []
    timeout_s = requests.target.timeout_s

    def read(connection: Connection) -> None:
        # Asked again on another connection it goes on where the reader is.
        ahead: tuple[Fetch, int] | None = None
        while reader.next_seq < end and not reader.is_at_end:
            fetch = reader.fetch(max_bytes=READ_SIZE)
            if ahead is None or ahead[0] != fetch:
                if ahead is not None:
                    connection.answer(ahead[1], timeout_s=timeout_s)
                ahead = fetch, _ask(connection, fetch)
            frame = connection.answer(ahead[1], timeout_s=timeout_s)
            behind = reader.fetch_behind(frame, READ_SIZE)
            ahead = None if behind is None else (behind, _ask(connection, behind))
            found.extend(item for item in reader.take(frame) if isinstance(item, ReceivedBatch))
        if ahead is not None:
            connection.answer(ahead[1], timeout_s=timeout_s)

    requests.use(read)
    return found


def _ask(connection: Connection, fetch: Fetch) -> int:
    request_id = connection.new_id()
    connection.send_control(fetch, request_id)
    return request_id
