"""Which entries of an order one commit can take, and what they are: looked at by arrays, before anything is staged.

A commit ends before a CONTROL entry, and where its batches would not fit the log together. This module must not know
files, nor what becomes of the entries.
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

#: Entries of one commit, at the most: 0.8 MiB of rows.
ENTRIES_MAX: Final = 8_192

_NO_RECORDS: Final = kernels.FLAG_NOP | kernels.FLAG_SKIP
#: Bytes in the log of an entry without records, at the most; and of one that goes apart.
_CONTROL_SIZE: Final = max(kernels.NOP_SIZE, kernels.SKIP_SIZE)
_APART_SIZE: Final = logged_size(limits.LARGE_BATCH_SIZE)


class Share(NamedTuple):
    """What the admitted batches of one topic take: records, and bytes of the batches."""

    topic: TopicState
    records: int
    size: int


@dataclass(slots=True, eq=False)
class EntryScan:
    """The entries of one commit, as they are looked at before anything is staged."""

    first: Position
    count: int
    #: Which are admitted batches, and which of those go apart.
    is_admitted: npt.NDArray[np.bool_]
    is_apart: Bytes
    entries: Records  #: copies, in order
    sides: Records
    sizes: npt.NDArray[np.int64]  #: bytes in the log, of each entry and all before it
    shares: list[Share]  #: of every topic with admitted batches

    def logged_from(self, taken: int) -> int:
        """Bytes that the entries from one on take in the log."""
        return int(self.sizes[-1] - (self.sizes[taken - 1] if taken else 0))

    def apart_from(self, taken: int) -> int:
        """How many entries from one that goes apart on do so too, and are of its topic."""
        topic_ids = self.entries["topic_id"][taken:]
        others = np.flatnonzero((self.is_apart[taken:] == 0) | (topic_ids != topic_ids[0]))
        return int(others[0]) if others.size else topic_ids.size


def look_at(
    catalog: TopicCatalog, entries: Records, sides: Records, mask: int, first: Position, count: int, size_max: int
) -> EntryScan:
    """As many entries from position `first` on as one commit of `size_max` bytes takes, at least one."""
    places = (first + np.arange(min(count, ENTRIES_MAX))) & mask
    found, beside = entries.take(places), sides.take(places)
    controls = np.flatnonzero(found["flags"] & kernels.FLAG_CONTROL)
    if controls.size:
        found, beside = found[: controls[0]], beside[: controls[0]]
        if not controls[0]:
            raise InvalidInputError(f"the entry at {first} is a CONTROL: make its change `at` it, then follow on")
    is_admitted = ((found["flags"] & _NO_RECORDS) == 0) & (beside["status"] == int(AckStatus.OK))
    topics = {topic_id: _topic(catalog, topic_id) for topic_id in _distinct(found["topic_id"][is_admitted])}
    volatile = [topic_id for topic_id, topic in topics.items() if topic.config.durability is Durability.EPHEMERAL]
    sizes = found["size"].astype(np.int64)
    is_large = sizes >= limits.LARGE_BATCH_SIZE
    is_apart = is_admitted & ((is_large | np.isin(found["topic_id"], volatile)) if volatile else is_large)
    logged = np.where(is_apart, _APART_SIZE, np.where(is_admitted, sizes, _CONTROL_SIZE)).cumsum()
    taken = max(1, int(np.searchsorted(logged, size_max, "right")))
    found, beside, is_admitted = found[:taken], beside[:taken], is_admitted[:taken]
    return EntryScan(
        first,
        found.size,
        is_admitted,
        is_apart[:taken].astype(np.uint8),
        found,
        beside,
        logged[:taken],
        _shares(topics, found, is_admitted),
    )


def _shares(topics: dict[int, TopicState], entries: Records, is_admitted: npt.NDArray[np.bool_]) -> list[Share]:
    """What each topic has among the entries."""
    counts = np.where(is_admitted, entries["record_count"], 0)
    sizes = np.where(is_admitted, entries["size"], 0)
    if len(topics) == 1:
        (topic,) = topics.values()
        return [Share(topic, int(counts.sum(dtype=np.int64)), int(sizes.sum(dtype=np.int64)))]
    topic_ids, places = np.unique(entries["topic_id"], return_inverse=True)
    # Sums of 64 bits with a fraction: exact far beyond what one commit holds.
    records, total = np.bincount(places, counts).tolist(), np.bincount(places, sizes).tolist()
    found = zip(topic_ids.tolist(), records, total, strict=True)
    return [Share(topics[topic_id], int(count), int(size)) for topic_id, count, size in found if size]


def _topic(catalog: TopicCatalog, topic_id: int) -> TopicState:
    topic = catalog.find(TopicId(topic_id))
    if topic is None:
        raise FatalError(f"topic {topic_id} has entries in the order and is not in the catalog: stop and recover")
    return topic


def _distinct(topic_ids: npt.NDArray[np.uint32]) -> list[int]:
    if topic_ids.size and (topic_ids == topic_ids[0]).all():
        return [int(topic_ids[0])]
    return list(np.unique(topic_ids).tolist())
