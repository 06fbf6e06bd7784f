"""Publishers of a simulated pod, and the network between them and the brokers.

A publisher numbers its batches, keeps each until it is answered as durably as it wants it, and sends it again after a
while, through another broker. RETRY means: again, later. A refusal is final, unless the session was fenced. When its
session opens anew it sends everything again that is not decided. Publishers without a session send a batch once, and
never again unless they are told that it was not taken.

The network delays, loses and repeats frames; frames of one connection (a publisher and a broker) keep their order.
Whoever is given up is written down as crashed: nobody owes it an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.order_events import AckStatus
from seawall.testing.checkers.order_state import violated
from seawall.testing.pod.batches import Batch, Frame
from seawall.testing.pod.broker import Answer
from seawall.testing.pod.owner import Change
from seawall.testing.pod.world import MILLISECOND_NS, SimPod
from seawall.wire.format.codes import POSITION_UNKNOWN, ErrorCode

__all__ = ["Lone", "Network", "Publisher"]

_STORED = (AckStatus.OK, AckStatus.DUPLICATE)
_AGAIN = (AckStatus.RETRY, AckStatus.UNKNOWN)
#: Clients with this bit have no session.
SYNTHETIC = 1 << 63


@dataclass(slots=True)
class NetworkFaults:
    """How bad the network is."""

    loss: float = 0.0
    repeats: float = 0.0
    delay_ns: int = MILLISECOND_NS


class Network:
    """Frames to brokers and answers to publishers, each after a while."""

    def __init__(self, pod: SimPod, chance: Random) -> None:
        self.pod = pod
        self.chance = chance
        self.weather = NetworkFaults()
        #: Anything that was sent in an earlier life is lost on its way.
        self.life = 0
        self._latest: dict[tuple[int, int], int] = {}

    def send(self, frame: Frame, *, once: bool = False) -> None:
        """A frame begins its way; it is lost or repeated as the weather is."""
        batch = frame.batch
        if not batch.is_forged:
            self.pod.history.record(
                events.Sent(
                    *(batch.client, batch.client_seq, frame.epoch, frame.broker, batch.topic, batch.order),
                    *(batch.records, batch.crc, batch.level),
                )
            )
        if self.chance.random() < self.weather.loss:
            return
        self._deliver(frame)
        if not once and self.chance.random() < self.weather.repeats:
            self._deliver(frame)

    def _deliver(self, frame: Frame) -> None:
        now = self.pod.clock.monotonic_ns()
        connection = (frame.batch.client, frame.broker)
        at = max(now + self._delay(), self._latest.get(connection, 0))
        self._latest[connection] = at

        def arrive() -> None:
            broker = self.pod.brokers[frame.broker]
            if broker is not None:
                broker.inbox.append(frame)

        self._later(at, arrive)

    def answer(self, to: Callable[[Answer], None], answer: Answer) -> None:
        """An answer begins its way back."""
        if self.chance.random() >= self.weather.loss:
            self._later(self.pod.clock.monotonic_ns() + self._delay(), lambda: to(answer))

    def _later(self, at: int, do: Callable[[], None]) -> None:
        life = self.life

        def due() -> None:
            if self.life == life:
                do()

        self.pod.clock.at(at, due)

    def _delay(self) -> int:
        usual = self.weather.delay_ns
        return self.chance.randint(0, usual * 10 if self.chance.random() < 0.05 else usual)


def report_answer(pod: SimPod, answer: Answer) -> AckStatus:
    """Write down that a publisher got an answer."""
    status = AckStatus(answer.status)
    position = answer.original if status is AckStatus.DUPLICATE else answer.position
    # A repetition may be told where the first is and, where its numbers are forgotten, no seq.
    is_known = status in _STORED and position != POSITION_UNKNOWN and answer.base_seq > 0
    batch = answer.frame.batch
    step = pod.history.record(
        events.Answered(
            *(batch.client, batch.client_seq, answer.level, status),
            *(position if is_known else None, answer.base_seq if is_known else 0),
        )
    )
    if batch.is_forged and is_known:
        violated("Property 1", "other bytes under the same number were answered for as stored", step)
    return status


@dataclass
class Publisher:
    """A client with sessions."""

    network: Network
    client: int
    level: int
    after_gap_ns: int
    resend_ns: int
    epoch: int = 0
    old_epoch: int = 0  #: of the session before, which may still be tried
    next_seq: int = 1
    opening: Change | None = None  #: to be ordered
    is_waiting: bool = False  #: for a session that is ordered
    made: dict[int, Batch] = field(default_factory=dict)
    outbox: dict[int, int] = field(default_factory=dict)  #: client seq: when it is sent again
    tries: dict[int, int] = field(default_factory=dict)  #: client seq: how often it was sent
    stuck_since: int = 0

    @property
    def pod(self) -> SimPod:
        """The pod it publishes to."""
        return self.network.pod

    # --- sessions -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask for a session, or for a newer one."""
        if self.opening is None and not self.is_waiting:
            self.stuck_since = self.pod.clock.monotonic_ns()
            self.opening = self.pod.session_change(self.client, 1, self._opened, after_gap_ns=self.after_gap_ns)

    def try_open(self) -> None:
        """Have the session ordered that was asked for."""
        if self.opening is not None and self.pod.order(self.opening):
            self.opening, self.is_waiting = None, True

    def lost_session(self) -> None:
        """The opening that was under way is gone."""
        self.opening, self.is_waiting = None, False

    def _opened(self, epoch: int, next_seq: int) -> None:
        self.is_waiting = False
        if not epoch:
            return
        self.old_epoch, self.epoch = self.epoch, epoch
        now = self.pod.clock.monotonic_ns()
        self.stuck_since = now
        for client_seq in self.made:
            if client_seq >= next_seq:
                self.outbox.setdefault(client_seq, now)
        self.next_seq = max(self.next_seq, next_seq)

    # --- batches --------------------------------------------------------------------------------------------------

    def make(self, topic: int, records: int, size: int, *, is_lost: bool = False) -> Batch | None:
        """Number the next batch; one that is lost never leaves."""
        batch = Batch(self.client, self.next_seq, topic, self.pod.orders[topic], self.level, records, size)
        self.next_seq += 1
        if is_lost:
            return None
        self.made[batch.client_seq] = batch
        self.outbox[batch.client_seq] = 0
        return batch

    def send(self, client_seq: int, broker: int, *, epoch: int | None = None) -> None:
        """Send a batch, for the first time or again."""
        tries = self.tries[client_seq] = self.tries.get(client_seq, 0) + 1
        self.outbox[client_seq] = self.pod.clock.monotonic_ns() + (self.resend_ns << min(tries - 1, 2))
        self.network.send(Frame.of(self.made[client_seq], self.epoch if epoch is None else epoch, broker))

    def send_due(self, most: int) -> None:
        """Send what is new, and what was not answered in time."""
        if not self.epoch:
            return
        now, chance = self.pod.clock.monotonic_ns(), self.network.chance
        for client_seq in [seq for seq, at in sorted(self.outbox.items()) if at <= now][:most]:
            self.send(client_seq, chance.randrange(self.pod.plan.brokers))

    def take(self, answer: Answer) -> None:
        """An answer has come."""
        status = report_answer(self.pod, answer)
        client_seq, epoch = answer.frame.batch.client_seq, answer.frame.epoch
        now = self.pod.clock.monotonic_ns()
        if answer.frame.batch.is_forged:
            return
        if status is AckStatus.REJECTED and answer.reason == ErrorCode.FENCED:
            self.pod.history.record(events.SessionFenced(self.client, epoch))
            if epoch == self.epoch:
                self.open()
        elif status in _AGAIN:
            if client_seq in self.outbox:
                self.outbox[client_seq] = now + self.network.chance.randint(0, self.resend_ns)
        else:
            self.outbox.pop(client_seq, None)
            self.stuck_since = now

    @property
    def is_done(self) -> bool:
        """Whether everything is answered."""
        return not self.outbox and not self.is_waiting and self.opening is None


@dataclass
class Lone:
    """Publishers without a session, each of one batch."""

    network: Network
    patience_ns: int
    count: int = 0
    waiting: dict[int, int] = field(default_factory=dict)  #: client: when it gives up

    def send(self, topic: int, level: int, records: int, size: int) -> None:
        """One batch of somebody new."""
        self.count += 1
        pod = self.network.pod
        client = SYNTHETIC | self.count
        batch = Batch(client, 1, topic, pod.orders[topic], level, records, size)
        if level:
            self.waiting[client] = pod.clock.monotonic_ns() + self.patience_ns
        self._send(batch)

    def _send(self, batch: Batch) -> None:
        broker = self.network.chance.randrange(self.network.pod.plan.brokers)
        self.network.send(Frame.of(batch, 0, broker), once=True)

    def take(self, answer: Answer) -> None:
        """An answer has come."""
        status = report_answer(self.network.pod, answer)
        batch = answer.frame.batch
        if status in _AGAIN:
            if batch.client in self.waiting:
                self._send(batch)
        else:
            self.waiting.pop(batch.client, None)

    def give_up(self, *, everybody: bool = False) -> None:
        """Those who have waited for too long, or all of them, go away."""
        pod = self.network.pod
        now = pod.clock.monotonic_ns()
        for client in [each for each, until in self.waiting.items() if everybody or until <= now]:
            del self.waiting[client]
            pod.history.record(events.Crashed(events.Role.CLIENT, client))
