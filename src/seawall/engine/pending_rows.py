"""Rows of batches that are in the log and not applied yet: catalog and index get many of them at once.

Commits of small batches leave their rows in `short_way`; whoever looks at the catalog, or changes anything, has them
applied first. A crash loses the rows, and replay finds them again in the log. This module must not know who commits.
"""

from __future__ import annotations

from seawall.engine.short_way import ShortWay
from seawall.engine.topic_logs import TopicLogs
from seawall.storage.batch_index import entries_of
from seawall.topics.catalog import TopicCatalog


class PendingRows:
    """The rows of one store that catalog and index have to apply."""

    __slots__ = ("_catalog", "_logs", "short_way")

    def __init__(self, short_way: ShortWay, catalog: TopicCatalog, logs: TopicLogs) -> None:
        self.short_way = short_way
        self._catalog = catalog
        self._logs = logs

    def apply(self) -> None:
        """Apply every row whose commit is finished: from then on readers see its batch."""
        fresh = self.short_way.take_rows()
        if not fresh.size:
            return
        for topic, rows in self._catalog.apply_run(fresh):
            filling = self._logs.of(topic).filling[-1]
            segment, before = filling.segment, len(filling.segment.index)
            segment.place(int(rows["size"].sum()))
            segment.index.extend(entries_of(rows, segment.index.end))
            filling.waiting.extend(before, rows["at"])
