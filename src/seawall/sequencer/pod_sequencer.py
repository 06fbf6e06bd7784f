"""The sequencer of a pod: runs collectors, workers and the commit frontier, in one of three modes.

    single           one collector and one worker: collect, order, commit in turn, one reservation per cycle
    shard_worker     one worker that drains continuously, next to its collector and the frontier
    scatter_gather   several collectors and workers; each worker has its own clients and its own reservations

All modes have the same roles; they differ in the number of roles and in who steps them: `step` steps all in turn; with
`roles` a caller can step each on its own thread. No two threads may step a role at the same time; `open_session` and
`order_control` call the worker of a client, and count as a step of it.

Checkpoints. When enough positions have passed since the last one, workers take no more refs until every reserved
position is committed and settled; then the rows of all clients and topics are written to the fabric. The items that
workers have decided by then always fit the ring of entries: a fraction of the ring bounds what they drain and hold.
Otherwise the pause might never end.

A start is cold, from the state of the owner, or warm, from the fabric (`recovery`). The caller grants the term. This
module must not know files, brokers or the meaning of a control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import numpy as np

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Offset, Position, SessionEpoch, Term, TopicId
from seawall.errors import InvalidInputError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.records import Words
from seawall.kernels.ordering.collecting import worker_of
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.sequencer.collector import Collector, CollectorSettings
from seawall.sequencer.frontier import CommitFrontier
from seawall.sequencer.goi_frontier import FrontierStop, GoiFrontier
from seawall.sequencer.order_worker import OrderSettings, OrderWorker, SessionOpening
from seawall.sequencer.recovery import RingResume, WarmRecovery
from seawall.sequencer.shared import SequencerShared

#: A worker may drain, and hold, this fraction (1/n) of its part of the ring of entries: twice that still fits between
#: the fill level at which a checkpoint is due (half of the ring) and the one at which ordering stops (nine tenths).
_WORKER_PART: Final = 8


class SequencerMode(StrEnum):
    """How the work is distributed over roles."""

    SINGLE = "single"
    SHARD_WORKER = "shard_worker"
    SCATTER_GATHER = "scatter_gather"


@dataclass(frozen=True, slots=True)
class SequencerSettings:
    """The mode and the number of roles; several workers and collectors only in `scatter_gather`."""

    mode: SequencerMode = SequencerMode.SINGLE
    collectors: int = 1
    workers: int = 1
    collecting: CollectorSettings = field(default_factory=CollectorSettings)
    ordering: OrderSettings = field(default_factory=OrderSettings)
    reconcile_after_ns: int = limits.GOI_RECONCILE_MS * 1_000_000

    def __post_init__(self) -> None:
        is_many = self.mode is SequencerMode.SCATTER_GATHER
        if min(self.collectors, self.workers) < 1 or (not is_many and max(self.collectors, self.workers) > 1):
            raise InvalidInputError(
                f"mode {self.mode} with {self.collectors} collectors and {self.workers} workers: one of each, "
                f"or more of them in mode {SequencerMode.SCATTER_GATHER}"
            )


class Moment(NamedTuple):
    """The time of a step, by the monotonic clock and by the wall clock."""

    now_ns: int
    wall_ns: int


class Role(NamedTuple):
    """One part of the sequencer; `step` does the pending work and returns its amount."""

    name: str
    step: Callable[[Moment], int]


class OpenedSession(NamedTuple):
    """A session that a CONTROL has opened; `start_seq` is for a new client."""

    client_id: ClientId
    session_epoch: SessionEpoch
    start_seq: ClientSeq


class Owner(Protocol):
    """Executes the control entries of the sequencer and stores client rows."""

    def load(self, client_id: ClientId) -> bytes | None:
        """The last saved row of a client (64 bytes), or None."""

    def save(self, rows: bytes) -> None:
        """Store rows, 64 bytes each; the sequencer forgets them."""

    def execute(self, position: Position) -> None:
        """Execute the control entry at a position; everything before it is committed."""

    def raise_ceilings(self) -> None:
        """Make higher ceilings durable for the topics that run out of seqs."""


class RecoveryOwner(Owner, Protocol):
    """An owner that also has the state which the fabric lacks."""

    def repeat_for_topics(self, position: Position) -> None:
        """Apply the topic changes of the control at a position to the frontier again."""

    def opened_at(self, position: Position) -> OpenedSession | None:
        """The session that the control at a position opened, or None."""

    def offset_after(self, topic_id: TopicId, position: Position) -> Offset:
        """The byte offset after a topic's batch at a durable position."""


class PodSequencer:
    """A running sequencer. Create it with `start_cold` or `start_warm`."""

    __slots__ = (
        *(
            "_collectors",
            "_ended_brokers",
            "_owner",
            "_quiescent",
            "_shared",
            "frontier",
            "is_quiescing",
            "roles",
            "term",
            "workers",
        ),
    )

    def __init__(
        self,
        fabric: FabricArrays,
        shared: SequencerShared,
        settings: SequencerSettings,
        owner: Owner,
        term: Term,
        frontier: GoiFrontier,
    ) -> None:
        brokers = len(fabric.pbr)
        ordering = _bounded(settings.ordering, shared.goi_entries // settings.workers)
        self.term: Final = term
        self.frontier: Final = frontier
        self._shared: Final = shared
        self._owner: Final = owner
        self._collectors: Final = tuple(
            Collector(fabric, shared, number, range(number, brokers, settings.collectors), settings.collecting)
            for number in range(settings.collectors)
        )
        self.workers: Final = tuple(
            OrderWorker(fabric, shared, number, term=term, rows=owner, settings=ordering)
            for number in range(settings.workers)
        )
        #: True while workers take no more refs, because of a checkpoint; and the workers that are quiescent.
        self.is_quiescing = False
        self._quiescent: Final[set[int]] = set()
        #: Brokers that have ended and are not replaced yet.
        self._ended_brokers: Final[set[int]] = set()
        #: In the order of the data path.
        self.roles: Final = (
            *(Role(f"collector {number}", _collecting(each)) for number, each in enumerate(self._collectors)),
            *(Role(f"worker {number}", self._working(number, each)) for number, each in enumerate(self.workers)),
            Role("frontier", self._commit),
        )

    @classmethod
    def start_cold(
        cls,
        fabric: FabricArrays,
        frontier: CommitFrontier,
        owner: Owner,
        term: Term,
        settings: SequencerSettings | None = None,
    ) -> PodSequencer:
        """Start in a new fabric, at the frontier's next position: everything before it is on disk."""
        own = settings or SequencerSettings()
        start = frontier.next_position
        shared = _shared(fabric, own, start)
        for word, value in (
            (records.CONTROL_TERM, term),
            (records.CONTROL_COMMITTED, start),
            (records.CONTROL_DURABLE, start),
        ):
            store_release_u64(fabric.control_words, word, value)
        goi_frontier = GoiFrontier(
            *(fabric, shared, frontier),
            on_control=owner.execute,
            term_start=start,
            reconcile_after_ns=own.reconcile_after_ns,
        )
        sequencer = cls(fabric, shared, own, owner, term, goi_frontier)
        sequencer.checkpoint()
        return sequencer

    @classmethod
    def start_warm(
        cls,
        fabric: FabricArrays,
        frontier: CommitFrontier,
        owner: RecoveryOwner,
        settings: SequencerSettings | None = None,
        *,
        moment: Moment,
    ) -> PodSequencer:
        """Continue in a fabric whose sequencer has ended, in the next term. Fills the empty `frontier`."""
        own = settings or SequencerSettings()
        recovery = WarmRecovery(fabric, frontier)
        recovery.replay_topics(owner.repeat_for_topics, owner.offset_after)
        resumes = recovery.restore_results()
        shared = _shared(fabric, own, recovery.start)
        goi_frontier = GoiFrontier(
            *(fabric, shared, frontier),
            on_control=owner.execute,
            term_start=recovery.start,
            limit=recovery.start,
            reconcile_after_ns=own.reconcile_after_ns,
        )
        sequencer = cls(fabric, shared, own, owner, recovery.term, goi_frontier)
        while goi_frontier.step(*moment) is FrontierStop.NEEDS_CEILING:
            owner.raise_ceilings()
        sequencer._restore_clients(recovery, owner)
        sequencer._resume_rings(resumes)
        # Everything is quiescent now; later the rest of the ring may be too small for workers to become quiescent.
        sequencer.checkpoint()
        return sequencer

    @property
    def only_worker(self) -> OrderWorker | None:
        """The worker if there is exactly one, else None."""
        return self.workers[0] if len(self.workers) == 1 else None

    @property
    def collected(self) -> Words:
        """The cursors of all rings, in the layout of `kernels.ordering.collecting`."""
        return self._shared.collected

    # --- work ----------------------------------------------------------------------------------------------------

    def step(self, moment: Moment) -> int:
        """Step every role in the order of the data path; returns the total amount of work."""
        return sum(role.step(moment) for role in self.roles)

    def advance_durable(self, members: Iterable[int], min_replicas: int) -> Position:
        """Advance the durable frontier to that of the members, and free completed slots; returns the frontier."""
        durable = self.frontier.advance_durable(members, min_replicas)
        self.frontier.advance_completion()
        return durable

    def open_session(
        self, client_id: ClientId, session_epoch: SessionEpoch, start_seq: ClientSeq, *, after_gap_ns: int = 0
    ) -> SessionOpening | None:
        """Open a session at the position of a control entry; None if it has to wait."""
        if self.is_quiescing:
            return None
        worker = self._worker_of(client_id)
        return worker.open_session(client_id, session_epoch, start_seq, after_gap_ns=after_gap_ns)

    def order_control(self, topic_id: TopicId | None = None) -> Position | None:
        """Order a control entry that the owner executes; returns its position, or None if it has to wait."""
        return None if self.is_quiescing else self.workers[0].order_control(topic_id=topic_id or 0)

    def abandon(self, client_id: ClientId, end_seq: ClientSeq) -> bool:
        """Skip all undecided seqs of a client below a seq; False if a part has to wait."""
        return not self.is_quiescing and self._worker_of(client_id).abandon(client_id, end_seq)

    def not_busy(self, client_ids: Iterable[ClientId]) -> list[ClientId]:
        """The given clients without anything in flight."""
        busy = set().union(*(worker.busy() for worker in self.workers))
        return [client_id for client_id in client_ids if client_id not in busy]

    def retire(self, client_ids: Sequence[ClientId]) -> Position | None:
        """Order the end of sessions of clients that are not busy; None if it has to wait."""
        position = self.order_control()
        if position is not None:
            for client_id in client_ids:
                window = self._worker_of(client_id).window
                if client_id in window:
                    window.forget(client_id)
        return position

    def touch(self, client_id: ClientId, now_ns: int) -> None:
        """Record activity of a client without a batch."""
        self._worker_of(client_id).touch(client_id, now_ns)

    # --- brokers -------------------------------------------------------------------------------------------------

    def broker_ended(self, broker: int, now_ns: int) -> None:
        """Abandon the unpublished slots of a broker that has ended, and stop all gap timers."""
        self._collector_of(broker).mark_dead(broker)
        self._ended_brokers.add(broker)
        for worker in self.workers:
            worker.pause_gaps(now_ns)

    def broker_began(self, broker: int, now_ns: int) -> None:
        """Resume the ring of a replaced broker; gap timers resume when all ended brokers are replaced."""
        self._collector_of(broker).mark_alive(broker)
        self._ended_brokers.discard(broker)
        if not self._ended_brokers:
            for worker in self.workers:
                worker.resume_gaps(now_ns)

    def cursor(self, broker: int) -> int:
        """The number of collected slots of a broker."""
        return self._collector_of(broker).cursor(broker)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(self) -> Position:
        """Write a checkpoint now; everything must be quiescent, and no role may be stepped meanwhile.

        If it has no space for all clients, the longest idle ones of each worker are evicted first.
        """
        excess = sum(len(worker.window) for worker in self.workers) - self.frontier.checkpoint_clients_max
        for worker in self.workers:
            excess -= worker.evict(excess) if excess > 0 else 0
        rows = [worker.window.rows_in_memory() for worker in self.workers]
        return self.frontier.write_checkpoint(rows[0] if len(rows) == 1 else np.concatenate(rows))

    # --- inside --------------------------------------------------------------------------------------------------

    def _working(self, number: int, worker: OrderWorker) -> Callable[[Moment], int]:
        def step(moment: Moment) -> int:
            if not self.is_quiescing:
                return worker.step(moment.now_ns)
            if number in self._quiescent:
                return 0
            done = worker.flush()
            if not worker.waiting and not worker.unsettled:
                self._quiescent.add(number)
            return done

        return step

    def _commit(self, moment: Moment) -> int:
        before = self.frontier.committed
        if self.frontier.step(*moment) is FrontierStop.NEEDS_CEILING:
            self._owner.raise_ceilings()
            self.frontier.step(*moment)
        if self.is_quiescing:
            # Quiescent workers change nothing until `is_quiescing` is False again.
            if len(self._quiescent) == len(self.workers) and self.frontier.reserved == self.frontier.committed:
                self.checkpoint()
                self._quiescent.clear()
                self.is_quiescing = False
        elif self.frontier.is_checkpoint_due:
            self.is_quiescing = True
        return self.frontier.committed - before

    def _worker_of(self, client_id: ClientId) -> OrderWorker:
        return self.workers[worker_of(_signed(client_id), len(self.workers))]

    def _collector_of(self, broker: int) -> Collector:
        return self._collectors[broker % len(self._collectors)]

    def _restore_clients(self, recovery: WarmRecovery, owner: RecoveryOwner) -> None:
        def number_of(client_id: ClientId) -> int:
            return worker_of(_signed(client_id), len(self.workers))

        def import_client(client_id: ClientId) -> bool:
            return self._worker_of(client_id).fetch(client_id)

        def open_session(position: Position) -> None:
            opened = owner.opened_at(position)
            if opened is None:
                return
            worker = self._worker_of(opened.client_id)
            if opened.client_id not in worker.window and not import_client(opened.client_id):
                worker.make_space()
            # A stored row may already include this session and later ones.
            elif worker.window.state(opened.client_id).session_epoch >= opened.session_epoch:
                return
            worker.window.open(*opened)

        recovery.replay_clients(
            [worker.window for worker in self.workers],
            number_of,
            on_control=open_session,
            import_client=import_client,
        )

    def _resume_rings(self, resumes: Iterable[RingResume]) -> None:
        for broker, resume in enumerate(resumes):
            self._collector_of(broker).resume(broker, resume.cursor, resume.taken)


def _collecting(collector: Collector) -> Callable[[Moment], int]:
    def step(moment: Moment) -> int:
        return collector.step(moment.now_ns)

    return step


def _shared(fabric: FabricArrays, settings: SequencerSettings, start: Position) -> SequencerShared:
    return SequencerShared.make(len(fabric.goi), settings.collectors, settings.workers, start=start)


def _bounded(ordering: OrderSettings, entries: int) -> OrderSettings:
    """The settings, bounded by a fraction of the worker's part of the ring of entries."""
    most = entries // _WORKER_PART
    return replace(ordering, drain_refs=min(ordering.drain_refs, most), hold_max=min(ordering.hold_max, most))


def _signed(client_id: ClientId) -> int:
    return int(np.int64(np.uint64(client_id)))
