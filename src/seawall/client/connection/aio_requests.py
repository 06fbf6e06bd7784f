"""Questions to a server on an event loop: one connection for all of them, made again when it is lost.

The rules are those of `requests`: what is lost with its connection is asked again, unless it must not happen twice.

No more questions are under way than a server takes on one connection; more wait for their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

from seawall.client.connection.aio_connection import AsyncConnection, PendingRequest
from seawall.client.connection.requests import asking_hello
from seawall.client.connection.retry import Backoff, seconds
from seawall.client.connection.targets import Target
from seawall.client.read.answer_size import AnswerSize
from seawall.errors import FullError, OutcomeUnknownError, RetryableError, WrongStateError
from seawall.io.process.own_process import OwnProcess
from seawall.limits import REQUESTS_MAX
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.frames import ControlPayload
from seawall.wire.lwp2.reading import Fetch

_Result = TypeVar("_Result")

#: Questions under way at once: fewer than a server takes, which goes on with those that nobody awaits any more.
_UNDER_WAY_MAX: Final = REQUESTS_MAX - 64


class AsyncRequests:
    """A connection for questions. Belongs to the loop it was made on."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.answer_size = AnswerSize()
        self._connection: AsyncConnection | None = None
        self._connecting = asyncio.Lock()
        self._turns = asyncio.Semaphore(_UNDER_WAY_MAX)
        self._turn = 0
        self._is_closed = False
        self._process = OwnProcess("log")

    def check_open(self) -> None:
        """Raise `WrongStateError` once it is closed, and in a forked child."""
        self._process.check()
        if self._is_closed:
            raise WrongStateError("this log is closed")

    async def ask(self, payload: ControlPayload, *, wait_s: float = 0.0, is_repeatable: bool = True) -> Frame:
        """The answer to a question; raises what the server refuses. `wait_s` is what the server may take by itself."""
        timeout_s = self.target.timeout_s + wait_s
        return await self.use(lambda connection: connection.request(payload, timeout_s=timeout_s), is_repeatable)

    async def fetch(self, fetch: Fetch, wait_s: float) -> Frame:
        """The answer to a read, for which no more is asked than the link allows."""

        async def ask(connection: AsyncConnection) -> Frame:
            allowed = replace(fetch, max_bytes=self.answer_size.at_most(fetch.max_bytes))
            return await self.answer(connection, connection.ask(allowed), allowed, self.target.timeout_s + wait_s)

        return await self.use(ask)

    async def answer(self, connection: AsyncConnection, asked: PendingRequest, fetch: Fetch, timeout_s: float) -> Frame:
        """The answer to a read that was asked for; less is asked for after it is lost."""
        try:
            frame = await connection.answer(asked, timeout_s=timeout_s)
        except (ConnectionError, TimeoutError):
            self.answer_size.lost(fetch.max_bytes)
            raise
        self.answer_size.arrived(frame.header.payload_length)
        return frame

    async def find_server(self) -> None:
        """See that there is a server which lets us in; raises what is in the way."""
        await self.use(_nothing)

    async def use(self, work: Callable[[AsyncConnection], Awaitable[_Result]], is_repeatable: bool = True) -> _Result:
        """Do something with the connection, and again with another one if it is lost."""
        self.check_open()
        async with self._turns:
            return await self._use(work, is_repeatable)

    async def _use(self, work: Callable[[AsyncConnection], Awaitable[_Result]], is_repeatable: bool) -> _Result:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.target.timeout_s
        backoff = Backoff()
        while True:
            connection = None
            try:
                connection = await self._connected()
                return await work(connection)
            except FullError:
                raise
            except (ConnectionError, RetryableError) as error:
                is_refused = isinstance(error, RetryableError)
                if connection is not None and not is_repeatable and not is_refused:
                    raise OutcomeUnknownError(f"the connection was lost before the answer came: {error}") from error
                pause_s = seconds(backoff.pause_ns())
                if loop.time() + pause_s >= deadline:
                    if is_refused:
                        raise
                    raise RetryableError(f"no answer of {self.target}: {error}") from error
                await asyncio.sleep(pause_s)
            except TimeoutError as error:
                if is_repeatable:
                    raise RetryableError(f"{self.target} did not answer in time") from error
                raise OutcomeUnknownError(f"{self.target} did not answer in time") from error

    async def open_connection(self) -> AsyncConnection:
        """A connection of its own, with any of the servers."""
        self.check_open()
        addresses = self.target.addresses
        failure: Exception | None = None
        for _ in addresses:
            address = addresses[self._turn % len(addresses)]
            try:
                return await AsyncConnection.open(
                    address, asking_hello(self.target), timeout_s=self.target.connect_timeout_s, tls=self.target.tls
                )
            except ConnectionError as error:
                self._turn += 1
                failure = error
        assert failure is not None, "a target has an address"
        raise failure

    def close(self) -> None:
        """End the connection; closing twice is fine."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> AsyncConnection:
        async with self._connecting:
            self.check_open()
            if self._connection is None or not self._connection.is_open:
                if self._connection is not None:
                    self._connection.close()
                self._connection = await self.open_connection()
            return self._connection


async def _nothing(_connection: AsyncConnection) -> None:
    """Being connected is all that is wanted."""
