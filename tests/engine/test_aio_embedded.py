"""The log on an event loop: commits through the disk ring, together with threads, checkpoints, forks and failures."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import seawall
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.commit.appends import Append, Commit
from seawall.engine.commit.delivery import Delivery
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import (
    FatalError,
    InvalidInputError,
    LockedError,
    NotFoundError,
    SeawallError,
    UnsupportedError,
    WrongStateError,
)
from seawall.io.disk.disk_ring import Completion, DiskRing, HasDescriptor
from seawall.io.interfaces import ReadableBuffer
from seawall.limits import KIB
from seawall.topics.state import TopicState

pytestmark = pytest.mark.usefixtures("each_event_loop")

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)


def on_loop(path: Path, work: Callable[[AsyncLog], Awaitable[None]], settings: StoreSettings = SMALL) -> None:
    """Run a coroutine with an open log."""

    async def main() -> None:
        async with AsyncLog(path / "data", settings) as log:
            await log.create_topic("events")
            await work(log)

    asyncio.run(main())


async def values(log: AsyncLog, topic: str = "events") -> list[bytes]:
    items = await log.read(topic)
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def test_many_appenders_share_commits(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        acked: dict[int, bytes] = {}

        async def appender(number: int) -> None:
            for attempt in range(20):
                value = b"%d %d" % (number, attempt)
                acked[(await log.publish("events", value)).first_seq] = value

        await asyncio.gather(*(appender(number) for number in range(32)))
        assert await values(log) == [acked[seq] for seq in range(1, 641)]
        items = await log.read("events")
        # Twenty rounds of 32: far fewer batches than calls.
        assert len(items) < 100

    on_loop(tmp_path, work)
    with seawall.open(tmp_path / "data") as log:
        assert log.describe("events").record_count == 640


def test_small_large_and_memory_batches_commit_together(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        await log.create_topic("weak", durability="memory")
        sent = [log.publish("events", bytes([number]) * (90_000 if number % 3 else 10)) for number in range(9)]
        weak = log.publish("weak", b"w")
        assert [(await delivery).first_seq for delivery in sent] == list(range(1, 10))
        assert (await weak).first_seq == 1
        assert [len(value) for value in await values(log)] == [90_000 if n % 3 else 10 for n in range(9)]
        assert await values(log, "weak") == [b"w"]
        # After an unsynced commit the next one has to sync for both.
        await log.configure_topic("weak", durability="disk")
        await log.publish("weak", b"written")
        await log.publish("events", b"durable")
        await log.sync()

    on_loop(tmp_path, work)
    with seawall.open(tmp_path / "data") as log:
        assert log.describe("weak").record_count == 2


def test_calls_that_need_the_store_wait_for_a_commit_in_flight(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        delivery = log.publish("events", b"x")
        await asyncio.sleep(0)
        embedded = log._opened()
        # On the thread of the loop: no other thread could finish the commit.
        embedded.create_topic("made-on-the-loop")
        assert (await delivery).first_seq == 1
        delivery = log.publish("events", b"y")
        await asyncio.sleep(0)
        assert delivery.result(10).first_seq == 2
        # From another thread, while this call blocks the loop.
        delivery = log.publish("events", b"z")
        await asyncio.sleep(0)
        thread = threading.Thread(target=embedded.publish, args=("events", b"from a thread"))
        thread.start()
        thread.join()
        assert (await delivery).first_seq == 3
        assert await values(log) == [b"x", b"y", b"z", b"from a thread"]

    on_loop(tmp_path, work)


def test_a_subscriber_polls_iterates_and_commits(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        subscriber = log.subscriber("events", owner="reader")
        assert await subscriber.poll() == []
        assert await subscriber.poll(0.01) == []
        seen: list[bytes] = []

        async def follow() -> None:
            async for item in subscriber:
                assert isinstance(item, ReceivedBatch)
                seen.extend(record.value for record in item)
                if len(seen) == 5:
                    return

        task = asyncio.create_task(follow())
        for number in range(5):
            await log.publish("events", b"%d" % number)
            await asyncio.sleep(0)
        await asyncio.wait_for(task, 30)
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
        await subscriber.commit()
        assert await log.committed("reader", "events") == 6
        later = log.subscriber("events", "committed", owner="reader")
        waiting = asyncio.create_task(later.poll(30))
        await asyncio.sleep(0)
        await log.publish("events", b"5")
        (item,) = await waiting
        assert item.first_seq == 6
        with pytest.raises(InvalidInputError, match="owner"):
            await log.subscriber("events").commit()

    on_loop(tmp_path, work)


def test_a_cancelled_poll_reads_nothing(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        subscriber, everything = log.subscriber("events"), log.position_subscriber()
        for reader in (subscriber, everything):
            assert await reader.poll() == []
        await log.publish("events", b"one")
        for reader in (subscriber, everything):
            polling = asyncio.create_task(reader.poll())
            # It reads on a thread while this task continues.
            await asyncio.sleep(0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            (batch,) = await reader.poll()
            assert isinstance(batch, ReceivedBatch)
            assert [record.value for record in batch] == [b"one"]

    on_loop(tmp_path, work)


def test_errors_are_raised_where_deliveries_are_awaited(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        with pytest.raises(NotFoundError):
            await log.publish("nowhere", b"x")
        with pytest.raises(InvalidInputError, match="nothing"):
            await log.publish("events", [])
        late = log.publish("events", b"late")
        await log.delete_topic("events")
        assert (await late).first_seq == 1
        assert await log.topics() == []

    on_loop(tmp_path, work)


def test_a_cancelled_waiter_leaves_the_delivery_to_the_others(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        delivery = log.publish("events", b"x")

        async def wait() -> int:
            return (await delivery).first_seq

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert await asyncio.gather(*tasks[1:]) == [1, 1]
        assert (await delivery).first_seq == 1
        assert (await log.describe("events")).record_count == 1

    on_loop(tmp_path, work)


@pytest.mark.parametrize("code", [5, 28])
def test_a_failing_ring_ends_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real = DiskRing.reap

    async def work(log: AsyncLog) -> None:
        def reap(self: DiskRing, *, wait_ms: int = 0, count: int = 1) -> list[Completion]:
            return [Completion(each.tag, -code) for each in real(self, wait_ms=wait_ms, count=count)]

        monkeypatch.setattr(DiskRing, "reap", reap)
        with pytest.raises(FatalError, match="recover"):
            await log.publish("events", b"x")
        with pytest.raises(FatalError, match="earlier change"):
            await log.publish("events", b"y")
        assert await log.read("events") == []

    on_loop(tmp_path, work)


@pytest.mark.parametrize("taken", [0, 1])
def test_a_ring_that_refuses_an_operation_ends_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Whatever it raises, and however much of the commit it accepted, every waiter gets the error."""
    real = DiskRing._queue

    async def work(log: AsyncLog) -> None:
        calls: list[int] = []
        defects: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(str(context["exception"])))

        def queue(self: DiskRing, *args: Any) -> None:
            calls.append(1)
            if len(calls) > taken:
                raise RuntimeError("an unexpected error")
            real(self, *args)

        monkeypatch.setattr(DiskRing, "_queue", queue)
        # A large batch is written to its segment first, so its commit is two operations.
        with pytest.raises(FatalError, match="an unexpected error"):
            async with asyncio.timeout(20):
                await log.publish("events", bytes(200_000))
        assert (len(calls), defects) == (taken + 1, ["an unexpected error"])
        with pytest.raises(FatalError, match="earlier change"):
            await log.publish("events", b"y")

    on_loop(tmp_path, work)


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = DiskRing.reap

    async def work(log: AsyncLog) -> None:
        def reap(self: DiskRing, *, wait_ms: int = 0, count: int = 1) -> list[Completion]:
            return [Completion(each.tag, each.result - 1) for each in real(self, wait_ms=wait_ms, count=count)]

        with monkeypatch.context() as patch:
            patch.setattr(DiskRing, "reap", reap)
            assert (await log.publish("events", b"x")).first_seq == 1
        assert await values(log) == [b"x"]

    on_loop(tmp_path, work)
    with seawall.open(tmp_path / "data") as log:
        assert log.describe("events").record_count == 1


def test_cancelled_operations_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken chain: the ring reports operations as cancelled, and their bytes are not in the files."""
    real_write, real_reap = DiskRing.write, DiskRing.reap

    def write(self: DiskRing, file: HasDescriptor, buffers: list[ReadableBuffer], at: int, **how: Any) -> None:
        real_write(self, file, [bytes(len(each)) for each in buffers], at, **how)

    def reap(self: DiskRing, *, wait_ms: int = 0, count: int = 1) -> list[Completion]:
        done = real_reap(self, wait_ms=wait_ms, count=count)
        return [Completion(each.tag, -errno.ECANCELED) for each in done]

    async def work(log: AsyncLog) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DiskRing, "write", write)
            patch.setattr(DiskRing, "reap", reap)
            sent = [log.publish("events", value) for value in (b"small", bytes(90_000))]
            assert [(await delivery).first_seq for delivery in sent] == [1, 2]
        assert await values(log) == [b"small", bytes(90_000)]
        assert (await log.publish("events", b"continues")).first_seq == 3

    on_loop(tmp_path, work)
    with seawall.open(tmp_path / "data") as log:
        assert log.verify().is_sound
        assert log.describe("events").record_count == 3


def test_a_checkpoint_after_a_commit_does_not_block_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on: list[int] = []
    real = Maintenance.checkpoint

    def checkpoint(self: Maintenance) -> None:
        on.append(threading.get_ident())
        real(self)

    monkeypatch.setattr(Maintenance, "checkpoint", checkpoint)

    async def work(log: AsyncLog) -> None:
        sent = []
        for number in range(40):
            sent.append(log.publish("events", bytes([number]) * 5_000))
            if number % 4 == 3:
                await sent[-1]
        # The flush thread may be late: then a later commit makes the checkpoint.
        while not on and len(sent) < 10_000:
            sent.append(log.publish("events", b"more"))
            await sent[-1]
        assert [(await delivery).first_seq for delivery in sent] == list(range(1, len(sent) + 1))
        assert on
        assert threading.get_ident() not in on
        assert (await values(log))[:40] == [bytes([number]) * 5_000 for number in range(40)]

    on_loop(tmp_path, work, replace(SMALL, checkpoint_size=32 * KIB))


def test_a_failed_checkpoint_refuses_the_next_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checkpoint(self: Maintenance) -> None:
        self._guard.failure = OSError(errno.EIO, "the disk is gone")
        raise self._guard.failure

    async def work(log: AsyncLog) -> None:
        monkeypatch.setattr(Maintenance, "checkpoint", checkpoint)
        sent = 0
        # The checkpoint runs on a thread, after the batches were flushed.
        while log._log is not None and log._log._store.guard.failure is None:
            assert (await log.publish("events", b"x" * 500)).first_seq == sent + 1
            sent += 1
        with pytest.raises(FatalError, match="earlier change"):
            await log.publish("events", b"y")
        assert await values(log) == [b"x" * 500] * sent

    on_loop(tmp_path, work, replace(SMALL, checkpoint_size=KIB))


async def crowd(log: AsyncLog, rounds: int) -> None:
    """Many tasks, each with one record in flight."""

    async def append(name: int) -> None:
        for number in range(rounds):
            await log.publish("events", b"%d %d" % (name, number))

    await asyncio.gather(*(append(name) for name in range(40)))


def test_a_commit_begins_while_another_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    real = Store.begin_next

    def begin_next(self: Store, appends: Sequence[Append]) -> Commit | None:
        commit = real(self, appends)
        begun.append(commit is not None)
        return commit

    monkeypatch.setattr(Store, "begin_next", begin_next)

    async def work(log: AsyncLog) -> None:
        await crowd(log, 20)
        # Other changes and readers come in between.
        running = asyncio.create_task(crowd(log, 20))
        for number in range(5):
            await log.create_topic(f"between-{number}")
            await log.describe("events")
        await running

    on_loop(tmp_path, work)
    assert any(begun)
    with seawall.open(tmp_path / "data") as log:
        assert log.verify().is_sound
        found = [record.value for item in log.follow("events") for record in cast("ReceivedBatch", item)]
        for name in range(40):
            own = [int(value.split()[1]) for value in found if value.split()[0] == b"%d" % name]
            assert own == [*range(20), *range(20)]


@pytest.mark.parametrize("stage", ["in the ring", "not begun", "gathered"])
def test_commits_behind_a_failed_one_fail_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    real = DiskRing.reap
    failed: list[bool] = []
    if stage == "not begun":
        monkeypatch.setattr(Store, "begin_next", lambda *_: None)

    async def work(log: AsyncLog) -> None:
        await crowd(log, 5)
        before = (await log.describe("events")).record_count

        def reap(self: DiskRing, *, wait_ms: int = 0, count: int = 1) -> list[Completion]:
            done = real(self, wait_ms=wait_ms, count=count)
            driver = log._driver
            if not done or driver is None:
                return done
            is_waiting = {
                "in the ring": len(driver._in_flight) > 1,
                "not begun": driver._next is not None,
                "gathered": bool(driver._gathering),
            }
            if not is_waiting[stage]:
                return done
            failed.append(True)
            return [Completion(each.tag, -errno.EIO) for each in done]

        with monkeypatch.context() as patch:
            patch.setattr(DiskRing, "reap", reap)
            outcomes: list[BaseException | None] = []
            while not failed and len(outcomes) < 100:
                outcomes += await asyncio.gather(*(crowd(log, 20) for _ in range(2)), return_exceptions=True)
        assert failed
        assert all(isinstance(each, FatalError) for each in outcomes[-2:])
        with pytest.raises(FatalError, match="an earlier change failed"):
            await log.publish("events", b"x")
        assert (await log.describe("events")).record_count >= before

    on_loop(tmp_path, work)


def test_a_callback_may_publish(tmp_path: Path) -> None:
    """Deliveries of ack level 1 are decided when a commit begins, even one that begins early."""

    async def work(log: AsyncLog) -> None:
        publisher = await log.publisher("events", ack=1)
        more: list[Delivery] = []

        def again(delivery: Delivery) -> None:
            more.append(log.publish("events", b"again"))

        for number in range(300):
            publisher.publish(b"%d" % number).add_callback(again)
            more.append(log.publish("events", b"beside"))
            if number % 7 == 0:
                await asyncio.sleep(0)
        while len(more) < 600:
            await more[-1]
        await asyncio.gather(*more)
        assert (await log.describe("events")).record_count == 900

    on_loop(tmp_path, work)


def _set_and_wait(event: threading.Event, wait: Callable[[], bool]) -> None:
    event.set()
    wait()


def test_closing_waits_for_the_checkpoint_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, left = threading.Event(), threading.Event()
    real = Store.tidy_up

    def tidy_up(self: Store, *limited: Sequence[TopicState]) -> None:
        entered.set()
        assert left.wait(30)
        real(self, *limited)

    async def work(log: AsyncLog) -> None:
        monkeypatch.setattr(Store, "tidy_up", tidy_up)
        log.publish("events", bytes(5_000))
        assert await asyncio.to_thread(entered.wait, 30)
        log.publish("events", b"after it")
        # The checkpoint ends only when closing waits for it.
        assert log._driver is not None
        tidy = log._driver._is_tidy
        monkeypatch.setattr(tidy, "wait", partial(_set_and_wait, left, tidy.wait))

    on_loop(tmp_path, work, replace(SMALL, checkpoint_size=KIB))
    monkeypatch.undo()
    with seawall.open(tmp_path / "data") as log:
        assert log.describe("events").record_count == 2


def test_opening_and_closing(tmp_path: Path) -> None:
    async def main() -> None:
        log = seawall.open_async(tmp_path / "data")
        with pytest.raises(WrongStateError, match="not open"):
            await log.topics()
        await log.open()
        with pytest.raises(WrongStateError, match="open already"):
            await log.open()
        with pytest.raises(LockedError):
            await seawall.open_async(tmp_path / "data").open()
        await log.create_topic("events")
        assert (await log.read_arrow("events")).num_rows == 0
        await log.checkpoint()
        await log.close()
        await log.close()
        with pytest.raises(SeawallError, match="not open"):
            log.publish("events", b"x")

    asyncio.run(main())


def test_keys_and_sessions_store_once_on_a_loop(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        first = await log.publish("events", b"x", idempotency_key="k")
        again = await log.publish("events", b"y", idempotency_key="k")
        assert (again.first_seq, again.is_duplicate) == (first.first_seq, True)
        publisher = await log.publisher("events", client_id=5, max_in_flight=100)
        assert publisher.next_client_seq == 1
        assert (await publisher.publish(b"z")).first_seq == 2
        assert (await publisher.publish(b"z", client_seq=1)).is_duplicate
        assert await values(log) == [b"x", b"z"]
        assert await log.delete("events", before_seq=2) == 1
        assert (await log.verify()).is_sound
        assert await values(log) == [b"z"]

    on_loop(tmp_path, work)


def test_a_forked_child_of_a_loop_is_refused(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        # Gathered until the end of this iteration of the loop: in the child nothing would commit records that join it.
        waiting = log.publish("events", b"parent")
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            refused = 0
            try:
                log.publish("events", b"child")
            except UnsupportedError:
                refused += 1
            try:
                waiting.result(20)
            except WrongStateError:
                refused += 1
            os._exit(0 if refused == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        await waiting
        assert await values(log) == [b"parent"]

    on_loop(tmp_path, work)
