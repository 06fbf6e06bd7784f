"""Waiting for what is not there yet: which request to send, and whether its answer is what was waited for. No I/O.

    wait = RecordWait("events", topic_id, seq)
    frame = …request(wait.fetch(wait_ms))…
    wait.take(frame)                    # true: it is there; and wait.is_at_end

The server holds a read back until there is something to say, for `FETCH_WAIT_MS_MAX` at most; then it is asked again.
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
    """What somebody waits for."""

    @property
    def is_at_end(self) -> bool:
        """Whether the last answer said that there is no more now."""
        ...

    def fetch(self, wait_ms: int) -> Fetch:
        """The next request, which the server may hold back for so long."""
        ...

    def take(self, frame: Frame) -> bool:
        """Whether an answer says that it is there."""
        ...


class RecordWait:
    """Waits for a record of a topic, by its seq."""

    def __init__(self, topic: str, topic_id: TopicId, seq: int) -> None:
        check_seq(seq)
        self._seq = seq
        self._reader = TopicReader(topic, topic_id, ReadBy.SEQ, seq)

    @property
    def is_at_end(self) -> bool:
        """Whether the last answer said that there is no more now."""
        return self._reader.is_at_end

    def fetch(self, wait_ms: int) -> Fetch:
        """The next request."""
        return self._reader.fetch(max_bytes=1, max_records=1, wait_ms=wait_ms)

    def take(self, frame: Frame) -> bool:
        """Whether an answer says that the record, or one behind it, is there or was."""
        self._reader.take(frame)
        return self._reader.next_seq > self._seq


class PositionWait:
    """Waits for anything at a position of the total order, or behind it."""

    def __init__(self, position: int) -> None:
        check_position(position)
        self._reader = PositionReader(ReadBy.POSITION, position)

    @property
    def is_at_end(self) -> bool:
        """Whether the last answer said that there is no more now."""
        return self._reader.is_at_end

    def fetch(self, wait_ms: int) -> Fetch:
        """The next request."""
        return self._reader.fetch(max_bytes=1, max_records=1, wait_ms=wait_ms)

    def take(self, frame: Frame) -> bool:
        """Whether an answer holds something; of which topic does not matter."""
        return bool(self._reader.take(frame, {}))


class Patience:
    """How long somebody waits, as the requests of it. Times are of one clock, in nanoseconds."""

    def __init__(self, timeout_s: float | None, now_ns: int) -> None:
        self._end_ns = None if timeout_s is None else now_ns + int(timeout_s * 1e9)

    def wait_ms(self, now_ns: int) -> int:
        """How long the server may hold back the next answer; 0 once the time is over."""
        if self._end_ns is None:
            return FETCH_WAIT_MS_MAX
        return min(max(0, self._end_ns - now_ns) // _NS_PER_MS, FETCH_WAIT_MS_MAX)


def check_seq(seq: int) -> None:
    """Refuse what no record can have as its seq."""
    if seq < 1:
        raise InvalidInputError(f"seqs begin at 1, not at {seq}")


def check_position(position: int) -> None:
    """Refuse what is no position."""
    if position < 0:
        raise InvalidInputError(f"positions begin at 0, not at {position}")
