"""Reading ahead on an event loop: the rules are those of `ahead`.

One connection carries all questions of a log, so an answer that turns out to be the wrong one is passed over when it
comes, and nothing is let go for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seawall.api.received import Item, ReceivedBatch
from seawall.client.connection.aio_connection import AsyncConnection, PendingRequest
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.read.reading import TopicReader
from seawall.core.types import Seq
from seawall.limits import FETCH_SIZE_MAX
from seawall.wire.format.decoder import Frame
from seawall.wire.format.frames import FrameHeader
from seawall.wire.lwp2.reading import Fetch


@dataclass(frozen=True, slots=True)
class _Prefetched:
    """A request whose answer is under way."""

    connection: AsyncConnection
    asked: PendingRequest
    fetch: Fetch


class AsyncPrefetch:
    """What one reader asks a server, one answer ahead. For one task at a time."""

    def __init__(self, requests: AsyncRequests, reader: TopicReader) -> None:
        self._requests = requests
        self._reader = reader
        self._ahead: _Prefetched | None = None

    async def take(self, fetch: Fetch, *, behind: int, wait_s: float = 0.0) -> list[Item]:
        """The answer to a request of the reader; of what follows it up to `behind` bytes are asked for."""
        before, self._ahead = self._ahead, None
        if before is not None and not before.fetch.begins_like(fetch):
            before.connection.forget(before.asked)
            before = None
        timeout_s = self._requests.target.timeout_s + wait_s
        size = self._requests.answer_size

        async def answer(connection: AsyncConnection) -> Frame:
            nonlocal before
            self._ahead = None
            used, before = before, None
            if used is None or used.connection is not connection:
                allowed = replace(fetch, max_bytes=size.at_most(fetch.max_bytes))
                used = _Prefetched(connection, connection.ask(allowed), allowed)

            def begun(header: FrameHeader, start: memoryview) -> None:
                following = self._reader.fetch_behind(header, start, size.at_most(behind))
                if following is not None and connection.is_open:
                    self._ahead = _Prefetched(connection, connection.ask(following), following)

            used.asked.when_begun(begun)
            return await self._requests.answer(connection, used.asked, used.fetch, timeout_s)

        return self._reader.take(await self._requests.use(answer))

    def let_go(self) -> None:
        """Do without the answer that is under way."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.connection.forget(ahead.asked)


async def read_all(requests: AsyncRequests, reader: TopicReader, end: Seq) -> list[ReceivedBatch]:
    """All batches up to a seq."""
    ahead = AsyncPrefetch(requests, reader)
    found: list[ReceivedBatch] = []
    while reader.next_seq < end and not reader.is_at_end:
        items = await ahead.take(reader.fetch(max_bytes=FETCH_SIZE_MAX), behind=FETCH_SIZE_MAX)
        found.extend(item for item in items if isinstance(item, ReceivedBatch))
    ahead.let_go()
    return found
