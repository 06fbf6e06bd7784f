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
        self._seqs: dict[bytes, int] = {}
        self._check_at = _CHECK_AT_MIN

    def add(self, key: bytes, seq: int) -> None:
        """Remember the job of a key, unless an earlier one still has the key."""
        if self.find(key) is not None:
            return
        self._seqs[key] = seq
        if len(self._seqs) >= self._check_at:
            self._seqs = {key: seq for key, seq in self._seqs.items() if self._is_live(seq)}
            self._check_at = max(_CHECK_AT_MIN, 2 * len(self._seqs))

    def find(self, key: bytes) -> int | None:
        """The job that has a key, or None."""
        seq = self._seqs.get(key)
        return seq if seq is not None and self._is_live(seq) else None

    def _is_live(self, seq: int) -> bool:
        return self._topic.first_readable(Seq(seq)) == seq
