"""Batches that commit cycles have logged and that catalog and index do not have yet, as rows.

Commit cycles (`commit_cycle`) add a row for each batch. The rows are applied many at a time, before a reader looks at
the catalog and before any change. A crash loses the rows; replay reads the same batches from the log. This module must
not know how batches are committed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seawall import limits
from seawall.engine.store.topic_logs import TopicLogs
from seawall.kernels.log.cycle_records import PENDING_NUMBERS
from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.storage.segments.batch_index import entries_of
from seawall.topics.catalog import TopicCatalog

_ROWS_MAX: Final = 4 * limits.RECEIVED_BATCHES_MAX

#: The words of `PENDING_NUMBERS`.
_COUNT, _NEXT, _IN_FLIGHT = range(3)


class PendingRows:
    """The pending rows of one store."""

    __slots__ = ("_catalog", "_logs", "_numbers", "numbers", "rows")

    def __init__(self, catalog: TopicCatalog, logs: TopicLogs) -> None:
        self._catalog = catalog
        self._logs = logs
        #: Rows of logged batches, followed by those of commits in flight.
        self.rows: WalRows = np.zeros(_ROWS_MAX, WAL_ROW)
        #: Their counts, shared with the kernels that commit.
        self.numbers = np.zeros(1, PENDING_NUMBERS)
        self._numbers = self.numbers.view(np.int64).data

    @property
    def rows_left(self) -> int:
        """How many more rows fit."""
        return _ROWS_MAX - self._numbers[_NEXT]

    @property
    def has_commit(self) -> bool:
        """True if a commit cycle is in flight."""
        return self._numbers[_IN_FLIGHT] != 0

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
