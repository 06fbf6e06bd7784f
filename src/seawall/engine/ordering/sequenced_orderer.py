"""The orderer of a store whose batches are ordered by brokers and a sequencer in the same process: a pod.

    appends ─▶ rings of brokers ─▶ sequencer ─▶ order ─▶ follower ─▶ log and segments of the store
                                                      ◀─ numbers, from the result rings

One commit of the store is one cycle of the pod: what the appends of a group bring is published to the brokers, ordered,
and staged as it was ordered; whoever leads writes it; then it is durable, and slots are free again. A change that is
no append takes a position in the same order: everything before it is followed, and then the store makes it.

Batches of a session go through the broker of their client, others through that of their topic: so the batches of one
publisher keep the order in which they were given, whatever the order of the topic.

Beside the brokers there may be rings of the network (`arrivals`), into which connections publish: every commit orders
what is there, and there are commits for that alone. Their answers are taken by whoever published. What such a commit
does not hold waits for the next, and so does what a full disk keeps out although room was made for it (`is_stuck`).

Outside of a commit everything that is ordered is in the store, or `is_behind` says that it is not. Every append of a
group is decided when its commit is finished. Of order 5 only the next batch of a client is published, so nothing is
held: one that is ahead of its turn, because those before it were refused or never given, is refused, and its number is
free.

The fabric of such a pod is made when the store opens, and goes when it closes; one that a killed process left is
removed. What was ordered in there and is not in the log is lost with its process, and reported as a gap, as without
brokers. This module must not know threads, or who waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import numpy as np

from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.config import FabricConfig
from seawall.core.types import ClientId, Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.commit.admission import Admission, is_admitted, need_of
from seawall.engine.commit.appends import Append, Commit, logged_size
from seawall.engine.commit.commit_cycle import CommitCycle, SequencerArrays
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.ordering.applier import Applier, ApplyCommit
from seawall.engine.ordering.arrivals import Arrivals
from seawall.engine.ordering.client_gates import ClientGates
from seawall.engine.ordering.client_rows import StoredClientRows
from seawall.engine.ordering.ordered_batches import ordered_batches
from seawall.engine.ordering.orderer import Opened, WantedSession
from seawall.engine.ordering.pod_answers import arrived, remembered
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
from seawall.fabric.naming import TOKEN_SIZE, fabric_path, forget_fabric, record_fabric, remove_left_fabric
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

#: The one replica, which counts alone.
_REPLICA: Final = 0
_FOR_EVER: Final = (1 << 63) - 1
#: Steps without any work in which workers may come to rest for a checkpoint; more do not help.
_IDLE_STEPS: Final = 8


class SequencedOrderer:
    """The brokers and the sequencer of a store that follows them."""

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
        """Make the fabric, and begin to order. Its last `networks` rings are for connections to publish to."""
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
        #: For the sequencer: rows of clients that no worker has.
        self.load, self.save = self._rows.load, self._rows.save
        #: What is to be done at the position of the next CONTROL entry.
        self._change: Callable[[], None] | None = None
        #: Appends whose answers are still to come, by the number they were published with.
        self._asked: dict[int, Append] = {}
        self._asked_total = 0
        #: Appends that have the key of another one of their group, which decides what becomes of them.
        self._repeats: list[tuple[Append, Append]] = []
        self._turns = ClientGates(sessions)
        #: Topics with caps or ages that entries were followed of, since somebody looked after them.
        self._limited: list[TopicState] = []
        self.sequencer = PodSequencer.start_cold(arrays, frontier, self, parts.term, settings)
        self.brokers = [BrokerRing(arrays, broker) for broker in range(len(arrays.pbr) - networks)]
        self.arrivals = Arrivals(arrays, networks, self.sequencer.collected)
        #: Whether what is ordered found no room: it is tried again by the next commit.
        self.is_stuck = False
        #: Commits of what arrives, without the sequencer.
        self.cycle = CommitCycle(parts, self._applier.reservation_for, self._shared_with_cycles())

    def close(self) -> None:
        """Remove the fabric: by its name, under the lock of the directory. The mapping goes with its last array."""
        self._fabric.remove()
        forget_fabric(self._parts.machine.files, self._parts.directory.path)

    # --- appends -------------------------------------------------------------------------------------------------

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Have appends ordered, and stage them; each has its numbers or its error. Without any, what has arrived.

        One commit at a time. What has arrived is staged by one kernel call, as far as it is that simple.
        """
        if not appends and self.is_at_rest:
            commit = self.cycle.begin()
            if commit is not None:
                return commit
        self._parts.pending.apply()
        commit = Commit()
        self._turns.clear()
        now = self._clock.wall_ns()
        appends_with_room, refusing = self._with_space(self._admission.screen(appends, commit, now), now)
        for append in appends_with_room:
            self._publish(append)
        self._repeats = [
            (first, append)
            for append in appends
            if append.flags & BatchFlags.KEYED and append.error is None and append.numbered is None
            if (first := commit.keyed[append.topic_id, key_of(append.client_id, append.client_seq)]) is not append
        ]
        self._order_refusing(refusing)
        self._take_answers()
        commit = self._stage_some() or commit
        self._applier.let_go()
        commit.limited += self._limited
        self._limited = []
        return commit

    @property
    def is_at_rest(self) -> bool:
        """Whether a cycle may begin: one worker orders, nothing is staged, and the order is not being checkpointed."""
        sequencer = self.sequencer
        return sequencer.only_worker is not None and not sequencer.is_quiescing and self._applier.is_even

    def _shared_with_cycles(self) -> SequencerArrays | None:
        """What cycles need of the sequencer; None with several workers, where something else might come before one."""
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
        """Cycles are written: the store has everything that is ordered."""
        self.cycle.account()
        self.sequencer.frontier.passed_by(Position(self._applier.next_position - 1))
        self._rows.forget()

    def begin_next(self, _appends: Sequence[Append]) -> Commit | None:
        """Nothing begins before the commit under way is finished."""
        return None

    def commit_one(
        self, _id: TopicId, _block: ReadableBuffer, _record_count: int, _state: MemoryLock
    ) -> Numbered | None:
        """Everything goes through the order."""
        return None

    def finish(self, commit: Commit) -> None:
        """The commit is written: what is in it takes effect, and its slots are free."""
        if isinstance(commit, ApplyCommit):
            self._applier.finish(commit)
            self._advance()
        elif commit.is_cycle:
            self.cycle.finish(commit)
            self.cycles_ended()
            if self.cycle.has_slots:
                self.sequencer.frontier.advance_completion()
        if self._asked or self._repeats:
            self._take_answers()
        if self._asked:
            lost = next(iter(self._asked.values()))
            raise FatalError(
                f"batch {lost.client_seq} of client {lost.client_id:016x} was not decided (INV-DELIVERY-ONCE): "
                "close the log and open it again"
            )
        self._repeats = []

    def _with_space(self, appends: list[Append], now: int) -> tuple[list[Append], list[TopicState]]:
        """Appends, if there is room for them all, and topics that take nothing of what has arrived; before it is so."""
        by_topic: dict[TopicId, list[Append]] = {}
        for append in appends:
            by_topic.setdefault(append.topic_id, []).append(append)
        needs = [(self._admission.topic(topic_id), need_of(group)) for topic_id, group in by_topic.items()]
        logged = sum(max(NOP_SIZE, logged_size(len(each.block))) for each in appends)
        arrived, arrived_logged = self.arrivals.needs(self._parts.catalog.find)
        taken = [(topic, need) for topic, need in arrived if self._admission.takes(topic, need, TimestampNs(now))]
        try:
            if appends or arrived:
                # What has arrived may take several commits: the first has to have room, the others look for theirs.
                self._applier.reserve(needs + taken, logged + min(arrived_logged, self._applier.commit_size_max))
        except (CallerError, RetryableError) as error:
            for append in appends:
                append.error = error
            return [], [topic for topic, _ in arrived]
        return appends, [topic for topic, need in arrived if (topic, need) not in taken]

    def _order_refusing(self, topics: Sequence[TopicState]) -> None:
        """Order what there is, and refuse what is for some topics: they have no room for it."""
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
        if append.has_session and order is Order.CLIENT and not self._turns.check(append):
            return
        broker = self.brokers[(append.client_id if append.has_session else append.topic_id) % len(self.brokers)]
        size = BATCH_HEADER_SIZE + len(append.block)
        try:
            index = broker.reserve(size, _FOR_EVER)
            while index is None:
                self._make_way()
                index = broker.reserve(size, _FOR_EVER)
        except LimitError as error:
            append.error = error
            return
        self._turns.published(append)
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
        reservation = broker.reserved_bytes(index)
        reservation[:BATCH_HEADER_SIZE] = np.frombuffer(header.header_bytes(), np.uint8)
        reservation[BATCH_HEADER_SIZE:] = np.frombuffer(append.block, np.uint8)
        # Order 0 is answered on arrival, and numbers come with durability only: both are wanted here.
        level = AckLevel.DURABLE if order is Order.NONE else AckLevel.ORDERED
        self._asked[self._asked_total] = append
        broker.publish_reserved(index, self._asked_total, TopicDefaults(int(order), level))
        self._asked_total += 1
        if order is Order.NONE:
            append.numbered = arrived(append)

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
        append = self._asked.pop(number)
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
        is_admitted(append, numbered)

    # --- changes that are no appends -----------------------------------------------------------------------------

    def change(self, make: Callable[[], R], topic_id: TopicId | None = None) -> R:
        """Order a change, and make it at its position: everything ordered before it is in the store by then."""
        self._guard.require_usable()
        return self._change_at(partial(self.sequencer.order_control, topic_id), make)

    def _change_at(self, order: Callable[[], Position | None], make: Callable[[], R]) -> R:
        made: list[R] = []
        failed: list[Exception] = []

        def execute() -> None:
            # Whatever goes wrong in it, the order goes on behind this position.
            try:
                made.append(make())
            except (SeawallError, OSError) as error:
                failed.append(error)

        def is_ordered() -> bool:
            # Not before: an order that stands still must not leave a change behind.
            self._change = execute if order() is not None else None
            return self._change is not None

        self._insist(is_ordered)
        if failed:
            raise failed[0]
        return made[0]

    def open_session(self, wanted: WantedSession, make: Callable[[], Opened]) -> Opened:
        """Order the opening of a session: what comes behind it of an older one is refused.

        If it abandons, everything undecided below its start is given up by SKIPs behind that position.
        """
        client_id, start_seq = wanted.client_id, wanted.start_seq
        epoch, next_seq, _ = self._sessions.open(client_id, start_seq, is_drawn=wanted.is_drawn)
        if wanted.abandons and start_seq - next_seq > SESSION_ABANDONED_MAX:
            raise LimitError(
                f"client {client_id:016x} gives up batches {next_seq} to {start_seq - 1}: at most "
                f"{SESSION_ABANDONED_MAX} at once; publish under another client id"
            )

        def order() -> Position | None:
            opening = self.sequencer.open_session(client_id, epoch, next_seq, after_gap_ns=wanted.gap_ns)
            return None if opening is None else opening.position

        opened = self._change_at(order, make)
        if wanted.abandons and opened[1] < start_seq:
            self._insist(lambda: self.sequencer.abandon(client_id, start_seq))
            return opened[0], start_seq
        return opened

    def retire(self, client_ids: Sequence[ClientId], make: Callable[[Sequence[ClientId]], None]) -> Sequence[ClientId]:
        """Order the end of sessions, and `make` it at its position; those of which nothing was under way."""
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
                self._change_at(order, lambda: make(retired))
            finally:
                self._rows.retired = frozenset()
        return retired

    # --- the order -----------------------------------------------------------------------------------------------

    def _insist(self, order: Callable[[], bool]) -> None:
        """Have something ordered, however full the order is, and bring everything up to it to the store."""
        while not order():
            if not self._order():
                raise FatalError("the order stands still: close the log and open it again")
            self._apply_all()
        self._order()
        self._apply_all()
        # A change at the last position is durable by now.
        self._advance()

    def _order(self) -> int:
        """Step the sequencer until it has nothing to do; how much it did."""
        done = idle = 0
        while idle < _IDLE_STEPS:
            work = self.sequencer.step(Moment(self._clock.monotonic_ns(), self._clock.wall_ns()))
            done += work
            idle = 0 if work else idle + 1
            if not work and not self.sequencer.is_quiescing:
                break
        return done

    def _make_way(self) -> None:
        """A ring is full: bring what is in it to the store."""
        if not self._order() and not self._apply_all():
            raise FatalError("the rings of the brokers are full and nothing moves: close the log and open it again")
        self._apply_all()
        self._take_answers()

    def _stage_some(self) -> ApplyCommit | None:
        """Stage what is ordered. Where appends wait, what one commit does not hold is brought to the store here."""
        if not self._asked:
            self.is_stuck = False
            try:
                return self._begin_apply()
            except (CallerError, RetryableError):
                # Found only now because it was held back when room was made, or because that has gone since.
                self.is_stuck = True
                return None
        while True:
            commit = self._begin_apply()
            if commit is None or commit.look.first + commit.look.count == self.sequencer.frontier.committed:
                return commit
            self._execute(commit)

    @property
    def is_behind(self) -> bool:
        """Whether another commit has something to do that nobody has appended."""
        if self.is_stuck:
            return False
        if self._applier.next_position < self.sequencer.frontier.committed or self.arrivals.has_any():
            return True
        return any(worker.waiting for worker in self.sequencer.workers)

    @property
    def held(self) -> int:
        """Batches that wait for an earlier one of their client: time may decide what becomes of them."""
        return sum(worker.held for worker in self.sequencer.workers)

    def _apply_all(self) -> int:
        """Bring all that is ordered to the store; how many entries."""
        done = 0
        while (commit := self._begin_apply()) is not None:
            done += commit.look.count
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
        """Everything that was followed is as durable as its class promises."""
        vector = self._arrays.replica_words[_REPLICA]
        store_release_u64(vector, records.REPLICA_DURABLE, self._applier.next_position)
        self.sequencer.advance_durable((_REPLICA,), 1)
        if self._applier.next_position == self.sequencer.frontier.committed:
            self._rows.forget()

    def tail(self, topic_id: TopicId, from_seq: Seq, size_max: int) -> list[StoredBatch]:
        """Copies of what is ordered and not in the store yet: the commit that is being written."""
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

    # --- the owner of a sequencer --------------------------------------------------------------------------------

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
    """A fabric of this process alone; one that a killed process left is removed."""
    machine, directory = parts.machine, parts.directory
    remove_left_fabric(machine.files, memory, directory.path)
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
    """Open a data directory, and a pod in front of it, of whose rings some are for the network."""
    orderer = partial(
        SequencedOrderer, memory=memory, boot_id=boot_id, config=config, settings=sequencing, networks=networks
    )
    return open_store(machine, path, settings, orderer=orderer)
