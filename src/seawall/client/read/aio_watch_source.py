"""The source of a watch of a log on a server, for asyncio: a connection of its own, to which the server pushes.

After a lost connection the watch continues where it was. Steps that were received stay with the source until they are
returned, so a cancelled call loses none; a new connection is opened only when all were.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from seawall.api.watch_items import Step, WatchProgress, has_item
from seawall.client.connection.aio_connection import AsyncConnection
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.connection.retry import Backoff, seconds
from seawall.client.read.push_subscription import FRAME_SIZE
from seawall.client.read.pushed_watch import PushedWatch
from seawall.errors import RetryableError
from seawall.io.process.own_process import OwnProcess
from seawall.wire.format.decoder import Frame


class AsyncRemoteWatchSource:
    """Receives the steps of one watch."""

    def __init__(self, requests: AsyncRequests) -> None:
        self._requests = requests
        self._process = OwnProcess("watch")
        self._backoff = Backoff()
        self._connection: AsyncConnection | None = None
        self._pushed: PushedWatch | None = None
        #: Frames that have arrived, and the end of the connection; no more than the credit and its events.
        self._frames: deque[Frame | Exception] = deque()
        self._arrived = asyncio.Event()
        self._steps: list[Step] = []
        self._frame_size = FRAME_SIZE
        self._is_careful = False
        self._has_begun = False
        #: Since when no server was reached; None while one is.
        self._unreachable_since: float | None = None

    async def receive(self, progress: WatchProgress, timeout_s: float | None) -> list[Step]:
        """The next steps; waits up to `timeout_s` until they include an item, None without limit.

        The first call waits until the watch has begun.
        """
        self._process.check()
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not self._is_enough:
            if self._connection is None and self._steps:
                # The watch has to move past them before it continues elsewhere.
                break
            left_s = None if deadline is None or not self._has_begun else max(0.0, deadline - loop.time())
            await self._try_receive(progress, left_s)
            if left_s is not None and left_s <= 0:
                break
        steps, self._steps = self._steps, []
        return steps

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._drop()

    @property
    def _is_enough(self) -> bool:
        return self._has_begun and has_item(self._steps)

    async def _try_receive(self, progress: WatchProgress, left_s: float | None) -> None:
        """Take what has arrived, or wait for it; connect first if there is no connection."""
        try:
            connection = await self._connected(progress)
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            self._take_arrived(connection)
        except (ConnectionError, RetryableError) as error:
            await self._pause_after(error, left_s)
        except Exception:
            self._drop()
            raise

    async def _connected(self, progress: WatchProgress) -> AsyncConnection:
        """The connection of the watch; a new one starts it where it is."""
        if self._connection is None:
            connection = await self._requests.open_connection()
            self._frame_size = self._requests.response_size.at_most(FRAME_SIZE)
            self._connection = connection
            self._frames.clear()
            self._arrived.clear()
            connection.on_frame = lambda _, frame: self._add(frame)
            connection.on_lost = lambda _, error: self._add(error)
            self._pushed = PushedWatch(connection.new_id(), self._frame_size, is_careful=self._is_careful)
            connection.send(self._pushed.request(progress))
            self._unreachable_since = None
        return self._connection

    def _add(self, arrived: Frame | Exception) -> None:
        self._frames.append(arrived)
        self._arrived.set()

    def _take_arrived(self, connection: AsyncConnection) -> None:
        pushed = self._pushed
        assert pushed is not None, "set with the connection"
        while self._frames:
            frame = self._frames.popleft()
            if isinstance(frame, Exception):
                raise frame
            self._steps += pushed.take(frame)
            self._has_begun |= pushed.has_begun
            self._backoff.succeeded()
            self._requests.response_size.arrived(frame.header.payload_length)
            credit = pushed.credit()
            if credit is not None:
                connection.send(credit)
            if pushed.is_over:
                self._is_careful = True
                self._drop()
                return
        self._arrived.clear()

    async def _pause_after(self, error: Exception, left_s: float | None) -> None:
        """Drop a lost connection and wait before the next attempt; raises if no server was reached for too long."""
        connection, now = self._connection, asyncio.get_running_loop().time()
        if connection is not None and connection.has_partial_frame:
            self._requests.response_size.lost(self._frame_size)
        self._drop()
        if self._unreachable_since is None:
            self._unreachable_since = now
        pause_s = seconds(self._backoff.pause_ns())
        if now + pause_s - self._unreachable_since >= self._requests.target.timeout_s:
            raise RetryableError(f"no server at {self._requests.target}: {error}") from error
        await asyncio.sleep(pause_s if left_s is None else min(pause_s, left_s))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.on_frame = connection.on_lost = None
            connection.close()
        self._frames.clear()
