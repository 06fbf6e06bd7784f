"""Publishers that do not wait, their deliveries, and which thread commits what."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from simulated_log import GatedDisk, open_simulated

from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.tickets import Ticket
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.errors import FatalError, FullError, InvalidInputError, SyncError, WrongStateError
from seawall.limits import KIB
from seawall.testing import SimDisk

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data", SMALL) as opened:
        opened.create_topic("events")
        yield opened


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def gated_log(disk: GatedDisk) -> Iterator[EmbeddedLog]:
    """A log whose next commit is held back until the gate of its disk is opened."""
    with open_simulated(disk) as opened:
        opened.create_topic("events")
        disk.close_gate()
        yield opened
        disk.open_gate()


@contextmanager
def store_taken(log: EmbeddedLog) -> Iterator[Callable[[], None]]:
    """Another thread holds the store exclusively, so that nothing commits, until the block ends or calls the result."""
    taken, wanted = threading.Event(), threading.Event()

    def take() -> None:
        with log.commits.exclusive():
            taken.set()
            assert wanted.wait(30)

    thread = threading.Thread(target=take)

    def release() -> None:
        wanted.set()
        thread.join()

    thread.start()
    assert taken.wait(30)
    try:
        yield release
    finally:
        release()


def ends(work: Callable[[], object]) -> bool:
    """True if a call that might block for ever returns."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def values(log: EmbeddedLog, topic: str = "events") -> list[bytes]:
    return [record.value for item in log.follow(topic) if isinstance(item, ReceivedBatch) for record in item]


def test_deliveries_report_seqs_and_positions(log: EmbeddedLog) -> None:
    with log.publisher("events") as publisher:
        deliveries = [publisher.publish([b"%d" % number, b"more"]) for number in range(50)]
    assert [delivery.result().seqs for delivery in deliveries] == [range(2 * n + 1, 2 * n + 3) for n in range(50)]
    assert values(log) == [value for number in range(50) for value in (b"%d" % number, b"more")]
    positions = [delivery.position for delivery in deliveries]
    assert positions == sorted(positions)
    assert all(delivery.timestamp_ns > 0 and not delivery.is_duplicate for delivery in deliveries)
    assert "from seq 1>" in repr(deliveries[0])
    assert publisher.in_flight == 0


def test_records_published_during_a_commit_share_the_next(gated_log: EmbeddedLog, disk: GatedDisk) -> None:
    publisher = gated_log.publisher("events")
    first = publisher.publish(b"first")
    disk.wait_for_write()
    assert not first.done
    assert "in flight" in repr(first)
    with pytest.raises(WrongStateError, match="in flight"):
        _ = first.seqs
    rest = [publisher.publish(b"%d" % number) for number in range(10)]
    disk.open_gate()
    publisher.flush()
    assert first.result().first_seq == 1
    # Ten calls, one batch: they share a position.
    assert {delivery.result().position for delivery in rest} == {first.position + 1}
    assert [delivery.first_seq for delivery in rest] == list(range(2, 12))
    publisher.close()


def test_a_waiting_thread_commits_without_a_driver(log: EmbeddedLog) -> None:
    pending_batch = log.pending_batch_of("events", b"x")
    pending_batch.driver = lambda: None
    delivery = log.commits.offer(pending_batch)
    assert not delivery.done
    assert delivery.result(5).first_seq == 1


def test_waiting_for_a_delivery_times_out(gated_log: EmbeddedLog, disk: GatedDisk) -> None:
    publisher = gated_log.publisher("events")
    delivery = publisher.publish(b"x")
    disk.wait_for_write()
    with pytest.raises(TimeoutError):
        delivery.result(0.01)
    disk.open_gate()
    assert delivery.result(30).first_seq == 1
    publisher.close()


def test_a_timed_out_waiter_leaves_the_delivery_committable(log: EmbeddedLog) -> None:
    publisher = log.publisher("events")
    with store_taken(log):
        delivery = publisher.publish(b"x")
        with pytest.raises(TimeoutError):
            delivery.result(timeout_s=0.001)
    # No thread waits for it any more, and no other publish would commit it as well.
    assert ends(publisher.flush)
    assert delivery.first_seq == 1
    assert values(log) == [b"x"]


def test_a_delivery_without_acks_has_no_numbers(log: EmbeddedLog) -> None:
    publisher = log.publisher("events", ack=0)
    with store_taken(log):
        delivery = publisher.publish(b"x")
        reported = (delivery.first_seq, delivery.position, delivery.timestamp_ns, delivery.is_duplicate)
        assert (delivery.done, reported, list(delivery.seqs)) == (True, (0, 0, 0, False), [])
    # The record is stored although no thread waits for it.
    assert ends(publisher.close)
    assert values(log) == [b"x"]
    # The delivery does not change, even when its record has a seq.
    assert (delivery.first_seq, delivery.position, delivery.timestamp_ns, delivery.is_duplicate) == reported


def test_an_interrupted_ticket_does_not_block_the_queue(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_ticket_interrupted_when_first_passes_leadership_on(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread was the one that was woken: the next in the queue would block for ever."""
    publisher = log.publisher("events")
    with store_taken(log) as release:

        def interrupted(ticket: Ticket) -> None:
            publisher.publish(b"after the ticket")
            release()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Ticket, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.create_topic("never")
    assert ends(publisher.flush)
    assert values(log) == [b"after the ticket"]


def test_callbacks_run_once_before_or_after_the_decision(log: EmbeddedLog) -> None:
    """INV-DELIVERY-ONCE."""
    called: list[Delivery] = []
    delivery = log.commits.offer(log.pending_batch_of("events", b"x"))
    delivery.add_callback(called.append)
    delivery.add_callback(called.append)
    delivery.result()
    delivery.add_callback(called.append)
    assert called == [delivery] * 3


def test_a_raising_callback_does_not_block_other_deliveries(log: EmbeddedLog, caplog: pytest.LogCaptureFixture) -> None:
    """All deliveries of a commit are decided, whatever a callback of one of them does."""

    def raises(_delivery: Delivery) -> None:
        raise ValueError("a defect of the caller")

    log.create_topic("others")
    called: list[Delivery] = []
    first = log.commits.offer(log.pending_batch_of("events", b"x"))
    second = log.commits.offer(log.pending_batch_of("others", b"y"))
    first.add_callback(raises)
    second.add_callback(called.append)
    assert ends(second.result)
    assert called == [second]
    assert first.first_seq == second.first_seq == 1
    assert "a callback of a delivery to 'events' raised" in caplog.text
    with log.publisher("events") as publisher:
        assert ends(publisher.publish(b"z").result)


def test_a_closed_loop_does_not_block_other_deliveries(log: EmbeddedLog) -> None:
    """A waiter on a closed loop must not keep the other deliveries of its commit from being decided."""

    async def give_up(delivery: Delivery) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await delivery

    log.create_topic("others")
    first = log.commits.offer(log.pending_batch_of("events", b"x"))
    second = log.commits.offer(log.pending_batch_of("others", b"y"))
    asyncio.run(give_up(first))
    assert ends(second.result)
    assert second.first_seq == first.first_seq == 1


def test_a_publisher_keeps_its_in_flight_bound(gated_log: EmbeddedLog, disk: GatedDisk) -> None:
    log = gated_log
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
    disk.open_gate()
    late.join()
    waiting.close()
    raising.close()
    assert len(values(log)) == 4
    with pytest.raises(WrongStateError, match="closed"):
        waiting.publish(b"x")
    with pytest.raises(InvalidInputError, match="max_in_flight"):
        log.publisher("events", max_in_flight=0)


def test_a_delivery_above_the_bound_is_sent_alone(log: EmbeddedLog) -> None:
    with log.publisher("events", max_in_flight=10) as publisher:
        publisher.publish(bytes(100_000))
        publisher.publish(bytes(100_000))
    assert [len(value) for value in values(log)] == [100_000, 100_000]


@pytest.mark.parametrize("ack", [0, 1, 2])
def test_ack_levels_decide_when_a_delivery_is_done(gated_log: EmbeddedLog, disk: GatedDisk, ack: int) -> None:
    publisher = gated_log.publisher("events", ack=ack)
    delivery = publisher.publish(b"x")
    disk.wait_for_write()
    assert delivery.done is (ack < 2)
    if ack == 1:
        assert delivery.first_seq == 1
    assert values(gated_log) == []
    disk.open_gate()
    publisher.close()
    assert values(gated_log) == [b"x"]


@pytest.mark.parametrize("ack", [0, 1, 2])
def test_a_failure_is_reported_at_every_ack_level(ack: int) -> None:
    disk = SimDisk(seed=1)
    with open_simulated(disk) as log:
        log.create_topic("events")
        disk.fail("sync", path="*.wal")
        publisher = log.publisher("events", ack=ack)
        publisher.publish(b"x")
        with pytest.raises(SyncError, match="sync failed"):
            publisher.flush()
        with pytest.raises(FatalError, match="earlier change"):
            log.publish("events", b"y")
        publisher.close()


def test_changes_wait_for_earlier_batches(gated_log: EmbeddedLog, disk: GatedDisk) -> None:
    """INV-ONE-LEADER."""
    log = gated_log
    publisher = log.publisher("events")
    publisher.publish(b"first")
    disk.wait_for_write()
    publisher.publish(b"second")
    assert log.commits.joinable
    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(log.create_topic("late").name))
    thread.start()
    # Once its ticket is queued, no record joins a batch before it.
    while log.commits.joinable:
        os.sched_yield()
    third = threading.Thread(target=log.publish, args=("events", b"third"))
    third.start()
    # Reading needs no leadership.
    assert log.topics() == ["events"]
    assert log.read("events") == []
    disk.open_gate()
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
    deliveries = [log.commits.offer(log.pending_batch_of(*each)) for each in records]
    ordered = log.pending_batch_of("events", b"another level")
    ordered.ack = 1
    deliveries.append(log.commits.offer(ordered))
    group = log.commits.acquire_leadership()
    assert group is not None
    assert [append.record_count for append in group.appends] == [2, 1, 1, 1, 1, 1, 1]
    commit = log.commits.begin(group)
    commit.execute()
    log.commits.finish(group)
    log.commits.deliver(group)
    log.commits.release_leadership()
    assert [each.result().first_seq for each in deliveries] == [1, 1, 2, 3, 4, 5, 6, 7]
    assert [each.position - deliveries[0].position for each in deliveries] == [0, 1, 0, 2, 3, 4, 5, 6]


def test_a_long_queue_takes_several_commits(gated_log: EmbeddedLog, disk: GatedDisk) -> None:
    publisher = gated_log.publisher("events")
    publisher.publish(b"first")
    disk.wait_for_write()
    deliveries = [publisher.publish(bytes(60_000)) for _ in range(20)]
    disk.open_gate()
    publisher.close()
    assert gated_log.describe("events").record_count == 21
    assert len({delivery.result().position for delivery in deliveries}) == 20


def test_many_threads_and_publishers_lose_nothing(log: EmbeddedLog) -> None:
    acked: dict[int, bytes] = {}
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        if number % 2:
            for attempt in range(50):
                value = b"%d %d" % (number, attempt)
                acked[log.publish("events", value).first_seq] = value
        else:
            with log.publisher("events") as publisher:
                sent = [(publisher.publish(value := b"%d %d" % (number, attempt)), value) for attempt in range(50)]
            acked.update({delivery.result().first_seq: value for delivery, value in sent})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(log) == [acked[seq] for seq in range(1, 401)]
