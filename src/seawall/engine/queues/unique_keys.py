"""The unique keys of one queue: which job has each key, as long as the job is there.

Keys are found in the records when they are scanned. A key whose job is gone is forgotten when the table has doubled, so
its size follows the jobs that have keys. A restart scans the records again.
"""

from __future__ import annotations

from typing import Final

from seawall.core.types import Seq
from seawall.topics.state import TopicState

#: Keys that are kept before the first check for jobs that are gone.
_CHECK_AT_MIN: Final = 1_024


class UniqueKeys:
    """The unique keys of the jobs of one topic."""

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic
        #: The jobs with each key, the first one first: a dead letter that comes back may find another job with its key.
        self._seqs: dict[bytes, tuple[int, ...]] = {}
        self._check_at = _CHECK_AT_MIN

    def add(self, key: bytes, seq: int) -> None:
        """Remember a job and its key."""
        self._seqs[key] = (*self._live(key), seq)
        if len(self._seqs) >= self._check_at:
            self._seqs = {key: live for key in self._seqs if (live := self._live(key))}
            self._check_at = max(_CHECK_AT_MIN, 2 * len(self._seqs))

    def find(self, key: bytes) -> int | None:
        """The first job that has a key, or None."""
        return next(iter(self._live(key)), None)

    def _live(self, key: bytes) -> tuple[int, ...]:
        return tuple(seq for seq in self._seqs.get(key, ()) if self._topic.first_readable(Seq(seq)) == seq)
