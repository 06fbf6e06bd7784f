"""Requests to a server on an event loop, over one shared connection that is reopened when it is lost.

The retry rules are those of `requests`: a request whose connection is lost is sent again if it is repeatable.

The number of requests in flight is limited to what a server accepts on one connection; further requests wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

from seawall.client.connection.aio_connection import AsyncConnection, PendingRequest
from seawall.client.connection.attempts import RequestAttempts
from seawall.client.connection.requests import request_hello
from seawall.client.connection.retry import seconds
from seawall.client.connection.targets import Target
from seawall.client.read.response_size import ResponseSize
from seawall.errors import FullError, RetryableError, WrongStateError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import OwnProcess
from seawall.limits import REQUESTS_MAX
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.frames import ControlPayload
from seawall.wire.lwp2.reading import Fetch

_Result = TypeVar("_Result")

#: Concurrent requests. Below the server's limit, because the server also counts requests that we have forgotten.
_IN_FLIGHT_MAX: Final = REQUESTS_MAX - 64


class AsyncRequests:
    """A shared connection for requests. Belongs to the loop it was created on."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.response_size = ResponseSize()
        self._connection: AsyncConnection | None = None
        self._connecting = asyncio.Lock()
        self._slots = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._next_address = 0
        self._is_closed = False
        self._clock = OsClock()
        self._process = OwnProcess("log")

    def check_open(self) -> None:
        """Raise `WrongStateError` if the log is closed, or in a forked child."""
        self._process.check()
        if self._is_closed:
            raise WrongStateError("this log is closed")

    async def request(self, payload: ControlPayload, *, wait_s: float = 0.0, is_repeatable: bool = True) -> Frame:
        """The response to a request; raises the server's refusal. The server may take `wait_s` beyond the timeout."""
        timeout_s = self.target.timeout_s + wait_s
        return await self.with_connection(
            lambda connection: connection.request(payload, timeout_s=timeout_s), is_repeatable
        )

    async def fetch(self, fetch: Fetch, wait_s: float) -> Frame:
        """The response to a fetch, which asks for no more bytes than the link has sustained (`ResponseSize`)."""

        async def fetch_sized(connection: AsyncConnection) -> Frame:
            allowed = replace(fetch, max_bytes=self.response_size.at_most(fetch.max_bytes))
            return await self.wait_response(
                connection, connection.send_request(allowed), allowed, self.target.timeout_s + wait_s
            )

        return await self.with_connection(fetch_sized)

    async def wait_response(
        self, connection: AsyncConnection, request: PendingRequest, fetch: Fetch, timeout_s: float
    ) -> Frame:
        """Wait for the response to a fetch; later fetches ask for less if it is lost."""
        try:
            frame = await connection.wait_response(request, timeout_s=timeout_s)
        except (ConnectionError, TimeoutError):
            self.response_size.lost(fetch.max_bytes)
            raise
        self.response_size.arrived(frame.header.payload_length)
        return frame

    async def check_server(self) -> None:
        """Connect to check that a server accepts this client; raises the error that prevents it."""
        await self.with_connection(_nothing)

    async def with_connection(
        self, work: Callable[[AsyncConnection], Awaitable[_Result]], is_repeatable: bool = True
    ) -> _Result:
        """Run `work` with the connection, and again with a new one if it is lost."""
        self.check_open()
        async with self._slots:
            return await self._with_connection(work, is_repeatable)

    async def _with_connection(
        self, work: Callable[[AsyncConnection], Awaitable[_Result]], is_repeatable: bool
    ) -> _Result:
        attempts = RequestAttempts(self.target, self._clock.monotonic_ns(), is_repeatable=is_repeatable)
        while True:
            connection = None
            try:
                connection = await self._connected()
                return await work(connection)
            except FullError:
                raise
            except (ConnectionError, RetryableError) as error:
                now_ns = self._clock.monotonic_ns()
                pause_ns = attempts.pause_ns(error, now_ns, was_sent=connection is not None)
                await asyncio.sleep(seconds(pause_ns))
            except TimeoutError as error:
                raise attempts.timed_out(error) from error

    async def open_connection(self) -> AsyncConnection:
        """Open a new connection to the first address that answers."""
        self.check_open()
        addresses = self.target.addresses
        failure: Exception | None = None
        for _ in addresses:
            address = addresses[self._next_address % len(addresses)]
            try:
                return await AsyncConnection.open(
                    address, request_hello(self.target), timeout_s=self.target.connect_timeout_s, tls=self.target.tls
                )
            except ConnectionError as error:
                self._next_address += 1
                failure = error
        assert failure is not None, "a target has at least one address"
        raise failure

    def close(self) -> None:
        """Close the connection; idempotent."""
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
    """Connecting is the whole check."""
