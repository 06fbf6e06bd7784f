"""Waiting for a record or a position with long polls: the request to send, and whether its response ends the wait.

    wait = RecordWait("events", topic_id, seq)
    frame = …request(wait.fetch(wait_ms))…
    wait.take(frame)                    # True: it is there; see also wait.is_at_end

The server delays its response until it has data, for at most `FETCH_WAIT_MS_MAX`; then the client sends another one. No
I/O here.
"""

from __future__ import annotations

from typing import Final, Protocol

from seawall.client.read.position_reading import PositionReader
from seawall.client.read.reading import TopicReader
from seawall.core.types import TopicId
from seawall.errors import InvalidInputError
from seawall.limits import FETCH_WAIT_MS_MAX
from seawall.wire.format.codes import ReadBy
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.reading import Fetch

_NS_PER_MS: Final = 1_000_000


class Wait(Protocol):
    """A condition to wait for."""

    @property
    def is_at_end(self) -> bool:
        """True if the last response reached the end."""
        ...

    def fetch(self, wait_ms: int) -> Fetch:
        """The next request; the server may delay its response for `wait_ms`."""
        ...

    def take(self, frame: Frame) -> bool:
        """True if a response fulfils the condition."""
        ...


class RecordWait:
    """Waits for a record of a topic, by its seq."""

    def __init__(self, topic: str, topic_id: TopicId, seq: int) -> None:
        check_seq(seq)
        self._seq = seq
        self._reader = TopicReader(topic, topic_id, ReadBy.SEQ, seq)

    @property
    def is_at_end(self) -> bool:
        """True if the last response reached the end."""
        return self._reader.is_at_end

    def fetch(self, wait_ms: int) -> Fetch:
        """The next request."""
        return self._reader.fetch(max_bytes=1, max_records=1, wait_ms=wait_ms)

    def take(self, frame: Frame) -> bool:
        """True if a response shows that the record or a later one exists, or existed."""
        self._reader.take(frame)
        return self._reader.next_seq > self._seq


class PositionWait:
    """Waits for anything at or after a position of the total order."""

    def __init__(self, position: int) -> None:
        check_position(position)
        self._reader = PositionReader(ReadBy.POSITION, position)

    @property
    def is_at_end(self) -> bool:
        """True if the last response reached the end."""
        return self._reader.is_at_end

    def fetch(self, wait_ms: int) -> Fetch:
        """The next request."""
        return self._reader.fetch(max_bytes=1, max_records=1, wait_ms=wait_ms)

    def take(self, frame: Frame) -> bool:
        """True if a response has an item, of any topic."""
        return bool(self._reader.take(frame, {}))


class PollDeadline:
    """Splits a timeout into long polls. Times are of one monotonic clock, in nanoseconds."""

    def __init__(self, timeout_s: float | None, now_ns: int) -> None:
        self._end_ns = None if timeout_s is None else now_ns + int(timeout_s * 1e9)

    def wait_ms(self, now_ns: int) -> int:
        """How long the server may delay the next response; 0 once the timeout has passed."""
        if self._end_ns is None:
            return FETCH_WAIT_MS_MAX
        return min(max(0, self._end_ns - now_ns) // _NS_PER_MS, FETCH_WAIT_MS_MAX)


def check_seq(seq: int) -> None:
    """Raise `InvalidInputError` if no record can have this seq."""
    if seq < 1:
        raise InvalidInputError(f"seqs begin at 1, not at {seq}")


def check_position(position: int) -> None:
    """Raise `InvalidInputError` if this is no position."""
    if position < 0:
        raise InvalidInputError(f"positions begin at 0, not at {position}")
