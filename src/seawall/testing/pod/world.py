"""A whole pod in one thread: brokers, a sequencer in any mode, a replica and its store, over memory that can be lost.

    pod = SimPod(seed, PodPlan())
    pod.create_topics({"plain": Order.TOTAL, "strong": Order.CLIENT})
    pod.start()                        # a cold start; everything below is stepped by whoever has it
    pod.step_broker(0) … pod.step_role(…) … pod.follow() … pod.advance()
    pod.crash_sequencer(); pod.restart_sequencer()
    pod.lose_power()                   # disk and fabric; the pod is there again when this returns
    check_all(pod.history)

Every step is looked at by a `PodObserver`, and a role has no part in that. Roles run as they do in a real pod; what is
simulated is disk, clock, memory, and who runs when. Publishers and readers are in `pod_clients` and `pod_readers`.

What ends with what: a sequencer's crash leaves fabric, brokers and store; a broker's crash leaves its ring; a power
loss leaves what the disk has synced. A crash may come inside a step: what its role wrote last is then not there.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from seawall.core.types import ClientId, ClientSeq, Seq, SessionEpoch
from seawall.engine.ordering.orderer import WantedSession
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
from seawall.testing.pod.owner import REPLICA, Change, PodOwner, kept_of
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
    """How a pod is made: small, so that rings wrap and limits are met."""

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
        """The map of its fabric."""
        sizes = FabricSizes(self.brokers, self.goi_entries, self.pbr_entries, self.checkpoint_size, self.blog_size)
        return FabricLayout.of(sizes)


class SimPod:
    """One pod, from its first start on."""

    fabric: FabricArrays
    owner: PodOwner

    def __init__(self, seed: int, plan: PodPlan) -> None:
        self.chance = Random(seed)
        self.plan = plan
        self.clock = SimClock()
        self.disk = SimDisk(seed)
        self.history = History(PodShape(plan.goi_entries, plan.pbr_entries, 1))
        self.orders: dict[int, int] = {}
        self.observer = PodObserver(self.history, lambda topic: self.orders.get(topic, 2), self._controlled)
        self.sequencer: PodSequencer | None = None
        self.brokers: list[PodBroker | None] = []
        #: How many times the power was lost, and the sequencer was replaced: what was said before may not hold.
        self.power_losses = 0
        self.restarts = 0
        #: Sessions that are open, by client: epoch.
        self.epochs: dict[int, int] = {}
        self._declared: dict[int, int] = {}
        #: What each worker has written last.
        self._written: dict[str, range] = {}
        self.store = self._open_store()

    # --- beginning ------------------------------------------------------------------------------------------------

    def create_topics(self, topics: Mapping[str, Order]) -> None:
        """Topics that are there before the pod is."""
        for name, order in topics.items():
            created = self.store.create_topic(name, _config(order))
            self.orders[created.topic_id] = int(order)

    def start(self) -> None:
        """The first start, or one after a power loss."""
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
        self.history.record(events.Recovered(False, kept_of(self.store), start))
        self._notify_clients()
        self.observer.attach(self.fabric)
        self.brokers = [self._new_broker(number) for number in range(self.plan.brokers)]

    def _open_store(self) -> Store:
        machine = Machine(self.disk, self.clock, self.chance.randbytes, pid=1)
        return open_store(machine, "/data", self.plan.storing)

    def _new_broker(self, number: int) -> PodBroker:
        broker = PodBroker(self.fabric, number, self.chance, self.plan.upload_life_ms)
        self.observer.look_at_broker(number)
        return broker

    def _declare_gaps(self) -> None:
        for topic in self.store.catalog:
            for gap in topic.losses.inside(Seq(1), topic.next_seq):
                first = max(gap.first_seq, self._declared.get(topic.topic_id, 0) + 1)
                if first <= gap.last_seq:
                    self.history.record(events.GapDeclared(topic.topic_id, first, gap.last_seq, gap.reason))
                    self._declared[topic.topic_id] = gap.last_seq

    def _notify_clients(self) -> None:
        """What is known of every client that has a session."""
        for client in sorted(self.epochs):
            epoch, next_expected = self._known_of(ClientId(client))
            self.history.record(events.ClientRestored(client, epoch, next_expected))

    def _known_of(self, client: ClientId) -> tuple[int, int]:
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
        """Now."""
        return Moment(self.clock.monotonic_ns(), self.clock.wall_ns())

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the sequencer, if there is one."""
        return () if self.sequencer is None else self.sequencer.roles

    def step_broker(self, number: int, send: Callable[[Answer], None], *, slow_chance: float = 0.0) -> None:
        """A step of a broker, if it lives; its answers are sent after what it did was written down."""
        broker = self.brokers[number]
        answers: list[Answer] = []
        if broker is not None:
            broker.step(self.clock.monotonic_ns(), answers.append, slow_chance=slow_chance)
            self.observer.look_at_broker(number)
            for answer in answers:
                send(answer)

    def step_role(self, role: Role) -> int:
        """A step of one role of the sequencer."""
        assert self.sequencer is not None
        reserved = self.sequencer.frontier.reserved
        done = role.step(self.moment)
        if done or role.name == "frontier":
            self.look()
        if self.sequencer.frontier.reserved > reserved:
            self._written[role.name] = range(reserved, self.sequencer.frontier.reserved)
        return done

    def look(self) -> None:
        """Write down what the sequencer did."""
        assert self.sequencer is not None
        for broker in range(self.plan.brokers):
            self.observer.look_at_cursor(broker, self.sequencer.cursor(broker))
        self.observer.look_at_entries(self.sequencer.frontier.reserved)
        self.observer.look_at_commits()

    def follow(self) -> int:
        """A step of the replica; how many entries it took."""
        return self.owner.follow()

    def tell(self) -> None:
        """The replica says how far it has come."""
        self.owner.tell()
        self.observer.look_at_durable()

    def advance(self) -> None:
        """Durable and completion follow the replica."""
        if self.sequencer is not None:
            self.sequencer.advance_durable((REPLICA,), 1)
            self.observer.look_at_durable()

    # --- changes --------------------------------------------------------------------------------------------------

    def order(self, change: Change) -> bool:
        """Order a change; false if that has to wait."""
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
        self.look()
        return position is not None

    def session_change(
        self, client: int, start_seq: int, told: Callable[[int, int], None], *, after_gap_ns: int = 0
    ) -> Change:
        """The opening of a client's next session; `told` gets its epoch and the first client seq not decided."""
        sessions: Sessions = self.store.sessions
        epoch, next_seq, _ = sessions.open(ClientId(client), ClientSeq(start_seq))
        opened = OpenedSession(ClientId(client), epoch, next_seq)
        found: list[tuple[SessionEpoch, ClientSeq]] = []

        def make(store: Store) -> None:
            found.append(store.session_keeper.open(WantedSession(ClientId(client), ClientSeq(start_seq))))

        def done(is_made: bool) -> None:
            if is_made:
                # A row may have forgotten what was refused: whoever expects less is right.
                told(found[0][0], min(found[0][1], change.next_expected or found[0][1]))
            else:
                told(0, 0)

        text = f"session {epoch} of client {client}"
        change = Change(text, make, done, session=opened, after_gap_ns=after_gap_ns)
        return change

    def create_change(self, name: str, order: Order, told: Callable[[int], None]) -> Change:
        """The creation of a topic; `told` gets its id, 0 if it was not made."""

        def make(store: Store) -> None:
            topic = store.create_topic(name, _config(order))
            self.orders[topic.topic_id] = int(order)
            ceiling = Seq(1 + self.plan.storing.ceiling_step)
            change.creates = TopicNumbers(topic.topic_id, ceiling=ceiling, is_strong=order is Order.CLIENT)

        def done(is_made: bool) -> None:
            told(change.creates.topic_id if is_made and change.creates is not None else 0)

        change = Change(f"topic {name} with order {order}", make, done)
        return change

    def delete_change(self, name: str, told: Callable[[bool], None]) -> Change:
        """The end of a topic."""
        topic_id = self.store.catalog.named(name).topic_id
        return Change(
            f"end of topic {name}", lambda store: store.delete_topic(name), told, topic_id=topic_id, deletes=topic_id
        )

    def remove_change(self, name: str, before_seq: int, told: Callable[[bool], None]) -> Change:
        """The removal of a topic's records below a seq."""
        topic_id = self.store.catalog.named(name).topic_id

        def make(store: Store) -> None:
            store.delete_records(name, before_seq=before_seq)

        return Change(f"records of {name} below {before_seq} go", make, told, topic_id=topic_id)

    def _controlled(self, position: int) -> None:
        """A CONTROL is committed."""
        change = self.owner.made.get(position)
        if change is not None and change.session is not None:
            client, epoch, start_seq = change.session
            self.epochs[client] = epoch
            self.history.record(events.SessionOpened(client, epoch, start_seq, position))

    # --- crashes --------------------------------------------------------------------------------------------------

    def crash_broker(self, number: int) -> None:
        """A broker ends without a word."""
        if self.brokers[number] is not None:
            self.brokers[number] = None
            self.history.record(events.Crashed(events.Role.BROKER, number))

    def notice_broker(self, number: int) -> None:
        """The sequencer hears that a broker has ended."""
        if self.sequencer is not None:
            self.sequencer.broker_ended(number, self.clock.monotonic_ns())

    def restart_broker(self, number: int) -> None:
        """Another broker takes the ring over."""
        self.brokers[number] = self._new_broker(number)
        if self.sequencer is not None:
            self.sequencer.broker_began(number, self.clock.monotonic_ns())

    def crash_sequencer(self, role: Role | None = None) -> None:
        """The sequencer ends without a word, inside a step of a role if one is given."""
        assert self.sequencer is not None
        before = self.sequencer.frontier.committed
        if role is not None:
            self.step_role(role)
        if role is not None and role.name == "frontier":
            tear_results(self.fabric, self.chance, before, self.sequencer.frontier.committed)
        elif role is not None:
            # Any worker may have been in the middle of what it wrote last, as long as that is not committed.
            for written in self._written.values():
                if written.start >= before and self.chance.random() < 0.7:
                    tear_entries(self.fabric, self.chance, written)
        self._written.clear()
        self.sequencer = None
        self.history.record(events.Crashed(events.Role.SEQUENCER, 0))

    def restart_sequencer(self) -> list[Change]:
        """Another sequencer goes on in the same fabric; the changes whose entries were lost."""
        self.owner.frontier.clear()
        self.sequencer = PodSequencer.start_warm(
            self.fabric, self.owner.frontier, self.owner, self.plan.sequencing, moment=self.moment
        )
        self.owner.note_term()
        start = self.sequencer.frontier.reserved
        self.observer.recover(self.sequencer.term, start)
        self._notify_clients()
        for number, broker in enumerate(self.brokers):
            if broker is None:
                self.notice_broker(number)
        self.restarts += 1
        return self.owner.forget_changes(start)

    def lose_power(self, keep: Keep = "random") -> None:
        """Everything ends at once, the fabric is gone; then everything starts again from the disk."""
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
        if kept_of(self.store) > last:
            # The power went while a control was carried out, and the log has it.
            self.history.record(events.Committed(last, AckStatus.OK, 0, 0, 0))
            self._controlled(last)
        self.start()

    def with_power(self, step: Callable[[], object]) -> bool:
        """A step in which the power may be lost (`disk.crash_after`): whether it was not."""
        try:
            step()
        except SimCrash:
            if self.sequencer is not None:
                self.look()
            else:
                # One that was about to go on in the same fabric may have committed controls already.
                self.observer.look_at_commits()
            self.lose_power()
            return False
        return True


def _config(order: Order) -> TopicConfig:
    return TopicConfig(order=order, segment_max_records=50)
