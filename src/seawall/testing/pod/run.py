"""Run a simulated pod by seeded choices: which role steps next, what is published, which faults happen.

    finished = run(seed)               # raises OrderingViolationError if a guarantee was violated
    finished.pod.history.render()

The first part of a run has faults. Then the faults stop, all work in flight completes, and every checker checks the
history. The same seed gives the same run.
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
from seawall.testing.pod.clients import SYNTHETIC, Network, NetworkFaults, Publisher, SessionlessPublishers
from seawall.testing.pod.owner import Change
from seawall.testing.pod.readers import OrderReader, StoreReader
from seawall.testing.pod.world import MILLISECOND_NS, PodPlan, SimPod
from seawall.topics.config import Order

__all__ = ["PodRun", "random_plan", "run"]

_SETTLE_ROUNDS = 1_000
_TOPICS = {
    "none": Order.NONE,
    "broker": Order.BROKER,
    "total": Order.TOTAL,
    "first": Order.CLIENT,
    "second": Order.CLIENT,
}


def random_plan(chance: Random) -> PodPlan:
    """Choose the parameters of a pod: any mode, with small limits."""
    mode = chance.choice(tuple(SequencerMode))
    has_many = mode is SequencerMode.SCATTER_GATHER
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
        collectors=chance.randint(1, 2) if has_many else 1,
        workers=chance.randint(2, 3) if has_many else 1,
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
    """The probability of each fault, per step."""

    broker_crash: float = 0.0
    sequencer_crash: float = 0.0
    power_loss: float = 0.0
    pause: float = 0.0
    slow_frame: float = 0.0
    change: float = 0.01
    forgery: float = 0.0

    @classmethod
    def of(cls, chance: Random) -> FaultRates:
        """Choose the rates of a run; most runs have only some of the faults."""
        return cls(
            broker_crash=chance.choice((0.0, 0.003)),
            sequencer_crash=chance.choice((0.0, 0.004)),
            power_loss=chance.choice((0.0, 0.0, 0.0015)),
            pause=chance.choice((0.0, 0.01)),
            slow_frame=chance.choice((0.0, 0.05, 0.2)),
            forgery=chance.choice((0.0, 0.01)),
        )


class PodRun:
    """One seeded run of a pod."""

    def __init__(self, seed: int, steps: int = 800) -> None:
        self.chance = chance = Random(seed)
        self.steps = steps
        self.pod = SimPod(seed, random_plan(chance))
        self.pod.create_topics(_TOPICS)
        self.pod.start()
        self.fault_rates = FaultRates.of(chance)
        self.network = Network(self.pod, chance)
        self.network.faults = NetworkFaults(
            chance.choice((0.0, 0.02, 0.1)), chance.choice((0.0, 0.05)), chance.choice((1, 4)) * MILLISECOND_NS
        )
        self.publishers = {
            client: Publisher(
                *(self.network, client, level, after_gap_ns, chance.choice((15, 40)) * MILLISECOND_NS),
            )
            for client, level, after_gap_ns in ((7, 2, 0), (8, 1, 5 * MILLISECOND_NS), (9, 2, 8 * MILLISECOND_NS))
        }
        self.sessionless = SessionlessPublishers(self.network, 60 * MILLISECOND_NS)
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
        """Run and settle the pod, check its history against all properties, and return it."""
        for publisher in self.publishers.values():
            publisher.open()
        for _ in range(self.steps):
            self.step()
        self.settle()
        check_all(self.pod.history)
        return self.pod.history

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Advance the clock, run one step of a role or client, and possibly cause a fault."""
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
            chance.choice((self._step_replica, pod.report_durable, pod.advance, pod.advance))()
        else:
            self._read()
        self._restart_some()
        self._cause_faults()

    def _step(self, name: str, number: int, step: Callable[[int], object]) -> None:
        """Run a step unless its role is paused; the power may be lost in it."""
        key = f"{name} {number}"
        if self.paused.get(key, 0) > self.pod.clock.monotonic_ns():
            return
        if self.fault_rates.pause and self.chance.random() < self.fault_rates.pause:
            self.paused[key] = self.pod.clock.monotonic_ns() + self.chance.randint(1, 20) * MILLISECOND_NS
            return
        self._with_power(lambda: step(number))

    def _with_power(self, step: Callable[[], object]) -> bool:
        """Run a step in which the power may be lost; False if it was."""
        if self.pod.with_power(step):
            return True
        self._handle_power_loss()
        return False

    def _step_broker(self, number: int) -> None:
        self.pod.step_broker(number, self._answer, slow_chance=self.fault_rates.slow_frame)

    def _answer(self, answer: Answer) -> None:
        client = answer.frame.batch.client
        to = self.sessionless.handle_answer if client & SYNTHETIC else self.publishers[client].handle_answer
        self.network.answer(to, answer)

    def _step_replica(self) -> None:
        self._step("replica", 0, lambda _: self.pod.step_replica())

    def _read(self) -> None:
        self.chance.choice(self.order_readers).step()
        # The first read of a topic cleans up its directory, which changes the disk: the power may be lost in it.
        self._with_power(self.store_readers[self.chance.choice(sorted(self.store_readers))].step)

    def _publish(self) -> None:
        chance = self.chance
        topic = chance.choice(sorted(self.names))
        records, size = chance.randint(1, 3), chance.choice((10, 200, 2_000))
        if chance.random() < 0.2:
            self.sessionless.send(topic, chance.choice((0, 1, 2)), records, size)
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
        """All topics except those of order 0, whose ack on arrival a session could take for a stored batch."""
        return [topic for topic in self.names if self.pod.orders[topic]]

    # --- faults ---------------------------------------------------------------------------------------------------

    def _cause_faults(self) -> None:
        chance, pod, rates = self.chance, self.pod, self.fault_rates
        if chance.random() < rates.change:
            self._request_change()
        if self.pending and chance.random() < 0.2:
            self._with_power(self._order_pending)
        if chance.random() < rates.forgery:
            self._forge()
        if chance.random() < rates.broker_crash:
            pod.crash_broker(chance.randrange(pod.plan.brokers))
        self.crash_in -= 1
        if pod.sequencer is not None and (chance.random() < rates.sequencer_crash or self.crash_in == 0):
            roles = [role for role in pod.roles if not role.name.startswith("collector")]
            role = chance.choice([None, *roles])
            self._with_power(lambda: pod.crash_sequencer(role))
        if chance.random() < rates.power_loss:
            if chance.random() < 0.5:
                pod.disk.crash_after(chance.randint(1, 12))
            else:
                pod.lose_power(chance.choice(("none", "all", "random")))
                self._handle_power_loss()
        self.sessionless.give_up()

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
                self.publishers[change.session.client_id].drop_opening()
            else:
                self.pending.append(change)
        for publisher in self.publishers.values():
            if publisher.after_gap_ns or not publisher.epoch:
                publisher.open()
        # A restarted sequencer may crash again soon.
        if self.fault_rates.sequencer_crash and self.chance.random() < 0.4:
            self.crash_in = self.chance.randint(1, 25)

    def _handle_power_loss(self) -> None:
        self.network.generation += 1
        self.pending.clear()
        self.sessionless.give_up(all_clients=True)
        for publisher in self.publishers.values():
            publisher.drop_opening()
            publisher.open()

    def _request_change(self) -> None:
        """Request a random change."""
        chance, pod = self.chance, self.pod
        kind = chance.choice(("session", "create", "delete", "delete records", "delete records"))
        if kind == "session":
            chance.choice([*self.publishers.values()]).open()
        elif kind == "create" and self.created < 4:
            self._create()
        elif kind == "delete":
            extra = [topic for topic, name in self.names.items() if name not in _TOPICS]
            if extra:
                topic = chance.choice(extra)
                self.pending.append(pod.delete_change(self.names.pop(topic), lambda _: None))
        elif kind == "delete records":
            self._delete_records(chance.choice(sorted(_TOPICS)))

    def _create(self) -> None:
        self.created += 1
        name = f"extra-{self.created}"

        def created(topic_id: int) -> None:
            if topic_id:
                self.names[topic_id] = name
                self.store_readers[topic_id] = StoreReader(self.pod, 100 + topic_id, topic_id)

        self.pending.append(self.pod.create_change(name, self.chance.choice((Order.TOTAL, Order.CLIENT)), created))

    def _delete_records(self, name: str) -> None:
        topic = self.pod.store.catalog.named(name)
        before = self.chance.randint(1, topic.next_seq)
        reader = self.store_readers[topic.topic_id]

        # Set before the change is confirmed: the power may be lost in between.
        reader.deleted_below = max(reader.deleted_below, before)
        self.pending.append(self.pod.delete_records_change(name, before, lambda _: None))

    def _order_pending(self) -> None:
        if self.pod.order(self.pending[0]):
            self.pending.pop(0)

    def _forge(self) -> None:
        """Send a batch with other bytes under an acknowledged client seq."""
        publisher = self.chance.choice([*self.publishers.values()])
        answered = sorted(set(publisher.batches) - set(publisher.outbox))
        # While a session opens, acknowledged batches may have been lost in a power loss.
        if answered and publisher.epoch and publisher.opening is None and not publisher.is_waiting:
            batch = replace(publisher.batches[self.chance.choice(answered)], is_forged=True)
            broker = self.chance.randrange(self.pod.plan.brokers)
            self.network.send(Frame.of(batch, publisher.epoch, broker))

    # --- the end --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run without faults until nothing is in flight."""
        self.fault_rates = FaultRates(change=0.0)
        self.network.faults = NetworkFaults()
        self.paused.clear()
        self.pod.disk.clear_faults()
        self._run_until_quiet()
        # A scheduled power loss may strike until here, also in reads that recover topics: then settle again.
        while not self._with_power(self._read_all):
            self._run_until_quiet()
        self.pod.history.record(events.Settled())

    def _run_until_quiet(self) -> None:
        for _ in range(_SETTLE_ROUNDS):
            self._with_power(self._settle_round)  # a scheduled power loss may strike here
            if self._is_quiet():
                break

    def _read_all(self) -> None:
        for _ in range(3):
            for order_reader in self.order_readers:
                order_reader.step()
            for store_reader in self.store_readers.values():
                store_reader.step()

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
        self.sessionless.give_up()
        if self.pending:
            self._order_pending()
        for number in range(pod.plan.brokers):
            self._step_broker(number)
        for _ in range(4):
            if not sum(pod.step_role(role) for role in pod.roles):
                break
        while pod.step_replica():
            pass
        pod.report_durable()
        pod.advance()
        for reader in self.order_readers:
            reader.step()

    def _is_quiet(self) -> bool:
        pod = self.pod
        sequencer = pod.sequencer
        if sequencer is None or self.pending or self.sessionless.waiting:
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
    """Run one seed; raises `OrderingViolationError` if a guarantee was violated."""
    pod_run = PodRun(seed, steps)
    pod_run.run()
    return pod_run
