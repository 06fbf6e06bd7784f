"""A pod whose rings are filled beforehand: what collecting, ordering and committing cost, and nothing else.

Brokers are an array expression that fills a whole ring between two stretches of time that are measured; a replica is
one number. Batches lie in the BLog as headers that are never read but for the length of their block.

What is timed is one thread that does all there is to do for a ring full of batches: collector, worker, commit frontier,
checkpoints that come due meanwhile, and the way back (durable, completion).
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
#: Sixteen rings full between two checkpoints, which cost as much as there are clients.
ENTRIES: Final = 1 << 20
#: Bytes of a batch and of its block: one small record.
BATCH_SIZE: Final = 128
RAW_SIZE: Final = 32
RAW_LENGTH_AT: Final = 80
CEILING: Final = Seq(1 << 61)
TOPIC: Final = TopicId(7)
FIRST_CLIENT: Final = 1_000
SESSION_EPOCH: Final = 1


@dataclass(slots=True)
class NoOwner:
    """An owner of a sequencer that keeps no rows and orders no changes."""

    frontier: CommitFrontier

    def load(self, _client_id: ClientId, /) -> bytes | None:
        """No rows are kept."""
        return None

    def save(self, _rows: bytes, /) -> None:
        """Rows that leave are not asked for again."""

    def execute(self, _position: Position, /) -> None:
        """A change of nothing."""
        self.frontier.number_control(0)

    def raise_ceilings(self) -> None:
        """The ceiling is never reached."""
        raise InvariantError("INV-FRONTIER-CEILING", "a benchmark has run out of seqs")


def frontier_with_topic(*, is_strong: bool) -> CommitFrontier:
    """A commit frontier that has the one topic."""
    frontier = CommitFrontier()
    frontier.add_topic(TopicNumbers(TOPIC, ceiling=CEILING, is_strong=is_strong))
    return frontier


def client_rows(count: int) -> bytes:
    """Rows of clients with open sessions that have published nothing yet."""
    rows = np.zeros((count, CLIENT_ROW_SIZE // 8), np.uint64)
    rows[:, 0] = FIRST_CLIENT + np.arange(count)
    rows[:, 1] = SESSION_EPOCH
    rows[:, 2] = 1
    return rows.tobytes()


@dataclass(frozen=True, slots=True)
class Load:
    """What is in the rings: of how many clients, how many batches of a hundred out of their place, of which order."""

    clients: int = 1
    reordered_percent: int = 0
    is_strong: bool = False


class FilledRings:
    """A sequencer of one worker, and a broker whose ring is filled at once."""

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
        """Publish a ring full of batches; how many."""
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
        """Whose batches come, and which."""
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
        places = np.arange(SLOTS)
        places[swapped], places[swapped + 1] = swapped + 1, swapped
        return owners[places], seqs[places]

    def drain(self) -> None:
        """Do all there is to do for what was filled in."""
        sequencer, target = self.sequencer, self.sequencer.frontier.durable + SLOTS
        while sequencer.frontier.durable < target:
            sequencer.step(Moment(self._filled, self._filled))
            self.make_durable()

    def make_durable(self) -> None:
        """A replica that has everything at once."""
        committed = self.sequencer.frontier.committed
        store_release_u64(self._fabric.replica_words[0], records.REPLICA_DURABLE, committed)
        self.sequencer.advance_durable((0,), 1)


def ordering_rate(load: Load) -> Subject:
    """Batches per second of one thread, by the time that it ran: what others do on the machine is not its own."""

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
