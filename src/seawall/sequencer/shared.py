"""What the roles of one sequencer process share beside the fabric: counters, notes, and the queues between them.

    collector c ── queues[c][w] ──▶ worker w ── ranges[w] ──▶ frontier
    counters[RESERVED]   next position to hand out; workers add to it atomically
    counters[FLOOR]      positions below it may be written over in the GOI; the frontier raises it
    notes                one for each place of the GOI (position mod `goi_entries`): numbers of a duplicate's original,
                         left over from an earlier lap where the entry is no duplicate
    collected            one line for each broker (`kernels.ordering.collecting`); its first word counts the slots taken
    settled              one line for each worker: below its first word nothing waits to learn its numbers

A ring has one producer and one consumer, each with its own count (`kernels.runtime.rings`: PRODUCED and CONSUMED,
absolute and exclusive, never reduced), so items need no token: an item is there once the producer has counted it
(store-release). An item of a queue is one word, the ref of a slot; an item of a range ring is two, first position and
end.

Every word has one writing role, RESERVED excepted, which is changed by atomic operations only. The note of a duplicate
is written by the worker that reserved its position, before the GOI token, and read after that.

What a crash does: all of it is gone, and nothing here is needed to recover. It must not know what refs mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from seawall import limits
from seawall.errors import InvalidInputError
from seawall.fabric.records import Records, Words
from seawall.kernels.runtime.rings import CONSUMED, COUNTER_WORDS, PRODUCED
from seawall.sequencer.line_memory import line_zeros

#: Places in `counters`, a cache line apart.
RESERVED: Final = 0
FLOOR: Final = 8
SHARED_COUNTER_WORDS: Final = 16

#: What a worker tells the frontier of one position: numbers of a duplicate's original, zeros where it knows none.
NOTE: Final = np.dtype([("base_seq", np.uint64), ("timestamp_ns", np.uint64)])
assert NOTE.itemsize == 16

#: In `settled`: nothing waits.
NOTHING_UNSETTLED: Final = 1 << 62

#: Words of one line of `collected` and `settled`.
LINE_WORDS: Final = 8
assert LINE_WORDS * 8 == limits.CACHE_LINE_SIZE

#: Words of one item.
REF_WORDS: Final = 1
RANGE_WORDS: Final = 2


@dataclass(frozen=True, slots=True)
class SpscRing:
    """Items from one role to another: `words` holds them, at (index mod capacity) × `item_words`."""

    words: Words
    counters: Words
    item_words: int

    @property
    def capacity(self) -> int:
        """Items it holds, a power of two."""
        return self.words.size // self.item_words

    def __len__(self) -> int:
        return int(self.counters[PRODUCED] - self.counters[CONSUMED])


@dataclass(frozen=True, slots=True)
class SequencerShared:
    """The private memory of a sequencer process. Made by `make`."""

    goi_entries: int
    counters: Words
    notes: Records
    queues: tuple[tuple[SpscRing, ...], ...]
    ranges: tuple[SpscRing, ...]
    collected: Words
    settled: Words
    #: All queues of one collector as one ring beside the other, for its kernel: `queues` are parts of these.
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
        """Empty queues; positions begin at `start`, and so does what may not be written over."""
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
        """Positions below it are given to a worker."""
        return int(self.counters[RESERVED])


def _rings(words: Words, counters: Words, count: int, item_words: int) -> tuple[SpscRing, ...]:
    parts = zip(np.split(words, count), np.split(counters, count), strict=True)
    return tuple(SpscRing(mine, own, item_words) for mine, own in parts)
