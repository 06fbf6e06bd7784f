"""The orderer of a store with brokers and a sequencer in the same process: a pod.

    appends ─▶ rings of brokers ─▶ sequencer ─▶ order ─▶ applier ─▶ log and segments of the store
                                                      ◀─ numbers, from the result rings

One commit of the store is one cycle of the pod: the appends of a group are published to the brokers, ordered, and
staged in that order; the commit leader writes them; then they are durable, and their slots are free again. A change
that is not an append takes a position in the same order: everything before it is applied, then the store makes it.

Batches of a session go through the broker of their client, others through the broker of their topic. So the batches of
one publisher keep the order in which it published them, whatever the order setting of the topic.

Besides the rings of the brokers there may be rings of the network (`arrivals`), to which connections publish. Every
commit orders what is there, and a commit may be made for that alone. The connections take their answers themselves.
What does not fit such a commit waits for the next, and so does what the disk has no space for although space was
reserved (`is_stuck`).

Outside of a commit everything that is ordered is in the store, unless `is_behind`. Every append of a group is decided
when its commit is finished. With order 5 only the next batch of a client is published, so no batch is ever held: one
that is out of turn, because an earlier one was refused or never published, is refused, and its client seq can be used
again.

The fabric of the pod is created when the store opens and removed when it closes; one that a killed process left behind
is removed. Batches that were ordered there and are not in the log are lost with the process, and reported as a gap, the
same as without brokers. This module must not know threads or waiters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import numpy as np

from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.config import FabricConfig
from seawall.core.types import ClientId, Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.commit.admission import Admission, need_of, record_outcome
from seawall.engine.commit.appends import Append, Commit, logged_size
from seawall.engine.commit.commit_cycle import CommitCycle, SequencerArrays
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.ordering.applier import Applier, ApplyCommit
from seawall.engine.ordering.arrivals import Arrivals
from seawall.engine.ordering.client_gates import ClientGates
from seawall.engine.ordering.client_rows import StoredClientRows
from seawall.engine.ordering.ordered_batches import ordered_batches
from seawall.engine.ordering.orderer import Opened, SessionSpec
from seawall.engine.ordering.pod_answers import accepted_on_arrival, remembered
from seawall.engine.store.opening import open_store
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import CallerError, FatalError, LimitError, RetryableError, SeawallError
from seawall.fabric import records
from seawall.fabric.header import Identity
from seawall.fabric.layout import FabricSizes
from seawall.fabric.mapping import Fabric
from seawall.fabric.naming import TOKEN_SIZE, fabric_path, forget_fabric, record_fabric, remove_leftover_fabric
from seawall.io.interfaces import ReadableBuffer, SharedMemory
from seawall.io.process.shared_lock import MemoryLock
from seawall.kernels.ordering.applying import NOP_SIZE
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.limits import BATCH_HEADER_SIZE, GOI_CHECKPOINT_PERCENT, SESSION_ABANDONED_MAX
from seawall.sequencer.frontier import Numbered
from seawall.sequencer.pod_sequencer import Moment, PodSequencer, SequencerSettings
from seawall.topics.config import Order
from seawall.topics.keys import key_of
from seawall.topics.state import TopicState
from seawall.wire.format.batches import batch_header
from seawall.wire.format.codes import POSITION_UNKNOWN, AckLevel, AckStatus, BatchFlags
from seawall.wire.format.frames import checksum

R = TypeVar("R")

#: The only replica: its progress alone decides what is durable.
_REPLICA: Final = 0
_FOR_EVER: Final = (1 << 63) - 1
#: Idle steps that workers get to come to rest for a checkpoint; more do not help.
_IDLE_STEPS: Final = 8


class SequencedOrderer:
    """Runs the brokers and the sequencer of one store, and applies their order to it."""

    def __init__(
        self,
        parts: StoreParts,
        maintenance: Maintenance,
        *,
        memory: SharedMemory,
        boot_id: bytes,
        config: FabricConfig,
        settings: SequencerSettings | None = None,
        networks: int = 0,
    ) -> None:
        """Create the fabric and start the sequencer. Connections publish to its last `networks` rings."""
        parts.controls.begin_change()
        self._parts = parts
        self._guard = parts.guard
        self._clock = parts.machine.clock
        self._frontier = frontier = parts.writer.frontier
        self._sessions = sessions = parts.sessions
        self._admission = Admission(parts)
        self._fabric = _new_fabric(parts, memory, boot_id, config)
        self._arrays = arrays = self._fabric.arrays
        blog_size = len(arrays.blog_all_bytes) // len(arrays.pbr)
        self._applier = Applier(parts, maintenance, goi_entries=len(arrays.goi), blog_size=blog_size)
        self._rows = StoredClientRows(sessions)
        #: For the sequencer: load and save the rows of clients that no worker has.
        self.load, self.save = self._rows.load, self._rows.save
        #: The change to make at the position of the next CONTROL entry.
        self._change: Callable[[], None] | None = None
        #: Unanswered appends by the number that they were published with.
        self._unanswered: dict[int, Append] = {}
        self._published_total = 0
        #: Pairs of an append and a later one of the group with the same key, which gets the same outcome.
        self._repeats: list[tuple[Append, Append]] = []
        self._gates = ClientGates(sessions)
        #: Topics with caps or ages that were appended to since the last `tidy_up`.
        self._limited: list[TopicState] = []
        self.sequencer = PodSequencer.start_cold(arrays, frontier, self, parts.term, settings)
        self.brokers = [BrokerRing(arrays, broker) for broker in range(len(arrays.pbr) - networks)]
        self.arrivals = Arrivals(arrays, networks, self.sequencer.collected)
        #: True if the disk has no space for what is ordered: the next commit tries again.
        self.is_stuck = False
        #: Commits arrivals without a step of the sequencer.
        self.cycle = CommitCycle(parts, self._applier.reservation_for, self._shared_with_cycles())

    def close(self) -> None:
        """Remove the fabric by name, under the lock of the directory. Its memory is unmapped with the last array."""
        self._fabric.remove()
        forget_fabric(self._parts.machine.files, self._parts.directory.path)

    # --- appends -------------------------------------------------------------------------------------------------

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Order appends and stage them; each gets its numbers or its error. Without appends, stage what has arrived.

        One commit at a time. Eligible arrivals are staged by one kernel call (`commit_cycle`).
        """
        if not appends and self.is_at_rest:
            commit = self.cycle.begin()
            if commit is not None:
                return commit
        self._parts.pending.apply()
        commit = Commit()
        self._gates.clear()
        now = self._clock.wall_ns()
        admitted, full_topics = self._reserve(self._admission.screen(appends, commit, now), now)
        for append in admitted:
            self._publish(append)
        self._repeats = [
            (first, append)
            for append in appends
            if append.flags & BatchFlags.KEYED and append.error is None and append.numbered is None
            if (first := commit.keyed[append.topic_id, key_of(append.client_id, append.client_seq)]) is not append
        ]
        self._order_refusing(full_topics)
        self._take_answers()
        commit = self._stage_some() or commit
        self._applier.release()
        commit.limited += self._limited
        self._limited = []
        return commit

    @property
    def is_at_rest(self) -> bool:
        """True if a cycle may begin: one worker, nothing staged, and no checkpoint of the order in progress."""
        sequencer = self.sequencer
        return sequencer.only_worker is not None and not sequencer.is_quiescing and self._applier.is_caught_up

    def _shared_with_cycles(self) -> SequencerArrays | None:
        """The arrays of the sequencer that cycles need; None with several workers: others could order first."""
        worker, fabric = self.sequencer.only_worker, self._arrays
        if worker is None:
            return None
        counters, state = worker.rest_words
        return SequencerArrays(
            worker.window.arrays,
            (
                *(fabric.control_words, counters, fabric.replica_words[_REPLICA], fabric.tail_all_words),
                *(fabric.completion_all_words, state, self.sequencer.collected, fabric.pbr_all_words),
                *(fabric.blog_all_bytes, fabric.result_all_words),
            ),
            self._applier.reached,
            self._applier.progress,
            len(fabric.pbr),
            GOI_CHECKPOINT_PERCENT * len(fabric.goi) // 100,
        )

    def cycles_ended(self) -> None:
        """Bring the sequencer up to date after written cycles: the store has everything that is ordered."""
        self.cycle.settle_grants()
        self.sequencer.frontier.passed_by(Position(self._applier.next_position - 1))
        self._rows.forget()

    def begin_next(self, _appends: Sequence[Append]) -> Commit | None:
        """None: no commit begins before the one in flight is finished."""
        return None

    def commit_one(
        self, _id: TopicId, _block: ReadableBuffer, _record_count: int, _state: MemoryLock
    ) -> Numbered | None:
        """None: every batch goes through the sequencer or a cycle."""
        return None

    def finish(self, commit: Commit) -> None:
        """Let a written commit take effect, and free its slots."""
        if isinstance(commit, ApplyCommit):
            self._applier.finish(commit)
            self._advance()
        elif commit.is_cycle:
            self.cycle.finish(commit)
            self.cycles_ended()
            if self.cycle.has_slots:
                self.sequencer.frontier.advance_completion()
        if self._unanswered or self._repeats:
            self._take_answers()
        if self._unanswered:
            lost = next(iter(self._unanswered.values()))
            raise FatalError(
                f"batch {lost.client_seq} of client {lost.client_id:016x} was not decided (INV-DELIVERY-ONCE): "
                "close the log and open it again"
            )
        self._repeats = []

    def _reserve(self, appends: list[Append], now: int) -> tuple[list[Append], list[TopicState]]:
        """Reserve space for appends and arrivals, before they are ordered.

        Returns the appends, none if there is no space for all of them, and the topics that refuse their arrivals.
        """
        by_topic: dict[TopicId, list[Append]] = {}
        for append in appends:
            by_topic.setdefault(append.topic_id, []).append(append)
        needs = [(self._admission.topic(topic_id), need_of(group)) for topic_id, group in by_topic.items()]
        logged = sum(max(NOP_SIZE, logged_size(len(each.block))) for each in appends)
        arriving, arriving_logged = self.arrivals.needs(self._parts.catalog.find)
        accepted = [
            (topic, need) for topic, need in arriving if self._admission.has_space(topic, need, TimestampNs(now))
        ]
        try:
            if appends or arriving:
                # Arrivals may take several commits: reserve log space for the first; later ones reserve their own.
                self._applier.reserve(needs + accepted, logged + min(arriving_logged, self._applier.commit_size_max))
        except (CallerError, RetryableError) as error:
            for append in appends:
                append.error = error
            return [], [topic for topic, _ in arriving]
        return appends, [topic for topic, need in arriving if (topic, need) not in accepted]

    def _order_refusing(self, topics: Sequence[TopicState]) -> None:
        """Order everything there is, and refuse the batches of topics that have no space."""
        for topic in topics:
            self._frontier.set_full(topic.topic_id, True)
        try:
            self._order()
        finally:
            for topic in topics:
                self._frontier.set_full(topic.topic_id, False)

    def _publish(self, append: Append) -> None:
        """Put a batch into the ring of a broker, its bytes straight into the BLog."""
        order = self._admission.topic(append.topic_id).config.order
        if append.has_session and order is Order.CLIENT and not self._gates.check(append):
            return
        broker = self.brokers[(append.client_id if append.has_session else append.topic_id) % len(self.brokers)]
        size = BATCH_HEADER_SIZE + len(append.block)
        try:
            index = broker.reserve(size, _FOR_EVER)
            while index is None:
                self._free_slots()
                index = broker.reserve(size, _FOR_EVER)
        except LimitError as error:
            append.error = error
            return
        self._gates.published(append)
        header = batch_header(
            append.block,
            topic_id=append.topic_id,
            client_id=append.client_id,
            client_seq=append.client_seq,
            session_epoch=append.session_epoch,
            record_count=append.record_count,
            timestamp_ns=TimestampNs(0),
            codec=append.codec,
            raw_length=append.raw_length or None,
            flags=append.flags,
        )
        target = broker.reserved_bytes(index)
        target[:BATCH_HEADER_SIZE] = np.frombuffer(header.header_bytes(), np.uint8)
        target[BATCH_HEADER_SIZE:] = np.frombuffer(append.block, np.uint8)
        # Order 0 is acknowledged on arrival, and gets its numbers once it is durable; this needs both.
        level = AckLevel.DURABLE if order is Order.NONE else AckLevel.ORDERED
        self._unanswered[self._published_total] = append
        broker.publish_reserved(index, self._published_total, TopicDefaults(int(order), level))
        self._published_total += 1
        if order is Order.NONE:
            append.numbered = accepted_on_arrival(append)

    def _take_answers(self) -> None:
        for broker in self.brokers:
            while (answers := broker.answers()).size:
                for answer in answers.tolist():
                    self._answer(*answer)
        for first, append in self._repeats:
            append.error = first.error
            if first.numbered is not None:
                append.numbered = first.numbered._replace(status=AckStatus.DUPLICATE)

    def _answer(
        self,
        number: int,
        _index: int,
        _client_id: int,
        _client_seq: int,
        position: int,
        base_seq: int,
        timestamp_ns: int,
        original: int,
        reason: int,
        status: int,
        _level: int,
    ) -> None:
        append = self._unanswered.pop(number)
        if status == AckStatus.DUPLICATE:
            position = original
            if not base_seq:
                batch = (append.client_id, append.session_epoch, append.client_seq, checksum(append.block))
                status, reason, position, base_seq, timestamp_ns = remembered(self._sessions, *batch, position)
        numbered = Numbered(
            AckStatus(status),
            reason,
            Position(position if position != POSITION_UNKNOWN else 0),
            append.topic_id,
            Seq(base_seq),
            Offset(0),
            TimestampNs(timestamp_ns),
            append.record_count,
            append.raw_length or len(append.block),
            BATCH_HEADER_SIZE + len(append.block),
        )
        record_outcome(append, numbered)

    # --- changes that are not appends ----------------------------------------------------------------------------

    def change(self, apply_change: Callable[[], R], topic_id: TopicId | None = None) -> R:
        """Order a change, and make it at its position: everything ordered before it is in the store by then."""
        self._guard.require_usable()
        return self._change_at(partial(self.sequencer.order_control, topic_id), apply_change)

    def _change_at(self, order: Callable[[], Position | None], apply_change: Callable[[], R]) -> R:
        results: list[R] = []
        errors: list[Exception] = []

        def execute() -> None:
            # Even if it fails, the order continues after this position.
            try:
                results.append(apply_change())
            except (SeawallError, OSError) as error:
                errors.append(error)

        def try_order() -> bool:
            # Set only once it is ordered: a stalled order must not leave a change behind.
            self._change = execute if order() is not None else None
            return self._change is not None

        self._order_until(try_order)
        if errors:
            raise errors[0]
        return results[0]

    def open_session(self, wanted: SessionSpec, log_session: Callable[[], Opened]) -> Opened:
        """Order the opening of a session; later batches of an older session are refused.

        If it abandons, SKIPs after that position abandon everything undecided below its start.
        """
        client_id, start_seq = wanted.client_id, wanted.start_seq
        epoch, next_seq, _ = self._sessions.open(client_id, start_seq, is_drawn=wanted.is_drawn)
        if wanted.abandons and start_seq - next_seq > SESSION_ABANDONED_MAX:
            raise LimitError(
                f"client {client_id:016x} abandons batches {next_seq} to {start_seq - 1}: at most "
                f"{SESSION_ABANDONED_MAX} at once; publish under another client id"
            )

        def order() -> Position | None:
            opening = self.sequencer.open_session(client_id, epoch, next_seq, after_gap_ns=wanted.gap_ns)
            return None if opening is None else opening.position

        opened = self._change_at(order, log_session)
        if wanted.abandons and opened[1] < start_seq:
            self._order_until(lambda: self.sequencer.abandon(client_id, start_seq))
            return opened[0], start_seq
        return opened

    def retire(
        self, client_ids: Sequence[ClientId], log_retired: Callable[[Sequence[ClientId]], None]
    ) -> Sequence[ClientId]:
        """Order the retirement of the sessions that have no batch in flight, and log it; the retired ones."""
        self._guard.require_usable()
        self._order()
        self._apply_all()
        retired = self.sequencer.not_busy(client_ids)

        def order() -> Position | None:
            retired[:] = self.sequencer.not_busy(retired)
            self._rows.retired = frozenset(retired)
            return self.sequencer.retire(retired)

        if retired:
            try:
                self._change_at(order, lambda: log_retired(retired))
            finally:
                self._rows.retired = frozenset()
        return retired

    # --- the order -----------------------------------------------------------------------------------------------

    def _order_until(self, try_order: Callable[[], bool]) -> None:
        """Repeat `try_order` until it succeeds, freeing space in the order, and apply everything up to it."""
        while not try_order():
            if not self._order():
                raise FatalError("the order makes no progress: close the log and open it again")
            self._apply_all()
        self._order()
        self._apply_all()
        # A change at the last position is durable by now.
        self._advance()

    def _order(self) -> int:
        """Step the sequencer until it is idle; the amount of work it did."""
        done = idle = 0
        while idle < _IDLE_STEPS:
            work = self.sequencer.step(Moment(self._clock.monotonic_ns(), self._clock.wall_ns()))
            done += work
            idle = 0 if work else idle + 1
            if not work and not self.sequencer.is_quiescing:
                break
        return done

    def _free_slots(self) -> None:
        """Free the slots of a full ring: order and apply what is in it."""
        if not self._order() and not self._apply_all():
            raise FatalError("the rings of the brokers are full and make no progress: close the log and open it again")
        self._apply_all()
        self._take_answers()

    def _stage_some(self) -> ApplyCommit | None:
        """Stage what is ordered. If appends wait for it, everything but the last commit is written here."""
        if not self._unanswered:
            self.is_stuck = False
            try:
                return self._begin_apply()
            except (CallerError, RetryableError):
                # Not detected earlier: it was held when space was reserved, or the space is gone since.
                self.is_stuck = True
                return None
        while True:
            commit = self._begin_apply()
            if commit is None or commit.scan.first + commit.scan.count == self.sequencer.frontier.committed:
                return commit
            self._execute(commit)

    @property
    def is_behind(self) -> bool:
        """True if another commit, without appends, would have something to do."""
        if self.is_stuck:
            return False
        if self._applier.next_position < self.sequencer.frontier.committed or self.arrivals.has_any():
            return True
        return any(worker.waiting for worker in self.sequencer.workers)

    @property
    def held(self) -> int:
        """Batches that are held for a missing earlier one of their client; a timeout may decide them."""
        return sum(worker.held for worker in self.sequencer.workers)

    def _apply_all(self) -> int:
        """Apply everything that is ordered; how many entries."""
        done = 0
        while (commit := self._begin_apply()) is not None:
            done += commit.scan.count
            self._execute(commit)
        return done

    def _begin_apply(self) -> ApplyCommit | None:
        first = self._applier.next_position
        count = self.sequencer.frontier.committed - first
        fabric = self._arrays
        return self._applier.begin(fabric.goi, fabric.side, first, count, fabric.blog_all_bytes)

    def _execute(self, commit: ApplyCommit) -> None:
        self._applier.write(commit)
        self._applier.finish(commit)
        self._limited += commit.limited
        self._advance()

    def _advance(self) -> None:
        """Report to the sequencer that everything applied is as durable as its class promises."""
        vector = self._arrays.replica_words[_REPLICA]
        store_release_u64(vector, records.REPLICA_DURABLE, self._applier.next_position)
        self.sequencer.advance_durable((_REPLICA,), 1)
        if self._applier.next_position == self.sequencer.frontier.committed:
            self._rows.forget()

    def tail(self, topic_id: TopicId, from_seq: Seq, size_max: int) -> list[StoredBatch]:
        """Copies of batches that are ordered and not in the store yet: those of the commit in flight."""
        fabric = self._arrays
        return ordered_batches(
            fabric.goi,
            fabric.side,
            range(self._applier.next_position, self.sequencer.frontier.committed),
            fabric.blog_all_bytes,
            len(fabric.blog_all_bytes) // len(fabric.pbr),
            self._applier.term,
            topic_id=topic_id,
            from_seq=from_seq,
            size_max=size_max,
        )

    # --- called by the sequencer ---------------------------------------------------------------------------------

    def execute(self, position: Position) -> None:
        """Make the change that was ordered at a position."""
        self._apply_all()
        with self._applier.at(position):
            if self._change is not None:
                change, self._change = self._change, None
                change()
        self._advance()

    def raise_ceilings(self) -> None:
        """Make higher ceilings durable."""
        self._applier.ensure_ceilings()


def _new_fabric(parts: StoreParts, memory: SharedMemory, boot_id: bytes, config: FabricConfig) -> Fabric:
    """Create a fabric for this process alone, and remove one that a killed process left behind."""
    machine, directory = parts.machine, parts.directory
    remove_leftover_fabric(machine.files, memory, directory.path)
    path = fabric_path(machine.files, config, directory.path, machine.random_bytes(TOKEN_SIZE))
    record_fabric(machine.files, directory.path, path)
    identity, sizes = Identity(boot_id, directory.directory_id), FabricSizes.of(config)
    return Fabric.create(memory, path, sizes, identity, created_ns=machine.clock.wall_ns())


def open_sequenced_store(
    machine: Machine,
    path: str,
    memory: SharedMemory,
    boot_id: bytes,
    config: FabricConfig,
    settings: StoreSettings,
    sequencing: SequencerSettings | None = None,
    networks: int = 0,
) -> Store:
    """Open a data directory with a pod in front of it; connections publish to its last `networks` rings."""
    orderer = partial(
        SequencedOrderer, memory=memory, boot_id=boot_id, config=config, settings=sequencing, networks=networks
    )
    return open_store(machine, path, settings, orderer=orderer)
