"""Publishers that do not wait, deliveries, and who commits what for whom."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import Commit
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.tickets import Ticket
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.errors import FatalError, FullError, InvalidInputError, SyncError, WrongStateError
from seawall.limits import KIB

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data", SMALL) as opened:
        opened.create_topic("events")
        yield opened


class Gate:
    """Holds commits back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        real = Commit.execute

        def execute(commit: Commit) -> None:
            self.entered.set()
            assert self.opened.wait(30)
            real(commit)

        monkeypatch.setattr(Commit, "execute", execute)


@contextmanager
def store_taken(log: EmbeddedLog) -> Iterator[Callable[[], None]]:
    """Another thread has the store for itself: nobody commits until this is called, or left."""
    taken, wanted = threading.Event(), threading.Event()

    def take() -> None:
        with log.queue.exclusive():
            taken.set()
            assert wanted.wait(30)

    thread = threading.Thread(target=take)

    def give_back() -> None:
        wanted.set()
        thread.join()

    thread.start()
    assert taken.wait(30)
    try:
        yield give_back
    finally:
        give_back()


def ends(work: Callable[[], object]) -> bool:
    """Whether a call that may wait for ever comes to an end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def values(log: EmbeddedLog, topic: str = "events") -> list[bytes]:
    return [record.value for item in log.follow(topic) if isinstance(item, ReceivedBatch) for record in item]


def test_deliveries_say_where_their_records_went(log: EmbeddedLog) -> None:
    with log.publisher("events") as publisher:
        deliveries = [publisher.publish([b"%d" % number, b"more"]) for number in range(50)]
    assert [delivery.result().seqs for delivery in deliveries] == [range(2 * n + 1, 2 * n + 3) for n in range(50)]
    assert values(log) == [value for number in range(50) for value in (b"%d" % number, b"more")]
    positions = [delivery.position for delivery in deliveries]
    assert positions == sorted(positions)
    assert all(delivery.timestamp_ns > 0 and not delivery.is_duplicate for delivery in deliveries)
    assert "from seq 1>" in repr(deliveries[0])
    assert publisher.in_flight == 0


def test_what_is_published_while_a_commit_is_written_shares_the_next(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    publisher = log.publisher("events")
    first = publisher.publish(b"first")
    assert gate.entered.wait(30)
    assert not first.done
    assert "in flight" in repr(first)
    with pytest.raises(WrongStateError, match="in flight"):
        _ = first.seqs
    rest = [publisher.publish(b"%d" % number) for number in range(10)]
    gate.opened.set()
    publisher.flush()
    assert first.result().first_seq == 1
    # Ten calls, one batch: they share a position.
    assert {delivery.result().position for delivery in rest} == {first.position + 1}
    assert [delivery.first_seq for delivery in rest] == list(range(2, 12))
    publisher.close()


def test_a_waiting_thread_commits_what_no_driver_does(log: EmbeddedLog) -> None:
    pending_batch = log.pending_batch_of("events", b"x")
    pending_batch.driver = lambda: None
    delivery = log.queue.offer(pending_batch)
    assert not delivery.done
    assert delivery.result(5).first_seq == 1


def test_waiting_has_an_end(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    publisher = log.publisher("events")
    delivery = publisher.publish(b"x")
    assert gate.entered.wait(30)
    with pytest.raises(TimeoutError):
        delivery.result(0.01)
    gate.opened.set()
    assert delivery.result(30).first_seq == 1
    publisher.close()


def test_a_waiter_that_gives_up_leaves_the_delivery_to_the_others(log: EmbeddedLog) -> None:
    publisher = log.publisher("events")
    with store_taken(log):
        delivery = publisher.publish(b"x")
        with pytest.raises(TimeoutError):
            delivery.result(timeout_s=0.001)
    # Nobody waits for it any more, and nothing else is published that would take it along.
    assert ends(publisher.flush)
    assert delivery.first_seq == 1
    assert values(log) == [b"x"]


def test_a_delivery_that_nobody_cares_for_has_no_numbers(log: EmbeddedLog) -> None:
    publisher = log.publisher("events", ack=0)
    with store_taken(log):
        delivery = publisher.publish(b"x")
        told = (delivery.first_seq, delivery.position, delivery.timestamp_ns, delivery.is_duplicate)
        assert (delivery.done, told, list(delivery.seqs)) == (True, (0, 0, 0, False), [])
    # It is stored all the same, though nobody waits for it.
    assert ends(publisher.close)
    assert values(log) == [b"x"]
    # What it said once it says for ever, also when its records have their numbers.
    assert (delivery.first_seq, delivery.position, delivery.timestamp_ns, delivery.is_duplicate) == told


def test_an_interrupted_turn_stands_in_nobodys_way(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(ticket: Ticket) -> None:
        raise KeyboardInterrupt

    with store_taken(log), monkeypatch.context() as patch:
        patch.setattr(Ticket, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.create_topic("never")
    assert ends(lambda: log.publish("events", b"x"))
    assert ends(lambda: log.create_topic("later"))
    assert log.topics() == ["events", "later"]
    assert values(log) == [b"x"]


def test_a_turn_interrupted_just_when_it_has_come_is_handed_on(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread was the one that was woken: whoever stands behind it would sleep for ever."""
    publisher = log.publisher("events")
    with store_taken(log) as give_back:

        def interrupted(ticket: Ticket) -> None:
            publisher.publish(b"behind the turn")
            give_back()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Ticket, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.create_topic("never")
    assert ends(publisher.flush)
    assert values(log) == [b"behind the turn"]


def test_callbacks_are_called_once_early_or_late(log: EmbeddedLog) -> None:
    """INV-DELIVERY-ONCE."""
    told: list[Delivery] = []
    delivery = log.queue.offer(log.pending_batch_of("events", b"x"))
    delivery.add_callback(told.append)
    delivery.add_callback(told.append)
    delivery.result()
    delivery.add_callback(told.append)
    assert told == [delivery] * 3


def test_a_callback_that_raises_keeps_nobody_waiting(log: EmbeddedLog, caplog: pytest.LogCaptureFixture) -> None:
    """Deliveries of one commit are decided and told whatever a callback of another one does."""

    def raises(_delivery: Delivery) -> None:
        raise ValueError("a defect of the caller")

    log.create_topic("others")
    told: list[Delivery] = []
    first = log.queue.offer(log.pending_batch_of("events", b"x"))
    second = log.queue.offer(log.pending_batch_of("others", b"y"))
    first.add_callback(raises)
    second.add_callback(told.append)
    assert ends(second.result)
    assert told == [second]
    assert first.first_seq == second.first_seq == 1
    assert "a callback of a delivery to 'events' raised" in caplog.text
    with log.publisher("events") as publisher:
        assert ends(publisher.publish(b"z").result)


def test_a_loop_that_is_closed_keeps_nobody_waiting(log: EmbeddedLog) -> None:
    """Who awaited a delivery on a loop that is gone must not keep the others of its commit from being told."""

    async def give_up(delivery: Delivery) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await delivery

    log.create_topic("others")
    first = log.queue.offer(log.pending_batch_of("events", b"x"))
    second = log.queue.offer(log.pending_batch_of("others", b"y"))
    asyncio.run(give_up(first))
    assert ends(second.result)
    assert second.first_seq == first.first_seq == 1


def test_a_publisher_holds_no_more_than_its_bound(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    waiting = log.publisher("events", max_in_flight=100)
    raising = log.publisher("events", max_in_flight=100, when_full="raise")
    raising.publish(bytes(60))
    waiting.publish(bytes(60))
    with pytest.raises(FullError, match="in flight"):
        raising.publish(bytes(60))
    thread = threading.Thread(target=waiting.publish, args=(b"late",))
    late = threading.Thread(target=waiting.publish, args=(bytes(60),))
    thread.start()
    thread.join()
    late.start()
    assert waiting.in_flight <= 100
    gate.opened.set()
    late.join()
    waiting.close()
    raising.close()
    assert len(values(log)) == 4
    with pytest.raises(WrongStateError, match="closed"):
        waiting.publish(b"x")
    with pytest.raises(InvalidInputError, match="max_in_flight"):
        log.publisher("events", max_in_flight=0)


def test_one_delivery_larger_than_the_bound_goes_alone(log: EmbeddedLog) -> None:
    with log.publisher("events", max_in_flight=10) as publisher:
        publisher.publish(bytes(100_000))
        publisher.publish(bytes(100_000))
    assert [len(value) for value in values(log)] == [100_000, 100_000]


@pytest.mark.parametrize("ack", [0, 1, 2])
def test_ack_levels(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, ack: int) -> None:
    gate = Gate(monkeypatch)
    publisher = log.publisher("events", ack=ack)
    delivery = publisher.publish(b"x")
    assert gate.entered.wait(30)
    assert delivery.done is (ack < 2)
    if ack == 1:
        assert delivery.first_seq == 1
    assert values(log) == []
    gate.opened.set()
    publisher.close()
    assert values(log) == [b"x"]


@pytest.mark.parametrize("ack", [0, 1, 2])
def test_a_failure_is_told_at_every_level(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, ack: int) -> None:
    def execute(commit: Commit) -> None:
        raise SyncError("the disk is gone")

    monkeypatch.setattr(Commit, "execute", execute)
    publisher = log.publisher("events", ack=ack)
    publisher.publish(b"x")
    with pytest.raises(SyncError, match="gone"):
        publisher.flush()
    with pytest.raises(FatalError, match="earlier change"):
        log.publish("events", b"y")
    publisher.close()


def test_changes_wait_for_what_was_queued_before(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-ONE-LEADER."""
    gate = Gate(monkeypatch)
    publisher = log.publisher("events")
    publisher.publish(b"first")
    assert gate.entered.wait(30)
    publisher.publish(b"second")
    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(log.create_topic("late").name))
    thread.start()
    while not any(not isinstance(entry, Delivery) for entry in log.queue._queue):
        os.sched_yield()
    third = threading.Thread(target=log.publish, args=("events", b"third"))
    third.start()
    # Reading needs nobody's turn.
    assert log.topics() == ["events"]
    assert log.read("events") == []
    gate.opened.set()
    thread.join()
    third.join()
    publisher.close()
    assert made == ["late"]
    assert values(log) == [b"first", b"second", b"third"]


def test_only_plain_small_deliveries_share_a_batch(log: EmbeddedLog) -> None:
    log.create_topic("other")
    records = [
        *(("events", b"0"), ("other", b"elsewhere"), ("events", b"1"), ("events", bytes(70_000)), ("events", b"2")),
        *(("events", bytes(65_430)), ("events", bytes(1_000))),
    ]
    deliveries = [log.queue.offer(log.pending_batch_of(*each)) for each in records]
    ordered = log.pending_batch_of("events", b"another level")
    ordered.ack = 1
    deliveries.append(log.queue.offer(ordered))
    group = log.queue.acquire_leadership()
    assert group is not None
    assert [append.record_count for append in group.appends] == [2, 1, 1, 1, 1, 1, 1]
    commit = log.queue.begin(group)
    commit.execute()
    log.queue.finish(group)
    log.queue.deliver(group)
    log.queue.release_leadership()
    assert [each.result().first_seq for each in deliveries] == [1, 1, 2, 3, 4, 5, 6, 7]
    assert [each.position - deliveries[0].position for each in deliveries] == [0, 1, 0, 2, 3, 4, 5, 6]


def test_more_than_a_commit_holds_is_several_commits(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    publisher = log.publisher("events")
    publisher.publish(b"first")
    assert gate.entered.wait(30)
    deliveries = [publisher.publish(bytes(60_000)) for _ in range(20)]
    gate.opened.set()
    publisher.close()
    assert log.describe("events").record_count == 21
    assert len({delivery.result().position for delivery in deliveries}) == 20


def test_many_threads_and_publishers_lose_nothing(log: EmbeddedLog) -> None:
    told: dict[int, bytes] = {}
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        if number % 2:
            for turn in range(50):
                value = b"%d %d" % (number, turn)
                told[log.publish("events", value).first_seq] = value
        else:
            with log.publisher("events") as publisher:
                sent = [(publisher.publish(value := b"%d %d" % (number, turn)), value) for turn in range(50)]
            told.update({delivery.result().first_seq: value for delivery, value in sent})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(log) == [told[seq] for seq in range(1, 401)]
