"""Prefetch on an event loop, with the rules of `prefetch`.

All requests of a log share one connection, so a prefetched response that turns out to be the wrong one is ignored when
it arrives, and the connection stays open.
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
    """A request whose response is in flight."""

    connection: AsyncConnection
    request: PendingRequest
    fetch: Fetch


class AsyncPrefetch:
    """The fetches of one reader, one response ahead. For one task at a time."""

    def __init__(self, requests: AsyncRequests, reader: TopicReader) -> None:
        self._requests = requests
        self._reader = reader
        self._next: _Prefetched | None = None

    async def take(self, fetch: Fetch, *, prefetch_size: int, wait_s: float = 0.0) -> list[Item]:
        """The items of the response to `fetch`; meanwhile up to `prefetch_size` bytes after it are requested."""
        prefetched, self._next = self._next, None
        if prefetched is not None and not prefetched.fetch.has_same_start(fetch):
            prefetched.connection.forget(prefetched.request)
            prefetched = None
        timeout_s = self._requests.target.timeout_s + wait_s
        size = self._requests.response_size

        async def receive(connection: AsyncConnection) -> Frame:
            nonlocal prefetched
            self._next = None
            current, prefetched = prefetched, None
            if current is None or current.connection is not connection:
                allowed = replace(fetch, max_bytes=size.at_most(fetch.max_bytes))
                current = _Prefetched(connection, connection.send_request(allowed), allowed)

            def on_start(header: FrameHeader, start: memoryview) -> None:
                following = self._reader.fetch_after(header, start, size.at_most(prefetch_size))
                if following is not None and connection.is_open:
                    self._next = _Prefetched(connection, connection.send_request(following), following)

            current.request.on_start(on_start)
            return await self._requests.wait_response(connection, current.request, current.fetch, timeout_s)

        return self._reader.take(await self._requests.with_connection(receive))

    def cancel(self) -> None:
        """Drop the response that is in flight."""
        prefetched, self._next = self._next, None
        if prefetched is not None:
            prefetched.connection.forget(prefetched.request)


async def read_all(requests: AsyncRequests, reader: TopicReader, end: Seq) -> list[ReceivedBatch]:
    """All batches below the seq `end`."""
    prefetch = AsyncPrefetch(requests, reader)
    found: list[ReceivedBatch] = []
    while reader.next_seq < end and not reader.is_at_end:
        items = await prefetch.take(reader.fetch(max_bytes=FETCH_SIZE_MAX), prefetch_size=FETCH_SIZE_MAX)
        found.extend(item for item in items if isinstance(item, ReceivedBatch))
    prefetch.cancel()
    return found
