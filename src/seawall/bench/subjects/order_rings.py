"""A pod whose rings are filled beforehand, to measure only collecting, ordering and committing.

An array expression takes the part of the broker and fills a whole ring between two timed runs; the replica is only a
number. Batches in the BLog are headers of which the sequencer reads nothing but the length of their block.

One thread is timed while it processes a ring full of batches completely: collector, worker, commit frontier,
checkpoints that become due, and the durable and completion counters.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import thread_time_ns
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.bench.harness import NANOSECONDS_PER_SECOND, Run, Subject
from seawall.core.types import ClientId, Position, Seq, Term, TopicId
from seawall.errors import InvariantError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.limits import CLIENT_ROW_SIZE, MIB
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers
from seawall.sequencer.pod_sequencer import Moment, PodSequencer

Numbers = npt.NDArray[np.int64]

SLOTS: Final = 1 << 15
#: Sixteen full rings between two checkpoints, whose cost grows with the number of clients.
ENTRIES: Final = 1 << 20
#: Size of a batch and of its block: one small record.
BATCH_SIZE: Final = 128
RAW_SIZE: Final = 32
RAW_LENGTH_AT: Final = 80
CEILING: Final = Seq(1 << 61)
TOPIC: Final = TopicId(7)
FIRST_CLIENT: Final = 1_000
SESSION_EPOCH: Final = 1


@dataclass(slots=True)
class NoOwner:
    """An owner of a sequencer without stored client rows and without control changes."""

    frontier: CommitFrontier

    def load(self, _client_id: ClientId, /) -> bytes | None:
        """Return None: no rows are stored."""
        return None

    def save(self, _rows: bytes, /) -> None:
        """Discard the rows: the sequencer never loads them again."""

    def execute(self, _position: Position, /) -> None:
        """Execute an empty control change."""
        self.frontier.number_control(0)

    def raise_ceilings(self) -> None:
        """Fail: the ceiling is high enough never to be reached."""
        raise InvariantError("INV-FRONTIER-CEILING", "the benchmark ran out of seqs")


def frontier_with_topic(*, is_strong: bool) -> CommitFrontier:
    """A commit frontier with one topic."""
    frontier = CommitFrontier()
    frontier.add_topic(TopicNumbers(TOPIC, ceiling=CEILING, is_strong=is_strong))
    return frontier


def client_rows(count: int) -> bytes:
    """Client rows with open sessions that have not published yet."""
    rows = np.zeros((count, CLIENT_ROW_SIZE // 8), np.uint64)
    rows[:, 0] = FIRST_CLIENT + np.arange(count)
    rows[:, 1] = SESSION_EPOCH
    rows[:, 2] = 1
    return rows.tobytes()


@dataclass(frozen=True, slots=True)
class Load:
    """The content of the rings: number of clients, percentage of batches out of order, and order level of the topic."""

    clients: int = 1
    reordered_percent: int = 0
    is_strong: bool = False


class FilledRings:
    """A sequencer with one worker, and a broker ring to fill."""

    def __init__(self, load: Load) -> None:
        sizes = FabricSizes(
            brokers=1,
            goi_entries=ENTRIES,
            pbr_entries=SLOTS,
            checkpoint_size=16 * MIB,
            blog_size=SLOTS * BATCH_SIZE,
        )
        layout = FabricLayout.of(sizes)
        self._fabric: Final = FabricArrays(memoryview(mmap.mmap(-1, layout.size)), layout)
        self._load: Final = load
        frontier = frontier_with_topic(is_strong=load.is_strong)
        self.sequencer: Final = PodSequencer.start_cold(self._fabric, frontier, NoOwner(frontier), Term(1))
        self.sequencer.workers[0].import_rows(client_rows(load.clients))
        self._next_seqs = np.ones(load.clients, np.int64)
        self._random: Final = np.random.default_rng(5)
        self._filled = 0
        self._fill_constants()

    def _fill_constants(self) -> None:
        slots = self._fabric.pbr[0]
        slots["size"] = BATCH_SIZE
        slots["record_count"] = 1
        slots["topic_id"] = TOPIC
        slots["session_epoch"] = SESSION_EPOCH
        slots["flags"] = records.FLAG_STRONG_ORDER if self._load.is_strong else 0
        lengths = self._fabric.blogs[0].view(np.uint32).reshape(SLOTS, BATCH_SIZE // 4)
        lengths[:, RAW_LENGTH_AT // 4] = RAW_SIZE

    def fill(self) -> int:
        """Fill the ring with batches; return their number."""
        slots = self._fabric.pbr[0]
        owners, seqs = self._next_batches()
        indexes = self._filled + np.arange(SLOTS)
        slots["client_id"] = FIRST_CLIENT + owners
        slots["client_seq"] = seqs
        slots["block_crc"] = seqs & 0xFFFF_FFFF
        slots["blog_offset"] = indexes * BATCH_SIZE
        slots["token"] = indexes + 1
        self._filled += SLOTS
        store_release_u64(self._fabric.tail_words[0], records.TAIL_CLAIMED, self._filled)
        return SLOTS

    def _next_batches(self) -> tuple[Numbers, Numbers]:
        """The clients and the client seqs of the next batches."""
        count = len(self._next_seqs)
        owners = np.zeros(SLOTS, np.int64) if count == 1 else self._random.integers(0, count, SLOTS)
        by_owner = np.argsort(owners, kind="stable")
        sorted_owners = owners[by_owner]
        is_first = np.concatenate(([True], sorted_owners[1:] != sorted_owners[:-1]))
        firsts = np.maximum.accumulate(np.where(is_first, np.arange(SLOTS), 0))
        seqs = np.empty(SLOTS, np.int64)
        seqs[by_owner] = self._next_seqs[sorted_owners] + np.arange(SLOTS) - firsts
        self._next_seqs += np.bincount(owners, minlength=count)
        pairs = SLOTS // 2
        swapped = 2 * self._random.choice(pairs, pairs * self._load.reordered_percent // 100, replace=False)
        slots = np.arange(SLOTS)
        slots[swapped], slots[swapped + 1] = swapped + 1, swapped
        return owners[slots], seqs[slots]

    def drain(self) -> None:
        """Process all batches in the ring until they are durable and completed."""
        sequencer, target = self.sequencer, self.sequencer.frontier.durable + SLOTS
        while sequencer.frontier.durable < target:
            sequencer.step(Moment(self._filled, self._filled))
            self.make_durable()

    def make_durable(self) -> None:
        """Act as a replica that has stored everything that is committed."""
        committed = self.sequencer.frontier.committed
        store_release_u64(self._fabric.replica_words[0], records.REPLICA_DURABLE, committed)
        self.sequencer.advance_durable((0,), 1)


def ordering_rate(load: Load) -> Subject:
    """Batches per second of CPU time of one thread, so that other load on the machine does not count."""

    @contextmanager
    def opened() -> Iterator[Run]:
        rings = FilledRings(load)
        for _ in range(ENTRIES // SLOTS):
            rings.fill()
            rings.drain()

        def run(seconds: float) -> float:
            spent = count = 0
            while not count or spent < seconds * NANOSECONDS_PER_SECOND:
                count += rings.fill()
                before = thread_time_ns()
                rings.drain()
                spent += thread_time_ns() - before
            return count * NANOSECONDS_PER_SECOND / spent

        yield run

    return opened
