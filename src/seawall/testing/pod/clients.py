"""Publishers of a simulated pod, and the network between them and the brokers.

A publisher numbers its batches, keeps each until it is acknowledged at the wanted level, and resends it after a while
through another broker. It also resends after RETRY. A rejection is final, unless the session was fenced. After opening
a new session it resends all undecided batches. Publishers without a session send a batch once, and resend it only if a
broker reports that it was not accepted.

The network delays, loses and duplicates frames; frames of one connection (a publisher and a broker) keep their order.
A publisher that gives up is recorded as crashed: it no longer expects an answer.
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

__all__ = ["Network", "Publisher", "SessionlessPublishers"]

_STORED = (AckStatus.OK, AckStatus.DUPLICATE)
_RETRIABLE = (AckStatus.RETRY, AckStatus.UNKNOWN)
#: Clients with this bit have no session.
SYNTHETIC = 1 << 63


@dataclass(slots=True)
class NetworkFaults:
    """Probabilities of loss and duplication, and the usual delay."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay_ns: int = MILLISECOND_NS


class Network:
    """Delivers frames to brokers and answers to publishers, with delays."""

    def __init__(self, pod: SimPod, chance: Random) -> None:
        self.pod = pod
        self.chance = chance
        self.faults = NetworkFaults()
        #: Frames and answers of an earlier generation are lost; every power loss starts a new one.
        self.generation = 0
        self._latest: dict[tuple[int, int], int] = {}

    def send(self, frame: Frame, *, once: bool = False) -> None:
        """Send a frame, which may be lost or, unless `once`, duplicated."""
        batch = frame.batch
        if not batch.is_forged:
            self.pod.history.record(
                events.Sent(
                    *(batch.client, batch.client_seq, frame.epoch, frame.broker, batch.topic, batch.order),
                    *(batch.records, batch.crc, batch.level),
                )
            )
        if self.chance.random() < self.faults.loss:
            return
        self._deliver(frame)
        if not once and self.chance.random() < self.faults.duplicates:
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

        self._at(at, arrive)

    def answer(self, to: Callable[[Answer], None], answer: Answer) -> None:
        """Send an answer to a publisher, which may be lost."""
        if self.chance.random() >= self.faults.loss:
            self._at(self.pod.clock.monotonic_ns() + self._delay(), lambda: to(answer))

    def _at(self, at: int, callback: Callable[[], None]) -> None:
        generation = self.generation

        def due() -> None:
            if self.generation == generation:
                callback()

        self.pod.clock.at(at, due)

    def _delay(self) -> int:
        usual = self.faults.delay_ns
        return self.chance.randint(0, usual * 10 if self.chance.random() < 0.05 else usual)


def report_answer(pod: SimPod, answer: Answer) -> AckStatus:
    """Record that a publisher received an answer."""
    status = AckStatus(answer.status)
    position = answer.original if status is AckStatus.DUPLICATE else answer.position
    # The answer to a duplicate may have the position of the original without a seq, if that is forgotten.
    is_known = status in _STORED and position != POSITION_UNKNOWN and answer.base_seq > 0
    batch = answer.frame.batch
    step = pod.history.record(
        events.Answered(
            *(batch.client, batch.client_seq, answer.level, status),
            *(position if is_known else None, answer.base_seq if is_known else 0),
        )
    )
    if batch.is_forged and is_known:
        violated("Property 1", "a batch with other bytes under the same client seq was acknowledged as stored", step)
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
    old_epoch: int = 0  #: of the previous session, which the run may still try
    next_seq: int = 1
    opening: Change | None = None  #: session change that is not ordered yet
    is_waiting: bool = False  #: for an ordered session change
    batches: dict[int, Batch] = field(default_factory=dict)
    outbox: dict[int, int] = field(default_factory=dict)  #: client seq → time of the next send
    tries: dict[int, int] = field(default_factory=dict)  #: client seq → number of sends
    stuck_since: int = 0

    @property
    def pod(self) -> SimPod:
        """The pod it publishes to."""
        return self.network.pod

    # --- sessions -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Request a session, or a newer one."""
        if self.opening is None and not self.is_waiting:
            self.stuck_since = self.pod.clock.monotonic_ns()
            self.opening = self.pod.session_change(self.client, 1, self._opened, after_gap_ns=self.after_gap_ns)

    def try_open(self) -> None:
        """Order the requested session, if possible now."""
        if self.opening is not None and self.pod.order(self.opening):
            self.opening, self.is_waiting = None, True

    def drop_opening(self) -> None:
        """Forget the session change in flight, which was lost."""
        self.opening, self.is_waiting = None, False

    def _opened(self, epoch: int, next_seq: int) -> None:
        self.is_waiting = False
        if not epoch:
            return
        self.old_epoch, self.epoch = self.epoch, epoch
        now = self.pod.clock.monotonic_ns()
        self.stuck_since = now
        for client_seq in self.batches:
            if client_seq >= next_seq:
                self.outbox.setdefault(client_seq, now)
        self.next_seq = max(self.next_seq, next_seq)

    # --- batches --------------------------------------------------------------------------------------------------

    def make(self, topic: int, records: int, size: int, *, is_lost: bool = False) -> Batch | None:
        """Make the next batch; with `is_lost` only use up its client seq and never send it."""
        batch = Batch(self.client, self.next_seq, topic, self.pod.orders[topic], self.level, records, size)
        self.next_seq += 1
        if is_lost:
            return None
        self.batches[batch.client_seq] = batch
        self.outbox[batch.client_seq] = 0
        return batch

    def send(self, client_seq: int, broker: int, *, epoch: int | None = None) -> None:
        """Send or resend a batch."""
        tries = self.tries[client_seq] = self.tries.get(client_seq, 0) + 1
        self.outbox[client_seq] = self.pod.clock.monotonic_ns() + (self.resend_ns << min(tries - 1, 2))
        self.network.send(Frame.of(self.batches[client_seq], self.epoch if epoch is None else epoch, broker))

    def send_due(self, most: int) -> None:
        """Send up to `most` batches that are new or were not answered in time."""
        if not self.epoch:
            return
        now, chance = self.pod.clock.monotonic_ns(), self.network.chance
        for client_seq in [seq for seq, at in sorted(self.outbox.items()) if at <= now][:most]:
            self.send(client_seq, chance.randrange(self.pod.plan.brokers))

    def handle_answer(self, answer: Answer) -> None:
        """Handle an answer."""
        status = report_answer(self.pod, answer)
        client_seq, epoch = answer.frame.batch.client_seq, answer.frame.epoch
        now = self.pod.clock.monotonic_ns()
        if answer.frame.batch.is_forged:
            return
        if status is AckStatus.REJECTED and answer.reason == ErrorCode.FENCED:
            self.pod.history.record(events.SessionFenced(self.client, epoch))
            if epoch == self.epoch:
                self.open()
        elif status in _RETRIABLE:
            if client_seq in self.outbox:
                self.outbox[client_seq] = now + self.network.chance.randint(0, self.resend_ns)
        else:
            self.outbox.pop(client_seq, None)
            self.stuck_since = now

    @property
    def is_done(self) -> bool:
        """True if every batch is answered and no session is being opened."""
        return not self.outbox and not self.is_waiting and self.opening is None


@dataclass
class SessionlessPublishers:
    """Publishers without a session, each with one batch."""

    network: Network
    patience_ns: int
    count: int = 0
    waiting: dict[int, int] = field(default_factory=dict)  #: client → time when it gives up

    def send(self, topic: int, level: int, records: int, size: int) -> None:
        """Send one batch from a new client."""
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

    def handle_answer(self, answer: Answer) -> None:
        """Handle an answer."""
        status = report_answer(self.network.pod, answer)
        batch = answer.frame.batch
        if status in _RETRIABLE:
            if batch.client in self.waiting:
                self._send(batch)
        else:
            self.waiting.pop(batch.client, None)

    def give_up(self, *, all_clients: bool = False) -> None:
        """Crash the clients that have waited too long, or all of them."""
        pod = self.network.pod
        now = pod.clock.monotonic_ns()
        for client in [each for each, until in self.waiting.items() if all_clients or until <= now]:
            del self.waiting[client]
            pod.history.record(events.Crashed(events.Role.CLIENT, client))
