"""Reading ahead, for threads: the next answer is asked for when one begins to arrive, so no side waits for the other.

    ahead = Prefetch(requests, reader)
    items = ahead.take(reader.fetch(max_bytes=…), behind=FETCH_SIZE_MAX)

Where the next answer begins stands at the front of the one before. So the server looks it up and sends it while this
one is received and verified. One answer is under way at the most, on a connection that nobody else uses meanwhile;
where it turns out to be the wrong one, because something was damaged, that connection is let go. An answer shows the
topic as it was when it was asked for.
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
    """A request whose answer is under way."""

    connection: Connection
    request_id: int
    fetch: Fetch


class Prefetch:
    """What one reader asks a server, one answer ahead. For one thread at a time."""

    def __init__(self, requests: Requests, reader: TopicReader) -> None:
        self._requests = requests
        self._reader = reader
        self._asked: _PendingRequest | None = None

    def take(self, fetch: Fetch, *, behind: int, wait_s: float = 0.0) -> list[Item]:
        """What the answer to a request of the reader holds; of what follows it up to `behind` bytes are asked for.

        `wait_s` is what the server may take by itself.
        """
        frame = self.answer(fetch, behind=behind, wait_s=wait_s)
        try:
            return self._reader.take(frame)
        except BaseException:
            self.let_go()
            raise

    def answer(self, fetch: Fetch, *, behind: int, wait_s: float = 0.0) -> Frame:
        """The answer itself, for who has the reader take it."""
        asked = self._asked
        if asked is not None and not asked.fetch.begins_like(fetch):
            self.let_go()
            asked = None
        timeout_s = self._requests.target.timeout_s + wait_s
        size = self._requests.answer_size

        def answer(connection: Connection) -> Frame:
            self._asked = None
            is_asked = asked is not None and asked.connection is connection
            allowed = replace(fetch, max_bytes=size.at_most(fetch.max_bytes))
            sent = asked.fetch if asked is not None and is_asked else allowed
            request_id = asked.request_id if asked is not None and is_asked else connection.ask(allowed)
            has_begun = False

            def begun(header: FrameHeader, start: memoryview) -> None:
                nonlocal has_begun
                has_begun = True
                following = self._reader.fetch_behind(header, start, size.at_most(behind))
                if following is not None and connection.goodbye is None:
                    self._asked = _PendingRequest(connection, connection.ask(following), following)

            with self._requests.sizing(sent.max_bytes):
                frame = connection.answer(request_id, timeout_s=timeout_s, begun=begun)
            size.arrived(frame.header.payload_length)
            if not has_begun:
                begun(frame.header, frame.payload)
            return frame

        try:
            return self._requests.use(answer, first=None if asked is None else asked.connection)
        except BaseException:
            self.let_go()
            raise

    def let_go(self) -> None:
        """Do without the answer that is under way."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._requests.let_go(asked.connection)

    def __del__(self) -> None:
        self.let_go()


def read_all(requests: Requests, reader: TopicReader, end: Seq) -> list[ReceivedBatch]:
    """All batches up to a seq."""
    ahead = Prefetch(requests, reader)
    found: list[ReceivedBatch] = []
    while reader.next_seq < end and not reader.is_at_end:
        items = ahead.take(reader.fetch(max_bytes=FETCH_SIZE_MAX), behind=FETCH_SIZE_MAX)
        found.extend(item for item in items if isinstance(item, ReceivedBatch))
    ahead.let_go()
    return found
