"""Scripted scenarios of the simulated pod, rendered as readable text: what was sent, and how it was ordered.

A scenario determines when each batch arrives and when each role steps; nothing is random. Its text has one line for
each event, with small numbers: positions count from the first of the scenario.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from seawall.sequencer.order_worker import OrderSettings
from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.order_events import AckStatus, EntryKind
from seawall.testing.checkers.ordering_checkers import check_all
from seawall.testing.pod.batches import Batch, Frame
from seawall.testing.pod.broker import Answer
from seawall.testing.pod.clients import report_answer
from seawall.testing.pod.world import MILLISECOND_NS, PodPlan, SimPod
from seawall.topics.config import Order
from seawall.wire.format.codes import ErrorCode

PLAIN, STRONG = 1, 2
ALICE, BOB = 7, 8


class Script:
    """A pod of three brokers with a plain and a strong topic, and scripted publishers."""

    def __init__(self, *, hold_max: int = 16, silence_ms: int = 60) -> None:
        plan = PodPlan()
        ordering = OrderSettings(
            hold_max=hold_max, silence_ns=silence_ms * MILLISECOND_NS, clients_max=8, remembered_max=8, pages=4
        )
        self.pod = SimPod(1, replace(plan, sequencing=replace(plan.sequencing, ordering=ordering)))
        self.pod.create_topics({"plain": Order.TOTAL, "strong": Order.CLIENT})
        self.pod.start()
        self.first = self.pod.observer.committed
        self.epochs: dict[int, int] = {}
        self.lines: list[str] = []
        self._seen = len(self.pod.history)

    # --- steps ----------------------------------------------------------------------------------------------------

    def open(self, client: int, *, gap_ms: int = 0) -> None:
        """A session of a client, the next one if it has one."""

        def opened(epoch: int, _next_seq: int) -> None:
            self.epochs[client] = epoch

        self.pod.order(self.pod.session_change(client, 1, opened, after_gap_ns=gap_ms * MILLISECOND_NS))
        self.settle()

    def send(
        self,
        client: int,
        *seqs: int,
        broker: int = 0,
        topic: int = STRONG,
        epoch: int = 0,
        is_forged: bool = False,
        size: int = 10,
    ) -> None:
        """Batches arrive at a broker, in this order."""
        for seq in seqs:
            batch = Batch(client, seq, topic, self.pod.orders[topic], 2, 1, size, is_forged)
            used = epoch or self.epochs[client]
            fields = (client, seq, used, broker, topic, batch.order, 1, batch.crc, 2)
            if is_forged:
                self.add_line(f"client {client} sends {seq} with other bytes to broker {broker}")
            else:
                self.pod.history.record(events.Sent(*fields))
            node = self.pod.brokers[broker]
            assert node is not None
            node.inbox.append(Frame.of(batch, used, broker))
            while node.inbox:
                self.pod.step_broker(broker, self._answer)
        self.render_new()

    def order(self) -> None:
        """The sequencer collects and commits all available batches."""
        for role in self.pod.roles:
            self.pod.step_role(role)
        self.render_new()

    def settle(self) -> None:
        """Everything is ordered, stored and answered."""
        for _ in range(4):
            self.order()
            while self.pod.step_replica():
                pass
            self.pod.report_durable()
            self.pod.advance()
            for number in range(self.pod.plan.brokers):
                self.pod.step_broker(number, self._answer)
        self.render_new()

    def wait(self, milliseconds: int) -> None:
        """Time passes."""
        self.add_line(f"{milliseconds} ms pass")
        self.pod.clock.advance(milliseconds * MILLISECOND_NS)

    def add_line(self, line: str) -> None:
        """Add a line to the text."""
        self.render_new()
        self.lines.append(line)

    def text(self) -> str:
        """The whole text, after checking every guarantee."""
        self.render_new()
        check_all(self.pod.history)
        return "\n".join(self.lines) + "\n"

    def _answer(self, answer: Answer) -> None:
        report_answer(self.pod, answer)
        reason = f", {ErrorCode(answer.reason).name.lower()}" if answer.reason else ""
        batch = answer.frame.batch
        self.render_new()
        status = AckStatus(answer.status)
        known = f" at {self.at(answer.position if status is AckStatus.OK else answer.original)}, seq {answer.base_seq}"
        where = known if status in (AckStatus.OK, AckStatus.DUPLICATE) else ""
        self.lines.append(f"    client {batch.client} hears of {batch.client_seq}: {status.name}{reason}{where}")

    # --- rendering ------------------------------------------------------------------------------------------------

    def at(self, position: int) -> int:
        """A position, counted from the first of the scenario."""
        return position - self.first

    def render_new(self) -> None:
        """Add lines for the events since the last call."""
        steps = list(self.pod.history)
        for step in steps[self._seen :]:
            line = self._line(step.event)
            if line:
                self.lines.append(line)
        self._seen = len(steps)

    def _line(self, event: events.OrderEvent) -> str:
        match event:
            case events.Sent():
                return f"client {event.client} sends {event.client_seq} to broker {event.broker}"
            case events.SessionOpened():
                return f"client {event.client} has session {event.session_epoch}"
            case events.Ordered(kind=EntryKind.SKIP):
                lost = f"{event.client_seq} to {event.client_seq + event.skip_count - 1}"
                return f"  {self.at(event.position)}: SKIP of client {event.client}, {lost}"
            case events.Ordered(kind=kind) if kind is not EntryKind.CONTROL:
                what = f"{event.client_seq} of client {event.client}"
                return f"  {self.at(event.position)}: {kind.name} {what}, slot {event.index} of broker {event.broker}"
            case events.Committed(status=AckStatus.OK, records=count) if count:
                return f"  {self.at(event.position)} is committed: seq {event.base_seq} of topic {event.topic}"
            case events.Crashed() | events.Recovered():
                return str(type(event).__name__).lower()
            case events.GivenUp():
                return f"  slot {event.index} of broker {event.broker} is given up"
        return ""


Scenario = Callable[[], Script]
