"""Rows of batches that are in the log and not applied yet: catalog and index get many of them at once.

Commit cycles leave the rows of their batches here (`commit_cycle`); whoever looks at the catalog, or changes anything,
has them applied first. A crash loses the rows, and replay finds them again in the log. This module must not know who
commits.
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

#: Places in `PENDING_NUMBERS`.
_COUNT, _NEXT, _UNDER_WAY = range(3)


class PendingRows:
    """The rows of one store that catalog and index have to apply."""

    __slots__ = ("_catalog", "_logs", "_numbers", "numbers", "rows")

    def __init__(self, catalog: TopicCatalog, logs: TopicLogs) -> None:
        self._catalog = catalog
        self._logs = logs
        #: Rows of batches in the log; behind them those of commits that are under way.
        self.rows: WalRows = np.zeros(_ROWS_MAX, WAL_ROW)
        #: How many there are, as kernels count them that commit.
        self.numbers = np.zeros(1, PENDING_NUMBERS)
        self._numbers = self.numbers.view(np.int64).data

    @property
    def rows_left(self) -> int:
        """How many more batches can be pending."""
        return _ROWS_MAX - self._numbers[_NEXT]

    @property
    def has_commit(self) -> bool:
        """Whether a commit cycle is under way."""
        return self._numbers[_UNDER_WAY] != 0

    def take(self) -> WalRows:
        """The rows that have to be applied now; valid as long as the store's memory is held."""
        numbers = self._numbers
        count, numbers[_COUNT] = numbers[_COUNT], 0
        if not numbers[_UNDER_WAY]:
            numbers[_NEXT] = 0
        return self.rows[:count]

    def apply(self) -> None:
        """Apply every row whose commit is finished: from then on readers see its batch."""
        pending = self.take()
        if not pending.size:
            return
        for topic, rows in self._catalog.apply_run(pending):
            filling = self._logs.of(topic).filling[-1]
            segment, before = filling.segment, len(filling.segment.index)
            segment.place(int(rows["size"].sum()))
            segment.index.extend(entries_of(rows, segment.index.end))
            filling.waiting.extend(before, rows["at"])
