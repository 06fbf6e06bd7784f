"""The commit frontier of a pod: `step` commits the entries that workers have written, and writes their results.

    ranges of all workers ─▶ heap ─▶ limit ─▶ commit_run ─▶ side array, committed, results
    replica vector ─▶ durable ─▶ completion vector, floor

`kernels.ordering.goi_frontier` has the rules of a run. Topics and the hybrid clock are those of a `CommitFrontier`,
whose next position is here the position after the last decided entry.

Stops. A topic without seqs below its ceiling stops the order (NEEDS_CEILING): the owner makes a higher one durable and
steps again. The owner executes a CONTROL entry: it is called with the position when everything before is committed, and
advances the frontier's next position past it (`CommitFrontier.number_control`).

Watchdog. If positions are reserved and the limit has not moved for a while, the watchdog scans the index itself and
commits the entries found there although no worker reported them. It counts these cases: they indicate a bug.

Workers may overwrite entries below the floor. The floor is at most `durable` and the position of the last checkpoint,
so everything needed for recovery is still there. A checkpoint is of one position: all reserved positions are committed,
and settled by their worker, so that no row shows a refused batch as stored. The caller has stopped the workers at a
point where none has a decided batch without a position: its client's row would show such a batch as stored, and a crash
would lose it.

One thread writes all of this; no lock and no clock of its own. After a crash, see `recovery`. This module must not know
files, connections, or the meaning of a control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum

import numpy as np

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import Position, Term
from seawall.errors import InvalidInputError, InvariantError, WrongStateError
from seawall.fabric import records
from seawall.fabric.arrays import Bytes, FabricArrays
from seawall.fabric.checkpoint import Checkpoint, newest_checkpoint, write_checkpoint
from seawall.fabric.layout import CHECKPOINT_ROW_SIZE
from seawall.kernels.admission.frontier import LAST_TIMESTAMP, NEXT_POSITION, RUN_DONE, RUN_NEEDS_CEILING, STATUS_OK
from seawall.kernels.ordering import goi_frontier as kernels
from seawall.kernels.ordering.range_heap import RANGE_WORDS, drain_ranges, join_ranges
from seawall.kernels.runtime.atomics import load_acquire_u64, store_release_u64
from seawall.kernels.runtime.slots import ready_slots
from seawall.sequencer import shared as private
from seawall.sequencer.frontier import CommitFrontier
from seawall.sequencer.shared import SequencerShared
from seawall.wire.format.codes import AckStatus, ErrorCode

assert (kernels.CONTROL_COMMITTED, kernels.CONTROL_DURABLE) == (records.CONTROL_COMMITTED, records.CONTROL_DURABLE)
assert records.SIDE_ENTRY.itemsize == kernels.SIDE_WORDS * 8
assert records.COMPLETION.itemsize == kernels.COMPLETION_WORDS * 8
assert records.REPLICA.itemsize == kernels.REPLICA_WORDS * 8
assert private.NOTE.itemsize == kernels.NOTE_WORDS * 8
assert private.RANGE_WORDS == RANGE_WORDS
assert kernels.RESULT_TOKEN == records.RESULT_TOKEN
assert (kernels.FLAG_STRONG_ORDER, kernels.FLAG_SKIP) == (records.FLAG_STRONG_ORDER, records.FLAG_SKIP)
assert (kernels.FLAG_REFUSED, kernels.REFUSED_REASON_SHIFT) == (records.FLAG_REFUSED, records.REFUSED_REASON_SHIFT)
assert (kernels.FLAG_NOP, kernels.FLAG_CONTROL) == (records.FLAG_NOP, records.FLAG_CONTROL)
assert kernels.NO_BROKER == records.NO_BROKER
assert AckStatus.DUPLICATE == kernels.STATUS_DUPLICATE
assert (*(ErrorCode.CLIENT_SEQ_SKIPPED, ErrorCode.NOT_ALLOWED_BY_TOPIC),) == (
    kernels.REASON_SKIPPED,
    kernels.REASON_NOT_ALLOWED,
)

_MILLISECOND_NS = 1_000_000
_LOW_HALF = 0xFFFF_FFFF


class FrontierStop(IntEnum):
    """Why a step stopped."""

    DONE = RUN_DONE  #: everything that workers have reported is committed
    NEEDS_CEILING = RUN_NEEDS_CEILING  #: the next batch needs a higher ceiling of its topic
    HOLE = kernels.RUN_HOLE  #: a reported entry is missing (yet)


class GoiFrontier:
    """Commits the global order index of one pod, in one term, starting at `committed` of the fabric."""

    __slots__ = (
        *("_advanced_ns", "_blogs", "_checkpoint_position", "_completion", "_control", "_counters", "_fabric"),
        *(
            "_generation",
            "_goi",
            "_heap",
            "_laps",
            "_lease_ns",
            "_limit",
            "_on_control",
            "_ranges",
            "_reconcile_ns",
            "_replicas",
            "_results",
        ),
        *("_run", "_settled", "_side", "_term", "frontier", "reconciled"),
    )

    def __init__(
        self,
        fabric: FabricArrays,
        shared: SequencerShared,
        frontier: CommitFrontier,
        *,
        on_control: Callable[[Position], None],
        term_start: Position,
        limit: Position | None = None,
        reconcile_after_ns: int = limits.GOI_RECONCILE_MS * _MILLISECOND_NS,
        lease_ns: int = limits.SEQUENCER_LEASE_MS * _MILLISECOND_NS,
    ) -> None:
        """From `term_start` on only entries of the current term count; all entries below `limit` are written."""
        committed = load_acquire_u64(fabric.control_words, records.CONTROL_COMMITTED)
        if frontier.next_position != committed or not committed <= (limit or committed) <= shared.reserved:
            raise InvalidInputError(
                f"committed is {committed}, the next position {frontier.next_position}, the limit {limit}, "
                f"reserved {shared.reserved}: recover first"
            )
        self.frontier = frontier
        #: How often the watchdog has found unreported entries.
        self.reconciled = 0
        self._fabric = fabric
        self._on_control = on_control
        self._term = Term(load_acquire_u64(fabric.control_words, records.CONTROL_TERM))
        self._counters = shared.counters.view(np.uint64)
        self._ranges = shared.ranges
        capacity = limits.GOI_RANGES_WAITING_MAX
        self._heap = (
            np.zeros(capacity, np.int64),
            np.zeros(capacity, np.int64),
            np.zeros(1, np.int64),
            np.zeros(2, np.int64),
        )
        self._goi = fabric.goi_words
        self._side = fabric.side_words
        self._control = fabric.control_words.view(np.int64)
        self._replicas = fabric.replica_all_words
        self._completion = fabric.completion_all_words
        self._results = fabric.result_all_words
        self._laps = np.zeros(len(fabric.pbr), np.int64)
        self._run = (
            *(self._term & 0xFFFF, int(term_start), self._goi, self._side, shared.notes.view(np.int64)),
            *(fabric.blog_all_bytes, self._laps, self._completion, self._results, self._control, *frontier.state),
        )
        newest = newest_checkpoint(fabric)
        self._checkpoint_position = newest.position if newest else committed
        self._generation = newest.generation if newest else 0
        self._settled = shared.settled
        store_release_u64(self._counters, private.FLOOR, min(self.durable, self._checkpoint_position))
        self._limit = int(limit or committed)
        self._advanced_ns: int | None = None
        self._reconcile_ns = reconcile_after_ns
        self._lease_ns = lease_ns

    @property
    def committed(self) -> Position:
        """Positions below it are ordered and visible to readers."""
        return Position(int(self._control[records.CONTROL_COMMITTED]))

    @property
    def durable(self) -> Position:
        """Positions below it are durable on every member of the view."""
        return Position(int(self._control[records.CONTROL_DURABLE]))

    @property
    def reserved(self) -> Position:
        """Positions below it are reserved by workers."""
        return Position(load_acquire_u64(self._counters, private.RESERVED))

    @property
    def checkpoint_position(self) -> Position:
        """The position at which recovery would begin to replay."""
        return Position(self._checkpoint_position)

    @property
    def is_checkpoint_due(self) -> bool:
        """True if the ring has filled so far since the last checkpoint that ordering would soon stall."""
        entries = int(self.reserved) - self._checkpoint_position
        return entries * 100 >= limits.GOI_CHECKPOINT_PERCENT * len(self._fabric.goi)

    def step(self, now_ns: int, wall_ns: int) -> FrontierStop:
        """Commit all entries that are ready; `now_ns` is for lease and watchdog, `wall_ns` for timestamps."""
        store_release_u64(self._fabric.control_words, records.CONTROL_LEASE, now_ns + self._lease_ns)
        before = limit = self._limit
        for ring in self._ranges:
            limit = drain_ranges(ring.words, ring.counters, *self._heap, limit)
        if limit == before:
            limit = self._watch(now_ns)
        if limit > before:
            self._advanced_ns = now_ns
            self._limit = limit
        while True:
            code = kernels.commit_run(limit, wall_ns, *self._run)
            if code != kernels.RUN_CONTROL:
                break
            self._execute()
        if code == kernels.RUN_STALE_TERM:
            raise InvariantError("INV-GOI-TERM", f"position {self.committed} is not of term {self._term}")
        return FrontierStop(code)

    def passed_by(self, position: Position) -> None:
        """Skip a position that was used without an entry, after all reserved ones; it is committed and durable."""
        self._limit = position + 1

    def advance_durable(self, members: Iterable[int], min_replicas: int) -> Position:
        """Advance the durable frontier to that of all members of the view, if there are enough; returns it."""
        mask = sum(1 << replica for replica in set(members))
        if not 0 <= mask < 1 << limits.FABRIC_REPLICAS_MAX or min_replicas < 1:
            raise InvalidInputError(
                f"members {mask:#x}, at least {min_replicas}: they are from 0 to {limits.FABRIC_REPLICAS_MAX - 1}, and "
                f"nothing is durable without one"
            )
        durable = kernels.advance_durable(self._control, self._replicas, mask, min_replicas)
        self._raise_floor()
        return Position(int(durable))

    def advance_completion(self) -> int:
        """Complete the slots of brokers whose batches are durable, which frees their bytes; returns how many."""
        return int(kernels.advance_completion(self._control, self._results, self._completion, self._laps.size))

    @property
    def checkpoint_clients_max(self) -> int:
        """The number of clients that fit into a checkpoint next to the current topics."""
        return (self._fabric.checkpoints[0].size - self.frontier.export_rows().size) // CHECKPOINT_ROW_SIZE - 1

    def write_checkpoint(self, clients: Bytes) -> Position:
        """Write a checkpoint with the rows of all clients and topics; returns its position.

        No worker may have decided items without a position.
        """
        committed = self.committed
        if self.reserved != committed or int(self._settled[:: private.LINE_WORDS].min()) < committed:
            raise WrongStateError(
                f"{self.reserved} positions are reserved, {committed} committed, and settled by the workers below "
                f"{self._settled[:: private.LINE_WORDS].min()}: step all of them first"
            )
        write_checkpoint(
            self._fabric,
            Checkpoint(
                generation=self._generation + 1,
                position=committed,
                term=self._term,
                timestamp_ns=self.frontier.last_timestamp_ns,
                clients=clients,
                topics=self.frontier.export_rows(),
            ),
        )
        self._generation += 1
        self._checkpoint_position = committed
        self._raise_floor()
        return committed

    def _raise_floor(self) -> None:
        store_release_u64(self._counters, private.FLOOR, min(self.durable, self._checkpoint_position))

    def _watch(self, now_ns: int) -> int:
        """The limit; scans the index itself if the limit has not moved for too long."""
        limit = self._limit
        open_positions = int(self.reserved) - limit
        if open_positions == 0 or self._advanced_ns is None:
            self._advanced_ns = now_ns
        elif now_ns - self._advanced_ns >= self._reconcile_ns:
            self._advanced_ns = now_ns
            found = int(ready_slots(self._goi, records.GOI_TOKEN, limit, open_positions))
            if found:
                self.reconciled += 1
                return int(join_ranges(*self._heap, limit + found))
        return limit

    def _execute(self) -> None:
        """Let the owner execute the CONTROL at the next position."""
        position = self.committed
        self._on_control(position)
        numbers = self.frontier.state[-1]
        check(
            int(numbers[NEXT_POSITION]) == position + 1,
            "INV-GOI-ORDER",
            f"after the control at {position} the next position is {numbers[NEXT_POSITION]}",
        )
        slot = position & (len(self._fabric.goi) - 1)
        topic_id = int(self._goi[slot * records.SLOT_WORDS + 1]) & _LOW_HALF
        timestamp_ns = int(numbers[LAST_TIMESTAMP])
        kernels.write_side(*(self._side, slot * kernels.SIDE_WORDS, topic_id, STATUS_OK, 0, 0, 0, timestamp_ns))
