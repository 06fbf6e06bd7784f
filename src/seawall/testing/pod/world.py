"""A simulated pod in one thread: brokers, a sequencer in any mode, a replica with its store, and crashes of each.

    pod = SimPod(seed, PodPlan())
    pod.create_topics({"plain": Order.TOTAL, "strong": Order.CLIENT})
    pod.start()                        # a cold start; the caller then runs all steps
    pod.step_broker(0, …) … pod.step_role(…) … pod.step_replica() … pod.advance()
    pod.crash_sequencer(); pod.restart_sequencer()
    pod.lose_power()                   # loses the fabric and unsynced data, then restarts the pod
    check_all(pod.history)

A `PodObserver` records every step; the roles do not know it. Roles run as in a real pod; disk, clock, memory and
scheduling are simulated. Publishers and readers are in `clients.py` and `readers.py`.

Crashes: after a crash of the sequencer, the fabric, the brokers and the store remain; after a crash of a broker, its
ring remains; after a power loss, only synced data remains. A crash may happen inside a step: then the last writes of
the role are missing.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from seawall.core.types import ClientId, ClientSeq, Seq, SessionEpoch
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.store.opening import open_store
from seawall.engine.store.sessions import Sessions
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.limits import KIB
from seawall.sequencer.collector import CollectorSettings
from seawall.sequencer.frontier import TopicNumbers
from seawall.sequencer.order_worker import OrderSettings
from seawall.sequencer.pod_sequencer import Moment, OpenedSession, PodSequencer, Role, SequencerSettings
from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History, PodShape
from seawall.testing.checkers.order_events import AckStatus
from seawall.testing.machine.clock import SimClock
from seawall.testing.machine.content import Keep
from seawall.testing.machine.disk import SimDisk
from seawall.testing.machine.faults import SimCrash
from seawall.testing.pod.broker import Answer, PodBroker
from seawall.testing.pod.observer import PodObserver
from seawall.testing.pod.owner import REPLICA, Change, PodOwner, kept_position
from seawall.testing.pod.tearing import tear_entries, tear_results
from seawall.topics.config import Order, TopicConfig

__all__ = ["MILLISECOND_NS", "PodPlan", "SimPod"]

MILLISECOND_NS = 1_000_000


def _small_ordering() -> OrderSettings:
    return OrderSettings(silence_ns=60 * MILLISECOND_NS, clients_max=64, remembered_max=64, pages=16)


def _small_sequencer() -> SequencerSettings:
    return SequencerSettings(
        collecting=CollectorSettings(stuck_after_ns=30 * MILLISECOND_NS),
        ordering=_small_ordering(),
        reconcile_after_ns=50 * MILLISECOND_NS,
    )


def _small_store() -> StoreSettings:
    return StoreSettings(wal_file_size=256 * KIB, ceiling_step=40, ballast_size=16 * KIB, checkpoint_size=512 * KIB)


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The parameters of a pod; small by default, so that rings wrap and limits are reached."""

    brokers: int = 3
    goi_entries: int = 128
    pbr_entries: int = 64
    checkpoint_size: int = 16 * KIB
    blog_size: int = 64 * KIB
    upload_life_ms: int = 10
    sequencing: SequencerSettings = field(default_factory=_small_sequencer)
    storing: StoreSettings = field(default_factory=_small_store)

    @property
    def layout(self) -> FabricLayout:
        """The layout of its fabric."""
        sizes = FabricSizes(self.brokers, self.goi_entries, self.pbr_entries, self.checkpoint_size, self.blog_size)
        return FabricLayout.of(sizes)


class SimPod:
    """One pod, across its crashes and restarts."""

    fabric: FabricArrays
    owner: PodOwner

    def __init__(self, seed: int, plan: PodPlan) -> None:
        self.chance = Random(seed)
        self.plan = plan
        self.clock = SimClock()
        self.disk = SimDisk(seed)
        self.history = History(PodShape(plan.goi_entries, plan.pbr_entries, 1))
        self.orders: dict[int, int] = {}
        self.observer = PodObserver(self.history, lambda topic: self.orders.get(topic, 2), self._on_control_committed)
        self.sequencer: PodSequencer | None = None
        self.brokers: list[PodBroker | None] = []
        #: Number of power losses, and of sequencer restarts.
        self.power_losses = 0
        self.restarts = 0
        #: Epoch of the open session, by client.
        self.epochs: dict[int, int] = {}
        self._declared: dict[int, int] = {}
        #: The last positions that each worker has written.
        self._written: dict[str, range] = {}
        self.store = self._open_store()

    # --- start ----------------------------------------------------------------------------------------------------

    def create_topics(self, topics: Mapping[str, Order]) -> None:
        """Create topics before the first start."""
        for name, order in topics.items():
            created = self.store.create_topic(name, _config(order))
            self.orders[created.topic_id] = int(order)

    def start(self) -> None:
        """Start the pod cold: for the first time, or after a power loss."""
        self.store.controls.begin_term()
        self.fabric = FabricArrays(memoryview(mmap.mmap(-1, self.plan.layout.size)), self.plan.layout)
        self.owner = PodOwner(self.store, self.fabric, self.clock, self.plan.blog_size)
        start = self.owner.frontier.next_position
        term = self.store.parts.term
        self.sequencer = PodSequencer.start_cold(
            self.fabric, self.owner.frontier, self.owner, term, self.plan.sequencing
        )
        if not len(self.history):
            self.history.record(events.ViewChanged(1, (REPLICA,)))
        self._declare_gaps()
        self.history.record(events.TermGranted(term, start))
        self.history.record(events.Recovered(False, kept_position(self.store), start))
        self._record_clients()
        self.observer.attach(self.fabric)
        self.brokers = [self._new_broker(number) for number in range(self.plan.brokers)]

    def _open_store(self) -> Store:
        machine = Machine(self.disk, self.clock, self.chance.randbytes, pid=1)
        return open_store(machine, "/data", self.plan.storing)

    def _new_broker(self, number: int) -> PodBroker:
        broker = PodBroker(self.fabric, number, self.chance, self.plan.upload_life_ms)
        self.observer.observe_broker(number)
        return broker

    def _declare_gaps(self) -> None:
        for topic in self.store.catalog:
            for gap in topic.losses.inside(Seq(1), topic.next_seq):
                first = max(gap.first_seq, self._declared.get(topic.topic_id, 0) + 1)
                if first <= gap.last_seq:
                    self.history.record(events.GapDeclared(topic.topic_id, first, gap.last_seq, gap.reason))
                    self._declared[topic.topic_id] = gap.last_seq

    def _record_clients(self) -> None:
        """Record the restored state of every client with a session."""
        for client in sorted(self.epochs):
            epoch, next_expected = self._client_state(ClientId(client))
            self.history.record(events.ClientRestored(client, epoch, next_expected))

    def _client_state(self, client: ClientId) -> tuple[int, int]:
        assert self.sequencer is not None
        for worker in self.sequencer.workers:
            if client in worker.window:
                state = worker.window.state(client)
                return state.session_epoch, state.next_expected
        row = self.owner.load(client)
        if row is None:
            return 0, 0
        return int.from_bytes(row[8:16], "little"), int.from_bytes(row[16:24], "little")

    # --- steps ----------------------------------------------------------------------------------------------------

    @property
    def moment(self) -> Moment:
        """The current time."""
        return Moment(self.clock.monotonic_ns(), self.clock.wall_ns())

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the sequencer; empty while it is down."""
        return () if self.sequencer is None else self.sequencer.roles

    def step_broker(self, number: int, send: Callable[[Answer], None], *, slow_chance: float = 0.0) -> None:
        """Run a step of a broker, if it is up; sends its answers after its events are recorded."""
        broker = self.brokers[number]
        answers: list[Answer] = []
        if broker is not None:
            broker.step(self.clock.monotonic_ns(), answers.append, slow_chance=slow_chance)
            self.observer.observe_broker(number)
            for answer in answers:
                send(answer)

    def step_role(self, role: Role) -> int:
        """Run a step of one role of the sequencer."""
        assert self.sequencer is not None
        reserved = self.sequencer.frontier.reserved
        done = role.step(self.moment)
        if done or role.name == "frontier":
            self.observe()
        if self.sequencer.frontier.reserved > reserved:
            self._written[role.name] = range(reserved, self.sequencer.frontier.reserved)
        return done

    def observe(self) -> None:
        """Record the changes that the sequencer made."""
        assert self.sequencer is not None
        for broker in range(self.plan.brokers):
            self.observer.observe_cursor(broker, self.sequencer.cursor(broker))
        self.observer.observe_entries(self.sequencer.frontier.reserved)
        self.observer.observe_commits()

    def step_replica(self) -> int:
        """Run a step of the replica; return the number of entries that it applied."""
        return self.owner.apply_committed()

    def report_durable(self) -> None:
        """Let the replica publish its durable position."""
        self.owner.report_durable()
        self.observer.observe_durable()

    def advance(self) -> None:
        """Advance the durable position and the completed slots to the position of the replica."""
        if self.sequencer is not None:
            self.sequencer.advance_durable((REPLICA,), 1)
            self.observer.observe_durable()

    # --- changes --------------------------------------------------------------------------------------------------

    def order(self, change: Change) -> bool:
        """Order a change; False if it cannot be ordered now."""
        sequencer = self.sequencer
        if sequencer is None:
            return False
        if change.session is not None:
            opening = sequencer.open_session(*change.session, after_gap_ns=change.after_gap_ns)
            position = None if opening is None else opening.position
            if opening is not None:
                change.next_expected = opening.next_expected
        else:
            position = sequencer.order_control(change.topic_id)
        if position is not None:
            self.owner.changes[position] = change
        self.observe()
        return position is not None

    def session_change(
        self, client: int, start_seq: int, on_opened: Callable[[int, int], None], *, after_gap_ns: int = 0
    ) -> Change:
        """A change that opens the next session of a client; `on_opened` gets its epoch and the first undecided seq."""
        sessions: Sessions = self.store.sessions
        epoch, next_seq, _ = sessions.open(ClientId(client), ClientSeq(start_seq))
        opened = OpenedSession(ClientId(client), epoch, next_seq)
        opened_by_store: list[tuple[SessionEpoch, ClientSeq]] = []

        def execute(store: Store) -> None:
            opened_by_store.append(store.session_keeper.open(SessionSpec(ClientId(client), ClientSeq(start_seq))))

        def done(has_succeeded: bool) -> None:
            if not has_succeeded:
                on_opened(0, 0)
                return
            # A client row may have forgotten a rejection, so the lower expected seq is the correct one.
            opened_epoch, next_expected = opened_by_store[0]
            on_opened(opened_epoch, min(next_expected, change.next_expected or next_expected))

        text = f"session {epoch} of client {client}"
        change = Change(text, execute, done, session=opened, after_gap_ns=after_gap_ns)
        return change

    def create_change(self, name: str, order: Order, on_created: Callable[[int], None]) -> Change:
        """A change that creates a topic; `on_created` gets its id, or 0 on failure."""

        def execute(store: Store) -> None:
            topic = store.create_topic(name, _config(order))
            self.orders[topic.topic_id] = int(order)
            ceiling = Seq(1 + self.plan.storing.ceiling_step)
            change.creates = TopicNumbers(topic.topic_id, ceiling=ceiling, is_strong=order is Order.CLIENT)

        def done(has_succeeded: bool) -> None:
            on_created(change.creates.topic_id if has_succeeded and change.creates is not None else 0)

        change = Change(f"create topic {name} with order {order}", execute, done)
        return change

    def delete_change(self, name: str, on_done: Callable[[bool], None]) -> Change:
        """A change that deletes a topic."""
        topic_id = self.store.catalog.named(name).topic_id
        return Change(
            f"delete topic {name}", lambda store: store.delete_topic(name), on_done, topic_id=topic_id, deletes=topic_id
        )

    def delete_records_change(self, name: str, before_seq: int, on_done: Callable[[bool], None]) -> Change:
        """A change that deletes the records of a topic below a seq."""
        topic_id = self.store.catalog.named(name).topic_id

        def execute(store: Store) -> None:
            store.delete_records(name, before_seq=before_seq)

        return Change(f"delete records of {name} below {before_seq}", execute, on_done, topic_id=topic_id)

    def _on_control_committed(self, position: int) -> None:
        """Record the session that a committed CONTROL entry opened, if any."""
        change = self.owner.executed.get(position)
        if change is not None and change.session is not None:
            client, epoch, start_seq = change.session
            self.epochs[client] = epoch
            self.history.record(events.SessionOpened(client, epoch, start_seq, position))

    # --- crashes --------------------------------------------------------------------------------------------------

    def crash_broker(self, number: int) -> None:
        """Crash a broker."""
        if self.brokers[number] is not None:
            self.brokers[number] = None
            self.history.record(events.Crashed(events.Role.BROKER, number))

    def notice_broker(self, number: int) -> None:
        """Notify the sequencer that a broker has ended."""
        if self.sequencer is not None:
            self.sequencer.broker_ended(number, self.clock.monotonic_ns())

    def restart_broker(self, number: int) -> None:
        """Start another broker, which takes over the ring."""
        self.brokers[number] = self._new_broker(number)
        if self.sequencer is not None:
            self.sequencer.broker_began(number, self.clock.monotonic_ns())

    def crash_sequencer(self, role: Role | None = None) -> None:
        """Crash the sequencer, inside a step of a role if one is given."""
        assert self.sequencer is not None
        before = self.sequencer.frontier.committed
        if role is not None:
            self.step_role(role)
        if role is not None and role.name == "frontier":
            tear_results(self.fabric, self.chance, before, self.sequencer.frontier.committed)
        elif role is not None:
            # Any worker may crash in the middle of its last write, unless that is already committed.
            for written in self._written.values():
                if written.start >= before and self.chance.random() < 0.7:
                    tear_entries(self.fabric, self.chance, written)
        self._written.clear()
        self.sequencer = None
        self.history.record(events.Crashed(events.Role.SEQUENCER, 0))

    def restart_sequencer(self) -> list[Change]:
        """Start another sequencer in the same fabric; return the changes whose entries were lost."""
        self.owner.frontier.clear()
        self.sequencer = PodSequencer.start_warm(
            self.fabric, self.owner.frontier, self.owner, self.plan.sequencing, moment=self.moment
        )
        self.owner.note_term()
        start = self.sequencer.frontier.reserved
        self.observer.recover(self.sequencer.term, start)
        self._record_clients()
        for number, broker in enumerate(self.brokers):
            if broker is None:
                self.notice_broker(number)
        self.restarts += 1
        return self.owner.forget_changes(start)

    def lose_power(self, keep: Keep = "random") -> None:
        """Lose the power: end everything, lose the fabric, and restart from the disk."""
        self.history.record(events.Crashed(events.Role.POWER, 0))
        self.sequencer = None
        self._written.clear()
        self.brokers = []
        self.disk.clear_faults()
        self.disk.crash(keep)
        self.power_losses += 1
        self.restarts += 1
        self.store = self._open_store()
        last = self.observer.committed
        if kept_position(self.store) > last:
            # The power was lost while a CONTROL entry was executed, and the log has it.
            self.history.record(events.Committed(last, AckStatus.OK, 0, 0, 0))
            self._on_control_committed(last)
        self.start()

    def with_power(self, step: Callable[[], object]) -> bool:
        """Run a step in which the power may be lost (`disk.crash_after`); False if it was and the pod was restarted."""
        try:
            step()
        except SimCrash:
            if self.sequencer is not None:
                self.observe()
            else:
                # A sequencer that was just restarting may have committed CONTROL entries already.
                self.observer.observe_commits()
            self.lose_power()
            return False
        return True


def _config(order: Order) -> TopicConfig:
    return TopicConfig(order=order, segment_max_records=50)
