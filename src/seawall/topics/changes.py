"""Which topics have changed lately: the ids of topics that were appended to, created, deleted or lost records.

    mark = changes.mark
    changes.since(mark)        # ids of the topics that have changed, None if too many changes were made since

A reader of many topics asks this instead of looking at every topic: what it pays follows the changes. The newest
`limits.TOPIC_CHANGES_KEPT` changes are kept. A reader that is further behind looks at every topic once, which costs no
more than looking at each of those changes.

A crash loses the changes; whoever reads begins by looking at every topic. This module must not know readers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import TopicId

#: Ids of topics, as the log has them.
TopicIds = npt.NDArray[np.uint32]


class TopicChanges:
    """The newest changes of all topics, in order."""

    __slots__ = ("_kept", "_ring", "mark")

    def __init__(self, kept: int = limits.TOPIC_CHANGES_KEPT) -> None:
        """Keep the newest `kept` changes."""
        self._kept = kept
        self._ring: TopicIds = np.zeros(kept, np.uint32)
        #: How many changes were ever made.
        self.mark = 0

    def note(self, topic_id: TopicId) -> None:
        """Add a change of one topic."""
        self._ring[self.mark % self._kept] = topic_id
        self.mark += 1

    def note_rows(self, topic_ids: TopicIds) -> None:
        """Add a change of a topic for each row."""
        newest = topic_ids[-self._kept :]
        first = (self.mark + len(topic_ids) - len(newest)) % self._kept
        until_end = self._kept - first
        self._ring[first : first + len(newest)] = newest[:until_end]
        self._ring[: max(0, len(newest) - until_end)] = newest[until_end:]
        self.mark += len(topic_ids)

    def since(self, mark: int) -> TopicIds | None:
        """The topics of all changes after a mark, in order and maybe repeated; None if some are not kept any more."""
        count = self.mark - mark
        if count > self._kept:
            return None
        first, end = mark % self._kept, mark % self._kept + count
        return np.concatenate((self._ring[first:end], self._ring[: max(0, end - self._kept)]))
