"""A collector: takes the published slots of its brokers, in order, and queues each for the worker of its client.

`kernels.ordering.collecting` has the rules. Each broker belongs to one collector. A collector never waits: `step`
collects the ready slots and returns.

A crash loses its state. A new collector begins each ring at the completion vector; recovery passes the slots beyond it
that already have an entry to `resume`. A collector must not know the content or the outcome of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from seawall import limits
from seawall.errors import InvalidInputError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.records import Words
from seawall.kernels.ordering import collecting
from seawall.kernels.runtime.atomics import load_acquire_u64
from seawall.sequencer import shared as shared_memory
from seawall.sequencer.shared import SequencerShared

assert collecting.LINE_WORDS == shared_memory.LINE_WORDS
assert collecting.PBR_TOKEN == records.PBR_TOKEN
assert collecting.TAIL_CLAIMED == records.TAIL_CLAIMED
assert collecting.FLAG_NOP == records.FLAG_NOP


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """How many slots a step takes of each ring, and how long it waits for a claimed slot."""

    slots_per_ring: int = limits.SEQUENCER_DRAIN_REFS
    stuck_after_ns: int = limits.STUCK_SLOT_MS * 1_000_000


class Collector:
    """Queues the slots of some brokers for the workers."""

    __slots__ = ("_brokers", "_collected", "_own", "_pbr_entries", "_queues", "_settings", "_slots", "_tails", "_taken")

    def __init__(
        self,
        arrays: FabricArrays,
        shared: SequencerShared,
        collector: int,
        brokers: Sequence[int],
        settings: CollectorSettings | None = None,
    ) -> None:
        known = len(arrays.pbr)
        if len(set(brokers)) != len(brokers) or not all(0 <= broker < known for broker in brokers):
            raise InvalidInputError(f"a collector of brokers {list(brokers)}: each once, from 0 to {known - 1}")
        self._brokers: Final = np.array(brokers, np.int64)
        self._own: Final = frozenset(brokers)
        self._pbr_entries: Final = len(arrays.pbr[0])
        self._slots: Final = arrays.pbr_all_words
        self._tails: Final = arrays.tail_all_words
        self._taken: Final = np.zeros(known * self._pbr_entries, np.int64)
        self._collected: Final = shared.collected
        self._queues: Final = (shared.queue_words[collector], shared.queue_counters[collector])
        self._settings: Final = settings or CollectorSettings()
        for broker in brokers:
            completed = load_acquire_u64(arrays.completion_words[broker], records.COMPLETION_COMPLETED)
            collecting.start_cursor(self._collected, broker, completed, 0)

    def step(self, now_ns: int) -> int:
        """Queue the ready slots; returns how far the cursors advanced."""
        return collecting.collect_rings(
            *(self._slots, self._pbr_entries, self._tails, self._brokers, self._taken, self._collected),
            *(*self._queues, self._settings.slots_per_ring, now_ns, self._settings.stuck_after_ns),
        )

    def resume(self, broker: int, cursor: int, taken: Words) -> None:
        """Restart a ring at slot `cursor`; slots with absolute indexes in `taken` already have an entry."""
        self._require(broker)
        ring = self._taken[broker * self._pbr_entries : (broker + 1) * self._pbr_entries]
        ring[:] = 0
        ring[taken % self._pbr_entries] = taken + 1
        collecting.start_cursor(self._collected, broker, cursor, int(taken.max(initial=-1)) + 1)

    def mark_dead(self, broker: int) -> None:
        """Mark a broker as ended; its claimed but unpublished slots are abandoned at once."""
        self._collected[self._require(broker) + collecting.IS_DEAD] = 1

    def mark_alive(self, broker: int) -> None:
        """Mark a broker as running again; it has published the unpublished slots of its predecessor as NOPs."""
        self._collected[self._require(broker) + collecting.IS_DEAD] = 0

    def cursor(self, broker: int) -> int:
        """The number of collected slots of a broker."""
        return int(self._collected[self._require(broker) + collecting.CURSOR])

    def stuck(self, broker: int) -> int:
        """The number of abandoned slots of a broker."""
        return int(self._collected[self._require(broker) + collecting.STUCK_TOTAL])

    def _require(self, broker: int) -> int:
        if broker not in self._own:
            raise InvalidInputError(f"broker {broker} belongs to another collector; this one has {self._brokers}")
        return broker * collecting.LINE_WORDS
