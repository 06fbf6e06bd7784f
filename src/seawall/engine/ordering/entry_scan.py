"""Selects the entries of the order that one commit applies, and classifies them, before anything is staged.

A commit ends before a CONTROL entry, and before its batches need more log space than a commit may take. Works on whole
arrays. This module must not know files, nor how the entries are staged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Position, TopicId
from seawall.engine.commit.appends import logged_size
from seawall.errors import FatalError, InvalidInputError
from seawall.kernels.ordering import applying as kernels
from seawall.kernels.runtime.memory import Bytes
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Durability
from seawall.topics.state import TopicState
from seawall.wire.format.codes import AckStatus

Records = npt.NDArray[np.void]

#: The most entries of one commit: 0.8 MiB of rows.
ENTRIES_MAX: Final = 8_192

_NO_RECORDS: Final = kernels.FLAG_NOP | kernels.FLAG_SKIP
#: The most log bytes of an entry without records, and of a batch that is written directly to its segment.
_CONTROL_SIZE: Final = max(kernels.NOP_SIZE, kernels.SKIP_SIZE)
_DIRECT_SIZE: Final = logged_size(limits.LARGE_BATCH_SIZE)


class TopicTotals(NamedTuple):
    """Records and bytes of the admitted batches of one topic."""

    topic: TopicState
    records: int
    size: int


@dataclass(slots=True, eq=False)
class EntryScan:
    """The entries of one commit."""

    first: Position
    count: int
    #: Which entries are admitted batches, and which of those are written directly to their segment.
    is_admitted: npt.NDArray[np.bool_]
    is_direct: Bytes
    entries: Records  #: copies, in order
    sides: Records
    sizes: npt.NDArray[np.int64]  #: bytes in the log, cumulative
    totals: list[TopicTotals]  #: of every topic with admitted batches

    def logged_from(self, taken: int) -> int:
        """Bytes in the log of the entries from index `taken` on."""
        return int(self.sizes[-1] - (self.sizes[taken - 1] if taken else 0))

    def direct_from(self, taken: int) -> int:
        """Length of the run of direct entries of one topic that starts at index `taken`."""
        topic_ids = self.entries["topic_id"][taken:]
        others = np.flatnonzero((self.is_direct[taken:] == 0) | (topic_ids != topic_ids[0]))
        return int(others[0]) if others.size else topic_ids.size


def scan_entries(
    catalog: TopicCatalog, entries: Records, sides: Records, mask: int, first: Position, count: int, size_max: int
) -> EntryScan:
    """The entries from position `first` on that fit one commit of `size_max` bytes, at least one."""
    slots = (first + np.arange(min(count, ENTRIES_MAX))) & mask
    found, beside = entries.take(slots), sides.take(slots)
    controls = np.flatnonzero(found["flags"] & kernels.FLAG_CONTROL)
    if controls.size:
        found, beside = found[: controls[0]], beside[: controls[0]]
        if not controls[0]:
            raise InvalidInputError(f"the entry at {first} is a CONTROL: make its change `at` it, then continue")
    is_admitted = ((found["flags"] & _NO_RECORDS) == 0) & (beside["status"] == int(AckStatus.OK))
    topics = {topic_id: _topic(catalog, topic_id) for topic_id in _distinct(found["topic_id"][is_admitted])}
    volatile = [topic_id for topic_id, topic in topics.items() if topic.config.durability is Durability.EPHEMERAL]
    sizes = found["size"].astype(np.int64)
    is_large = sizes >= limits.LARGE_BATCH_SIZE
    is_direct = is_admitted & ((is_large | np.isin(found["topic_id"], volatile)) if volatile else is_large)
    logged = np.where(is_direct, _DIRECT_SIZE, np.where(is_admitted, sizes, _CONTROL_SIZE)).cumsum()
    taken = max(1, int(np.searchsorted(logged, size_max, "right")))
    found, beside, is_admitted = found[:taken], beside[:taken], is_admitted[:taken]
    return EntryScan(
        first,
        found.size,
        is_admitted,
        is_direct[:taken].astype(np.uint8),
        found,
        beside,
        logged[:taken],
        _totals(topics, found, is_admitted),
    )


def _totals(topics: dict[int, TopicState], entries: Records, is_admitted: npt.NDArray[np.bool_]) -> list[TopicTotals]:
    """The totals of each topic that has admitted batches among the entries."""
    counts = np.where(is_admitted, entries["record_count"], 0)
    sizes = np.where(is_admitted, entries["size"], 0)
    if len(topics) == 1:
        (topic,) = topics.values()
        return [TopicTotals(topic, int(counts.sum(dtype=np.int64)), int(sizes.sum(dtype=np.int64)))]
    topic_ids, groups = np.unique(entries["topic_id"], return_inverse=True)
    # `bincount` adds up 64-bit floats: exact far beyond what one commit holds.
    records, total = np.bincount(groups, counts).tolist(), np.bincount(groups, sizes).tolist()
    found = zip(topic_ids.tolist(), records, total, strict=True)
    return [TopicTotals(topics[topic_id], int(count), int(size)) for topic_id, count, size in found if size]


def _topic(catalog: TopicCatalog, topic_id: int) -> TopicState:
    topic = catalog.find(TopicId(topic_id))
    if topic is None:
        raise FatalError(f"topic {topic_id} has entries in the order and is not in the catalog: stop and recover")
    return topic


def _distinct(topic_ids: npt.NDArray[np.uint32]) -> list[int]:
    if topic_ids.size and (topic_ids == topic_ids[0]).all():
        return [int(topic_ids[0])]
    return list(np.unique(topic_ids).tolist())
