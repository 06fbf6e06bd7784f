"""A sequencer that replaces another in the same fabric, with all of its roles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seawall.sequencer.order_worker import OrderSettings
from seawall.testing import check_all
from seawall.testing.checkers.order_events import AckStatus
from seawall.testing.pod.batches import Batch, Frame
from seawall.testing.pod.broker import Answer
from seawall.testing.pod.world import PodPlan, SimPod
from seawall.topics.config import Order
from seawall.wire.format.codes import ErrorCode


class Driver:
    """A pod of one broker that completes each request at once."""

    def __init__(self, clients_max: int = 8, brokers: int = 1) -> None:
        plan = PodPlan(brokers=brokers)
        ordering = OrderSettings(clients_max=clients_max, remembered_max=8, pages=4)
        self.pod = SimPod(1, replace(plan, sequencing=replace(plan.sequencing, ordering=ordering)))
        self.pod.create_topics({"plain": Order.TOTAL})
        self.pod.start()
        self.epochs: dict[int, int] = {}
        self.answers: list[Answer] = []

    def open(self, client: int) -> None:
        def opened(epoch: int, _: int) -> None:
            self.epochs[client] = epoch

        assert self.pod.order(self.pod.session_change(client, 1, opened))
        self.settle()

    def send(self, client: int, seq: int, epoch: int) -> tuple[AckStatus, int]:
        broker = self.pod.brokers[0]
        assert broker is not None
        broker.inbox.append(Frame.of(Batch(client, seq, 1, 2, 1, 1, 10), epoch, 0))
        self.settle()
        answer = self.answers.pop()
        return AckStatus(answer.status), answer.reason

    def settle(self) -> None:
        for _ in range(4):
            self.pod.step_broker(0, self.answers.append)
            for role in self.pod.roles:
                self.pod.step_role(role)
            while self.pod.step_replica():
                pass
            self.pod.report_durable()
            self.pod.advance()

    def replace_sequencer(self) -> None:
        self.pod.crash_sequencer()
        assert self.pod.restart_sequencer() == []


def test_sessions_opened_after_the_checkpoint_are_restored() -> None:
    driver = Driver()
    driver.open(7)
    assert driver.send(7, 1, 1) == (AckStatus.OK, 0)
    driver.open(7)
    driver.replace_sequencer()
    assert driver.send(7, 2, 1) == (AckStatus.REJECTED, ErrorCode.FENCED)
    assert driver.send(7, 2, 2) == (AckStatus.OK, 0)
    check_all(driver.pod.history)


@pytest.mark.parametrize("clients_max", [1, 2])
def test_more_clients_than_rows_are_restored(clients_max: int) -> None:
    driver = Driver(clients_max)
    for client in (7, 8, 9):
        driver.open(client)
        assert driver.send(client, 1, 1) == (AckStatus.OK, 0)
    driver.replace_sequencer()
    for client in (7, 8, 9):
        assert driver.send(client, 1, 1)[0] is AckStatus.DUPLICATE
        assert driver.send(client, 2, 1) == (AckStatus.OK, 0)
    check_all(driver.pod.history)


def test_a_term_is_logged_before_anything_is_ordered_in_it() -> None:
    driver = Driver()
    driver.open(7)
    for _ in range(3):
        driver.replace_sequencer()
    assert driver.pod.sequencer is not None
    before = driver.pod.sequencer.term
    driver.pod.lose_power()
    assert driver.pod.sequencer.term > before
    check_all(driver.pod.history)


def test_a_new_sequencer_begins_with_a_checkpoint() -> None:
    """However full the ring was, there is space for workers to settle."""
    driver = Driver()
    driver.open(7)
    for seq in range(1, 6):
        assert driver.send(7, seq, 1) == (AckStatus.OK, 0)
    driver.replace_sequencer()
    sequencer = driver.pod.sequencer
    assert sequencer is not None
    assert sequencer.frontier.checkpoint_position == sequencer.frontier.committed > 5
    assert driver.send(7, 5, 1) == (AckStatus.DUPLICATE, 0)


def test_gap_clocks_pause_until_every_broker_is_back() -> None:
    sequencer = Driver(brokers=2).pod.sequencer
    assert sequencer is not None
    (worker,) = sequencer.workers
    sequencer.broker_ended(0, 100)
    sequencer.broker_ended(1, 150)
    sequencer.broker_began(0, 200)
    assert worker._gap_time(300) == worker._gap_time(250) == 100
    sequencer.broker_began(1, 400)
    assert worker._gap_time(500) == 200
