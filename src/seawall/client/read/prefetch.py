"""Prefetch for threads: requests the next response as soon as the current one starts to arrive.

    prefetch = Prefetch(requests, reader)
    items = prefetch.take(reader.fetch(max_bytes=…), prefetch_size=FETCH_SIZE_MAX)

The prefix of each response says where the next one starts. So the server looks up and sends the next response while
the client receives and verifies the current one, and neither side waits for the other. At most one prefetch is in
flight, on a connection reserved for it. If it turns out to be the wrong one, because a batch was damaged, the
connection is closed. A response shows the topic as it was when the response was requested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seawall.api.received import Item, ReceivedBatch
from seawall.client.connection.connection import Connection
from seawall.client.connection.requests import Requests
from seawall.client.read.reading import TopicReader
from seawall.core.types import Seq
from seawall.limits import FETCH_SIZE_MAX
from seawall.wire.format.decoder import Frame
from seawall.wire.format.frames import FrameHeader
from seawall.wire.lwp2.reading import Fetch


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """A request whose response is in flight."""

    connection: Connection
    request_id: int
    fetch: Fetch


class Prefetch:
    """The fetches of one reader, one response ahead. For one thread at a time."""

    def __init__(self, requests: Requests, reader: TopicReader) -> None:
        self._requests = requests
        self._reader = reader
        self._next: _PendingRequest | None = None

    def take(self, fetch: Fetch, *, prefetch_size: int, wait_s: float = 0.0) -> list[Item]:
        """The items of the response to `fetch`; meanwhile up to `prefetch_size` bytes after it are requested.

        The server may take `wait_s` beyond the timeout.
        """
        frame = self.receive(fetch, prefetch_size=prefetch_size, wait_s=wait_s)
        try:
            return self._reader.take(frame)
        except BaseException:
            self.cancel()
            raise

    def receive(self, fetch: Fetch, *, prefetch_size: int, wait_s: float = 0.0) -> Frame:
        """Like `take`, but returns the frame: the caller passes it to the reader."""
        prefetched = self._next
        if prefetched is not None and not prefetched.fetch.has_same_start(fetch):
            self.cancel()
            prefetched = None
        timeout_s = self._requests.target.timeout_s + wait_s
        size = self._requests.response_size

        def receive(connection: Connection) -> Frame:
            self._next = None
            if prefetched is not None and prefetched.connection is connection:
                sent, request_id = prefetched.fetch, prefetched.request_id
            else:
                sent = replace(fetch, max_bytes=size.at_most(fetch.max_bytes))
                request_id = connection.send_request(sent)
            has_started = False

            def on_start(header: FrameHeader, start: memoryview) -> None:
                nonlocal has_started
                has_started = True
                following = self._reader.fetch_after(header, start, size.at_most(prefetch_size))
                if following is not None and connection.goodbye is None:
                    self._next = _PendingRequest(connection, connection.send_request(following), following)

            with self._requests.tracking_loss(sent.max_bytes):
                frame = connection.wait_response(request_id, timeout_s=timeout_s, on_start=on_start)
            size.arrived(frame.header.payload_length)
            if not has_started:
                on_start(frame.header, frame.payload)
            return frame

        try:
            return self._requests.with_connection(receive, first=None if prefetched is None else prefetched.connection)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Drop the response that is in flight, and close its connection."""
        prefetched, self._next = self._next, None
        if prefetched is not None:
            self._requests.discard(prefetched.connection)

    def __del__(self) -> None:
        self.cancel()


def read_all(requests: Requests, reader: TopicReader, end: Seq) -> list[ReceivedBatch]:
    """All batches below the seq `end`."""
    prefetch = Prefetch(requests, reader)
    found: list[ReceivedBatch] = []
    while reader.next_seq < end and not reader.is_at_end:
        items = prefetch.take(reader.fetch(max_bytes=FETCH_SIZE_MAX), prefetch_size=FETCH_SIZE_MAX)
        found.extend(item for item in items if isinstance(item, ReceivedBatch))
    prefetch.cancel()
    return found
