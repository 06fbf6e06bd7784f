"""A run of a simulated pod that a seed decides: who steps next, what is sent, what goes wrong.

    outcome = run(seed)                # OrderingViolationError if a promise was broken
    outcome.history.render()

The first part of a run has faults; then they stop, everything that is under way comes to its end, and the history is
judged by every checker. The same seed is the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from seawall.sequencer.collector import CollectorSettings
from seawall.sequencer.order_worker import OrderSettings
from seawall.sequencer.pod_sequencer import SequencerMode, SequencerSettings
from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History
from seawall.testing.checkers.order_events import ReadMode
from seawall.testing.checkers.ordering_checkers import check_all
from seawall.testing.pod.batches import Frame
from seawall.testing.pod.broker import Answer
from seawall.testing.pod.clients import SYNTHETIC, Lone, Network, NetworkFaults, Publisher
from seawall.testing.pod.owner import Change
from seawall.testing.pod.readers import OrderReader, StoreReader
from seawall.testing.pod.world import MILLISECOND_NS, PodPlan, SimPod
from seawall.topics.config import Order

__all__ = ["PodRun", "plan_of", "run"]

_SETTLE_ROUNDS = 1_000
_TOPICS = {
    "none": Order.NONE,
    "broker": Order.BROKER,
    "total": Order.TOTAL,
    "first": Order.CLIENT,
    "second": Order.CLIENT,
}


def plan_of(chance: Random) -> PodPlan:
    """A pod of any mode, with small limits."""
    mode = chance.choice(tuple(SequencerMode))
    is_many = mode is SequencerMode.SCATTER_GATHER
    ordering = OrderSettings(
        drain_refs=chance.choice((2, 8, 64)),
        hold_max=chance.choice((4, 16)),
        pages=chance.choice((3, 16)),
        silence_ns=60 * MILLISECOND_NS,
        clients_max=chance.choice((2, 64)),
        remembered_max=chance.choice((4, 64)),
    )
    sequencing = SequencerSettings(
        mode=mode,
        collectors=chance.randint(1, 2) if is_many else 1,
        workers=chance.randint(2, 3) if is_many else 1,
        collecting=CollectorSettings(
            slots_per_ring=chance.choice((3, 64)), stuck_after_ns=chance.choice((2, 30)) * MILLISECOND_NS
        ),
        ordering=ordering,
        reconcile_after_ns=50 * MILLISECOND_NS,
    )
    plan = PodPlan()
    storing = replace(plan.storing, ceiling_step=chance.choice((8, 40, 400)))
    return replace(plan, sequencing=sequencing, storing=storing, brokers=chance.randint(2, 4))


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How likely things go wrong, in one step."""

    broker_crash: float = 0.0
    sequencer_crash: float = 0.0
    power_loss: float = 0.0
    pause: float = 0.0
    slow_frame: float = 0.0
    change: float = 0.01
    forgery: float = 0.0

    @classmethod
    def of(cls, chance: Random) -> FaultRates:
        """Some of them, in some runs."""
        return cls(
            broker_crash=chance.choice((0.0, 0.003)),
            sequencer_crash=chance.choice((0.0, 0.004)),
            power_loss=chance.choice((0.0, 0.0, 0.0015)),
            pause=chance.choice((0.0, 0.01)),
            slow_frame=chance.choice((0.0, 0.05, 0.2)),
            forgery=chance.choice((0.0, 0.01)),
        )


class PodRun:
    """One run."""

    def __init__(self, seed: int, steps: int = 800) -> None:
        self.chance = chance = Random(seed)
        self.steps = steps
        self.pod = SimPod(seed, plan_of(chance))
        self.pod.create_topics(_TOPICS)
        self.pod.start()
        self.troubles = FaultRates.of(chance)
        self.network = Network(self.pod, chance)
        self.network.weather = NetworkFaults(
            chance.choice((0.0, 0.02, 0.1)), chance.choice((0.0, 0.05)), chance.choice((1, 4)) * MILLISECOND_NS
        )
        self.publishers = {
            client: Publisher(
                *(self.network, client, level, after_gap_ns, chance.choice((15, 40)) * MILLISECOND_NS),
            )
            for client, level, after_gap_ns in ((7, 2, 0), (8, 1, 5 * MILLISECOND_NS), (9, 2, 8 * MILLISECOND_NS))
        }
        self.lone = Lone(self.network, 60 * MILLISECOND_NS)
        topics = sorted(self.pod.orders)
        self.names: dict[int, str] = dict(zip(topics, _TOPICS, strict=True))
        modes = [(mode, topic) for mode in ReadMode for topic in (0, topics[-1])]
        self.order_readers = [OrderReader(self.pod, number, *each) for number, each in enumerate(modes, 1)]
        self.store_readers = {topic: StoreReader(self.pod, 100 + topic, topic) for topic in topics}
        self.paused: dict[str, int] = {}
        self.pending: list[Change] = []
        self.created = 0
        self.crash_in = 0

    def run(self) -> History:
        """All of it; the history, which keeps every promise."""
        for publisher in self.publishers.values():
            publisher.open()
        for _ in range(self.steps):
            self.step()
        self.settle()
        check_all(self.pod.history)
        return self.pod.history

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Time passes, somebody steps, something may go wrong."""
        chance, pod = self.chance, self.pod
        pod.clock.advance(chance.randint(1, 400_000))
        draw = chance.random()
        if draw < 0.22:
            self._publish()
        elif draw < 0.47:
            self._step("broker", chance.randrange(pod.plan.brokers), self._step_broker)
        elif draw < 0.80 and pod.roles:
            role = chance.choice(pod.roles)
            self._step(role.name, 0, lambda _: pod.step_role(role))
        elif draw < 0.94:
            chance.choice((self._follow, pod.tell, pod.advance, pod.advance))()
        else:
            self._read()
        self._restart_some()
        self._go_wrong()

    def _step(self, name: str, number: int, step: Callable[[int], object]) -> None:
        """A step of somebody who is not paused; the power may go in it."""
        key = f"{name} {number}"
        if self.paused.get(key, 0) > self.pod.clock.monotonic_ns():
            return
        if self.troubles.pause and self.chance.random() < self.troubles.pause:
            self.paused[key] = self.pod.clock.monotonic_ns() + self.chance.randint(1, 20) * MILLISECOND_NS
            return
        self._with_power(lambda: step(number))

    def _with_power(self, step: Callable[[], object]) -> bool:
        """A step in which the power may go: whether it did not."""
        if self.pod.with_power(step):
            return True
        self._power_was_lost()
        return False

    def _step_broker(self, number: int) -> None:
        self.pod.step_broker(number, self._answer, slow_chance=self.troubles.slow_frame)

    def _answer(self, answer: Answer) -> None:
        client = answer.frame.batch.client
        to = self.lone.take if client & SYNTHETIC else self.publishers[client].take
        self.network.answer(to, answer)

    def _follow(self) -> None:
        self._step("replica", 0, lambda _: self.pod.follow())

    def _read(self) -> None:
        self.chance.choice(self.order_readers).step()
        # The first read of a topic puts its directory in order, which changes the disk: the power may go in it.
        self._with_power(self.store_readers[self.chance.choice(sorted(self.store_readers))].step)

    def _publish(self) -> None:
        chance = self.chance
        topic = chance.choice(sorted(self.names))
        records, size = chance.randint(1, 3), chance.choice((10, 200, 2_000))
        if chance.random() < 0.2:
            self.lone.send(topic, chance.choice((0, 1, 2)), records, size)
            return
        publisher = chance.choice([*self.publishers.values()])
        publisher.try_open()
        if publisher.epoch and len(publisher.outbox) < 30 and chance.random() < 0.8:
            is_lost = bool(publisher.after_gap_ns) and chance.random() < 0.03
            topic = chance.choice(sorted(self._session_topics()))
            publisher.make(topic, records, size, is_lost=is_lost)
        publisher.send_due(chance.randint(1, 4))
        if publisher.old_epoch and publisher.outbox and chance.random() < 0.1:
            client_seq = chance.choice(sorted(publisher.outbox))
            publisher.send(client_seq, chance.randrange(self.pod.plan.brokers), epoch=publisher.old_epoch)

    def _session_topics(self) -> list[int]:
        """Order 0 is answered on arrival, which a session could take for more than it is."""
        return [topic for topic in self.names if self.pod.orders[topic]]

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _go_wrong(self) -> None:
        chance, pod, troubles = self.chance, self.pod, self.troubles
        if chance.random() < troubles.change:
            self._change()
        if self.pending and chance.random() < 0.2:
            self._with_power(self._order_pending)
        if chance.random() < troubles.forgery:
            self._forge()
        if chance.random() < troubles.broker_crash:
            pod.crash_broker(chance.randrange(pod.plan.brokers))
        self.crash_in -= 1
        if pod.sequencer is not None and (chance.random() < troubles.sequencer_crash or self.crash_in == 0):
            roles = [role for role in pod.roles if not role.name.startswith("collector")]
            role = chance.choice([None, *roles])
            self._with_power(lambda: pod.crash_sequencer(role))
        if chance.random() < troubles.power_loss:
            if chance.random() < 0.5:
                pod.disk.crash_after(chance.randint(1, 12))
            else:
                pod.lose_power(chance.choice(("none", "all", "random")))
                self._power_was_lost()
        self.lone.give_up()

    def _restart_some(self) -> None:
        chance, pod = self.chance, self.pod
        for number, broker in enumerate(pod.brokers):
            if broker is None:
                if chance.random() < 0.05:
                    pod.notice_broker(number)
                if chance.random() < 0.05:
                    pod.restart_broker(number)
        if pod.sequencer is None and chance.random() < 0.1:
            self._with_power(self._restart_sequencer)

    def _restart_sequencer(self) -> None:
        for change in self.pod.restart_sequencer():
            if change.session is not None:
                self.publishers[change.session.client_id].lost_session()
            else:
                self.pending.append(change)
        for publisher in self.publishers.values():
            if publisher.after_gap_ns or not publisher.epoch:
                publisher.open()
        # Whoever crashed may crash again at once.
        if self.troubles.sequencer_crash and self.chance.random() < 0.4:
            self.crash_in = self.chance.randint(1, 25)

    def _power_was_lost(self) -> None:
        self.network.life += 1
        self.pending.clear()
        self.lone.give_up(everybody=True)
        for publisher in self.publishers.values():
            publisher.lost_session()
            publisher.open()

    def _change(self) -> None:
        """Somebody asks for a change."""
        chance, pod = self.chance, self.pod
        kind = chance.choice(("session", "create", "delete", "remove", "remove"))
        if kind == "session":
            chance.choice([*self.publishers.values()]).open()
        elif kind == "create" and self.created < 4:
            self._create()
        elif kind == "delete":
            extra = [topic for topic, name in self.names.items() if name not in _TOPICS]
            if extra:
                topic = chance.choice(extra)
                self.pending.append(pod.delete_change(self.names.pop(topic), lambda _: None))
        elif kind == "remove":
            self._remove(chance.choice(sorted(_TOPICS)))

    def _create(self) -> None:
        self.created += 1
        name = f"extra-{self.created}"

        def created(topic_id: int) -> None:
            if topic_id:
                self.names[topic_id] = name
                self.store_readers[topic_id] = StoreReader(self.pod, 100 + topic_id, topic_id)

        self.pending.append(self.pod.create_change(name, self.chance.choice((Order.TOTAL, Order.CLIENT)), created))

    def _remove(self, name: str) -> None:
        topic = self.pod.store.catalog.named(name)
        before = self.chance.randint(1, topic.next_seq)
        reader = self.store_readers[topic.topic_id]

        # Whether or not somebody is told of it: the power may go in between.
        reader.removed_below = max(reader.removed_below, before)
        self.pending.append(self.pod.remove_change(name, before, lambda _: None))

    def _order_pending(self) -> None:
        if self.pod.order(self.pending[0]):
            self.pending.pop(0)

    def _forge(self) -> None:
        """Somebody sends other bytes under a number that was answered for."""
        publisher = self.chance.choice([*self.publishers.values()])
        answered = sorted(set(publisher.made) - set(publisher.outbox))
        # While a session opens, what was answered for may have been lost with the power.
        if answered and publisher.epoch and publisher.opening is None and not publisher.is_waiting:
            batch = replace(publisher.made[self.chance.choice(answered)], is_forged=True)
            broker = self.chance.randrange(self.pod.plan.brokers)
            self.network.send(Frame.of(batch, publisher.epoch, broker))

    # --- the end --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No faults any more, until nothing is under way."""
        self.troubles = FaultRates(change=0.0)
        self.network.weather = NetworkFaults()
        self.paused.clear()
        self.pod.disk.clear_faults()
        self._come_to_rest()
        # A power loss may have been on its way until here, and reads may recover topics: then all of it once more.
        while not self._with_power(self._read_all):
            self._come_to_rest()
        self.pod.history.record(events.Settled())

    def _come_to_rest(self) -> None:
        for _ in range(_SETTLE_ROUNDS):
            self._with_power(self._settle_round)  # a power loss may have been on its way
            if self._is_quiet():
                break

    def _read_all(self) -> None:
        for _ in range(3):
            for in_order in self.order_readers:
                in_order.step()
            for in_store in self.store_readers.values():
                in_store.step()

    def _settle_round(self) -> None:
        pod = self.pod
        pod.clock.advance(2 * MILLISECOND_NS)
        for number, broker in enumerate(pod.brokers):
            if broker is None:
                pod.notice_broker(number)
                pod.restart_broker(number)
        if pod.sequencer is None:
            self._restart_sequencer()
        for publisher in self.publishers.values():
            publisher.try_open()
            publisher.send_due(8)
            now = pod.clock.monotonic_ns()
            if publisher.outbox and now - publisher.stuck_since > 200 * MILLISECOND_NS:
                publisher.open()
        self.lone.give_up()
        if self.pending:
            self._order_pending()
        for number in range(pod.plan.brokers):
            self._step_broker(number)
        for _ in range(4):
            if not sum(pod.step_role(role) for role in pod.roles):
                break
        while pod.follow():
            pass
        pod.tell()
        pod.advance()
        for reader in self.order_readers:
            reader.step()

    def _is_quiet(self) -> bool:
        pod = self.pod
        sequencer = pod.sequencer
        if sequencer is None or self.pending or self.lone.waiting:
            return False
        if not all(publisher.is_done for publisher in self.publishers.values()):
            return False
        if not all(broker is not None and broker.is_idle for broker in pod.brokers):
            return False
        control, fabric = pod.fabric.control[0], pod.fabric
        claimed = sum(int(fabric.tail_words[number][0]) for number in range(pod.plan.brokers))
        completed = sum(int(fabric.completion_words[number][0]) for number in range(pod.plan.brokers))
        return int(control["durable"]) == sequencer.frontier.reserved and claimed == completed


def run(seed: int, steps: int = 800) -> PodRun:
    """One run; `OrderingViolationError` if it broke a promise."""
    made = PodRun(seed, steps)
    made.run()
    return made
