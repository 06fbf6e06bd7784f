"""Batches that connections have published to the rings of the network, and the space that they need in the store.

Connections publish straight to these rings, and the next commit orders what is there. Space is reserved before that: a
batch that the disk has no space for is refused by the frontier, like any batch of a full topic, and takes a position
without records.

The rings belong to the threads of the connections; this module only reads their state in the fabric. It must not know
connections, nor how batches are ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.broker.ring import BrokerRing
from seawall.core.types import TopicId
from seawall.engine.commit.appends import logged_size
from seawall.engine.commit.reserver import Need
from seawall.fabric.arrays import FabricArrays
from seawall.kernels.ordering import collecting
from seawall.kernels.ordering.applying import NOP_SIZE
from seawall.kernels.runtime.rings import Words
from seawall.limits import LARGE_BATCH_SIZE
from seawall.topics.state import TopicState

Indexes: TypeAlias = npt.NDArray[np.intp]


class Arrivals:
    """The rings of the network, and how far the sequencer has collected each."""

    def __init__(self, fabric: FabricArrays, count: int, collected: Words) -> None:
        """For the last `count` rings; `collected` has the cursors of all rings (`kernels.ordering.collecting`)."""
        brokers = len(fabric.pbr)
        self._fabric = fabric
        self._words = collected
        self._tails = fabric.tail_all_words
        self.rings = [BrokerRing(fabric, broker) for broker in range(brokers - count, brokers)]
        #: The pending batches of each ring, to find the batch of an answer.
        self.pending = [fabric.pbr[ring.broker] for ring in self.rings]

    def has_any(self) -> bool:
        """True if a batch was published that the sequencer has not collected."""
        return any(self._collected(ring.broker) < self._claimed(ring.broker) for ring in self.rings)

    def needs(self, topic_of: Callable[[TopicId], TopicState | None]) -> tuple[list[tuple[TopicState, Need]], int]:
        """What the arrivals need: for each existing topic, and in bytes of the log."""
        found: list[tuple[TopicState, Need]] = []
        logged = 0
        for broker in (ring.broker for ring in self.rings):
            first, end = self._collected(broker), self._claimed(broker)
            if first == end:
                continue
            pbr = self._fabric.pbr[broker]
            slots = pbr.take(np.arange(first, end) & (len(pbr) - 1))
            sizes = slots["size"].astype(np.int64)
            is_large = sizes >= LARGE_BATCH_SIZE
            logged += int(np.where(is_large, logged_size(LARGE_BATCH_SIZE), np.maximum(sizes, NOP_SIZE)).sum())
            for topic_id, chosen in _by_topic(slots["topic_id"]):
                topic = topic_of(TopicId(topic_id))
                if topic is not None:
                    size = int(sizes[chosen].sum())
                    need = Need(int(slots["record_count"][chosen].sum(dtype=np.int64)), size, size)
                    found.append((topic, need))
        return found, logged

    def _collected(self, broker: int) -> int:
        return self._words.item(broker * collecting.LINE_WORDS + collecting.CURSOR)

    def _claimed(self, broker: int) -> int:
        return self._tails.item(broker * collecting.TAIL_WORDS + collecting.TAIL_CLAIMED)


def _by_topic(topic_ids: npt.NDArray[np.uint32]) -> Iterator[tuple[int, slice | Indexes]]:
    """Each topic with the indexes of its slots."""
    if (topic_ids == topic_ids[0]).all():
        yield int(topic_ids[0]), slice(None)
        return
    for topic_id in np.unique(topic_ids).tolist():
        yield topic_id, np.flatnonzero(topic_ids == topic_id)
