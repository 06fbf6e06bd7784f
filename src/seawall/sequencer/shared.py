"""The private memory that the roles of a sequencer process share: counters, notes, and the queues between them.

    collector c ── queues[c][w] ──▶ worker w ── ranges[w] ──▶ frontier
    counters[RESERVED]   next free position; workers add to it atomically
    counters[FLOOR]      entries below it may be overwritten in the GOI; the frontier raises it
    notes                one for each entry of the GOI (position mod `goi_entries`): numbers of a duplicate's original;
                         stale, from an earlier lap, if the entry is no duplicate
    collected            one line per broker (`kernels.ordering.collecting`); its first word counts the collected slots
    settled              one line per worker: all its batches below the first word are settled

A ring has one producer and one consumer, each with its own count (`kernels.runtime.rings`: PRODUCED and CONSUMED,
absolute and exclusive, never reset), so items need no token: an item is visible once the producer has counted it
(store-release). An item of a queue is one word, the ref of a slot; an item of a range ring is two, first position and
end.

Every word has one writing role, except RESERVED, which changes only by atomic operations. The worker that reserved the
position of a duplicate writes its note before the GOI token; readers read it after the token.

A crash loses all of it, and recovery needs none of it. This module must not know what refs mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from seawall import limits
from seawall.errors import InvalidInputError
from seawall.fabric.records import Records, Words
from seawall.kernels.runtime.rings import CONSUMED, COUNTER_WORDS, PRODUCED
from seawall.sequencer.aligned_arrays import line_zeros

#: Indexes into `counters`, a cache line apart.
RESERVED: Final = 0
FLOOR: Final = 8
SHARED_COUNTER_WORDS: Final = 16

#: A worker's note to the frontier for one position: numbers of a duplicate's original, zeros if unknown.
NOTE: Final = np.dtype([("base_seq", np.uint64), ("timestamp_ns", np.uint64)])
assert NOTE.itemsize == 16

#: In `settled`: no batch is unsettled.
NOTHING_UNSETTLED: Final = 1 << 62

#: Words of one line of `collected` and `settled`.
LINE_WORDS: Final = 8
assert LINE_WORDS * 8 == limits.CACHE_LINE_SIZE

#: Words of one item.
REF_WORDS: Final = 1
RANGE_WORDS: Final = 2


@dataclass(frozen=True, slots=True)
class SpscRing:
    """A queue of items from one role to another; an item is at (index mod capacity) × `item_words` of `words`."""

    words: Words
    counters: Words
    item_words: int

    @property
    def capacity(self) -> int:
        """The maximal number of items, a power of two."""
        return self.words.size // self.item_words

    def __len__(self) -> int:
        return int(self.counters[PRODUCED] - self.counters[CONSUMED])


@dataclass(frozen=True, slots=True)
class SequencerShared:
    """The private memory of a sequencer process. Create it with `make`."""

    goi_entries: int
    counters: Words
    notes: Records
    queues: tuple[tuple[SpscRing, ...], ...]
    ranges: tuple[SpscRing, ...]
    collected: Words
    settled: Words
    #: All queues of each collector in one array, for its kernel: `queues` are slices of these.
    queue_words: tuple[Words, ...]
    queue_counters: tuple[Words, ...]

    @classmethod
    def make(
        cls,
        goi_entries: int,
        collectors: int = 1,
        workers: int = 1,
        *,
        queue_refs: int = limits.SEQUENCER_QUEUE_REFS,
        range_items: int = limits.SEQUENCER_RANGES,
        start: int = 0,
    ) -> SequencerShared:
        """Create empty queues; RESERVED and FLOOR begin at `start`."""
        for name, count in (("goi_entries", goi_entries), ("queue_refs", queue_refs), ("range_items", range_items)):
            if count < 1 or count & (count - 1):
                raise InvalidInputError(f"{name} is {count}: it must be a power of two")
        if collectors < 1 or workers < 1 or start < 0:
            raise InvalidInputError(
                f"{collectors} collectors, {workers} workers, from position {start}: at least 1 of each, from 0 on"
            )
        counters = line_zeros(SHARED_COUNTER_WORDS, np.int64)
        counters[RESERVED] = counters[FLOOR] = start
        words = tuple(line_zeros(workers * queue_refs * REF_WORDS, np.int64) for _ in range(collectors))
        counts = tuple(line_zeros(workers * COUNTER_WORDS, np.int64) for _ in range(collectors))
        settled = line_zeros(workers * LINE_WORDS, np.int64)
        settled[::LINE_WORDS] = NOTHING_UNSETTLED
        return cls(
            goi_entries=goi_entries,
            counters=counters,
            notes=np.zeros(goi_entries, NOTE),
            queues=tuple(_rings(mine, own, workers, REF_WORDS) for mine, own in zip(words, counts, strict=True)),
            ranges=_rings(
                *(
                    line_zeros(workers * range_items * RANGE_WORDS, np.int64),
                    line_zeros(workers * COUNTER_WORDS, np.int64),
                ),
                *(workers, RANGE_WORDS),
            ),
            collected=line_zeros(limits.FABRIC_BROKERS_MAX * LINE_WORDS, np.int64),
            settled=settled,
            queue_words=words,
            queue_counters=counts,
        )

    @property
    def reserved(self) -> int:
        """Positions below it are reserved by workers."""
        return int(self.counters[RESERVED])


def _rings(words: Words, counters: Words, count: int, item_words: int) -> tuple[SpscRing, ...]:
    parts = zip(np.split(words, count), np.split(counters, count), strict=True)
    return tuple(SpscRing(mine, own, item_words) for mine, own in parts)
