"""Batches that commit cycles have logged and that catalog and index do not have yet, as rows.

Commit cycles (`commit_cycle`) add a row for each batch. The rows are applied many at a time, before a reader looks at
the catalog and before any change. A reader that follows the end of a topic finds the newest batches here, and does not
need them applied. A crash loses the rows; replay reads the same batches from the log. This module must not know how
batches are committed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import numpy as np

from seawall import limits
from seawall.core.types import Position, Seq, TopicId
from seawall.engine.store.topic_logs import TopicLogs
from seawall.kernels.log.cycle_records import PENDING_NUMBERS
from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.kernels.log.pending import END_SEQ, FOUND_WORDS, HAS_HOLE, NEXT_SEQ, find_pending
from seawall.storage.segments.batch_index import INDEX_ENTRY, Entries, entries_of
from seawall.topics.catalog import TopicCatalog
from seawall.topics.changes import TopicIds

_ROWS_MAX: Final = 4 * limits.RECEIVED_BATCHES_MAX

#: The words of `PENDING_NUMBERS`.
_COUNT, _NEXT, _IN_FLIGHT = range(3)


#: Batches that one search finds at most; the next read continues after them.
_FOUND_MAX: Final = 256
_NO_LIMIT: Final = (1 << 63) - 1


class FoundBatches(NamedTuple):
    """Adjacent batches of a topic in the log."""

    #: Their index entries, with log addresses instead of segment positions.
    entries: Entries
    #: The seq after them, and the seq after all pending batches of the topic; 0 if it has none.
    end_seq: Seq
    next_seq: Seq


class PendingRows:
    """The pending rows of one store."""

    __slots__ = ("_catalog", "_entries", "_found", "_logs", "_numbers", "numbers", "rows")

    def __init__(self, catalog: TopicCatalog, logs: TopicLogs) -> None:
        self._catalog = catalog
        self._logs = logs
        #: Rows of logged batches, followed by those of commits in flight.
        self.rows: WalRows = np.zeros(_ROWS_MAX, WAL_ROW)
        #: Their counts, shared with the kernels that commit.
        self.numbers = np.zeros(1, PENDING_NUMBERS)
        self._numbers = self.numbers.view(np.int64).data
        #: Scratch memory of `find`.
        self._entries: Entries = np.zeros(_FOUND_MAX, INDEX_ENTRY)
        self._found = np.zeros(FOUND_WORDS, np.int64)

    @property
    def rows_left(self) -> int:
        """How many more rows fit."""
        return _ROWS_MAX - self._numbers[_NEXT]

    @property
    def has_commit(self) -> bool:
        """True if a commit cycle is in flight."""
        return self._numbers[_IN_FLIGHT] != 0

    @property
    def next_position(self) -> Position:
        """The position after all batches of finished commits."""
        count = self._numbers[_COUNT]
        return Position(int(self.rows[count - 1]["position"]) + 1) if count else self._catalog.next_position

    def find(self, topic_id: TopicId, from_seq: Seq, size_max: int, records_max: int | None) -> FoundBatches | None:
        """Find the pending batches of a topic from the one that holds `from_seq` on, as many as a read may take.

        None if seqs are missing among them: applying the rows finds out why.
        """
        entries, found = self._entries, self._found
        limit = _NO_LIMIT if records_max is None else records_max
        count = find_pending(self.rows, self._numbers[_COUNT], topic_id, from_seq, size_max, limit, entries, found)
        if count == HAS_HOLE:
            return None
        return FoundBatches(entries[:count].copy(), Seq(int(found[END_SEQ])), Seq(int(found[NEXT_SEQ])))

    def topics_from(self, position: Position) -> TopicIds:
        """The topics of the pending batches at or after a position, in order and maybe repeated."""
        rows, count = self.rows, int(self._numbers[_COUNT])
        # By hand: an array operation on one field would visit every row.
        first = bisect_left(range(count), position, key=lambda index: Position(int(rows[index]["position"])))
        topic_ids: TopicIds = rows["topic_id"][first:count]
        return topic_ids.copy()

    def take(self) -> WalRows:
        """Remove the rows of finished commits: valid as long as the caller holds the store's memory."""
        numbers = self._numbers
        count, numbers[_COUNT] = numbers[_COUNT], 0
        if not numbers[_IN_FLIGHT]:
            numbers[_NEXT] = 0
        return self.rows[:count]

    def apply(self) -> None:
        """Apply the rows of all finished commits: readers see their batches from now on."""
        pending = self.take()
        if not pending.size:
            return
        for topic, rows in self._catalog.apply_run(pending):
            active = self._logs.of(topic).unsealed[-1]
            segment, before = active.segment, len(active.segment.index)
            segment.allocate(int(rows["size"].sum()))
            segment.index.extend(entries_of(rows, segment.index.end))
            active.unflushed.extend(before, rows["at"])
