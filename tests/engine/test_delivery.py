"""Deliveries of an event loop: who is woken, in which order, and what pressure changes (INV-DELIVERY-LATER)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seawall.core.types import TopicEpoch, TopicId
from seawall.engine.serving.delivery import Delivery
from seawall.engine.store.store import Store
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState

LOW, MIDDLE, HIGH, OTHER = (TopicId(number) for number in range(1, 5))
#: Timers of the two loops differ.
pytestmark = pytest.mark.usefixtures("each_event_loop")

PRIORITIES = {LOW: -500, MIDDLE: 300, HIGH: 900, OTHER: 100}


class FakeLog:
    """A log with topics that change when a test says so."""

    reads_waiting = 0

    def __init__(self) -> None:
        self._topics = {
            topic_id: TopicState(topic_id, str(topic_id), TopicEpoch(1), TopicConfig(priority=priority))
            for topic_id, priority in PRIORITIES.items()
        }
        self.changed: list[TopicId] = []
        self.is_locked = False
        self.asked = 0

    def topic(self, topic_id: TopicId) -> TopicState | None:
        return self._topics.get(topic_id)

    def try_ask(self, _query: Callable[[Store], Any]) -> Any:
        return None if self.is_locked else self._take()

    async def _ask(self) -> Any:
        self.asked += 1
        return self._take()

    def ask(self, _query: Callable[[Store], Any]) -> Awaitable[Any]:
        return self._ask()

    def _take(self) -> list[TopicId]:
        taken, self.changed = self.changed, []
        return taken


class FixedPressure:
    """A governor whose decisions a test sets."""

    def __init__(self) -> None:
        self.merge_ns = 0
        self.defers = self.wants_to_defer = False
        self.waits: list[int] = []

    def waited(self, wait_ns: int) -> None:
        self.waits.append(wait_ns)

    def sample(self, _now_ns: int, _topics: int, _reads: int) -> None:
        self.defers = self.wants_to_defer


class Case:
    """A delivery with a follower of each topic, which notes its pushes."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.deferred: list[bool] = []
        self.delivery = Delivery(asyncio.get_running_loop(), self.log, self.deferred.append)
        self.pressure = FixedPressure()
        vars(self.delivery)["governor"] = self.pressure
        self.pushed: list[TopicId] = []

    def follow(self, topic_id: TopicId, *, is_early: bool = False) -> Any:
        return self.delivery.following(topic_id, lambda: self.pushed.append(topic_id), is_early=is_early)

    def notify(self, *topic_ids: TopicId) -> None:
        self.log.changed += topic_ids
        self.delivery.notify()

    def take(self) -> list[TopicId]:
        pushed, self.pushed = self.pushed, []
        return pushed

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0)


def run(work: Callable[[Case], Awaitable[None]]) -> None:
    async def main() -> None:
        case = Case()
        await work(case)
        case.delivery.close()

    asyncio.run(main())


def test_only_readers_of_changed_topics_are_woken_in_the_order_of_priorities() -> None:
    async def work(case: Case) -> None:
        with case.follow(LOW), case.follow(MIDDLE), case.follow(HIGH), case.follow(HIGH), case.follow(OTHER):
            case.notify()
            assert case.take() == []
            case.notify(LOW, MIDDLE, HIGH)
            assert case.take() == [HIGH, HIGH, MIDDLE, LOW]
        assert not case.delivery.has_readers

    run(work)


def test_the_only_reader_looks_for_itself() -> None:
    async def work(case: Case) -> None:
        with case.follow(LOW):
            case.notify()
            assert case.take() == [LOW]

    run(work)


def test_readers_of_records_that_are_not_stored_look_each_time() -> None:
    async def work(case: Case) -> None:
        with case.follow(LOW), case.follow(MIDDLE, is_early=True), case.follow(MIDDLE, is_early=True):
            case.notify()
            assert case.take() == [MIDDLE, MIDDLE]
        with case.follow(LOW), case.follow(MIDDLE):
            case.notify()
            assert case.take() == []

    run(work)


def test_changes_are_found_when_the_lock_is_free() -> None:
    async def work(case: Case) -> None:
        with case.follow(LOW), case.follow(HIGH):
            case.log.is_locked = True
            case.notify(LOW)
            case.notify(HIGH)
            assert case.take() == []
            await case.until(lambda: len(case.pushed) == 2)
            assert case.take() == [HIGH, LOW]
            assert case.log.asked == 1

    run(work)


def test_a_reader_that_has_left_is_not_woken() -> None:
    async def work(case: Case) -> None:
        case.pressure.merge_ns = 1
        with case.follow(HIGH):
            with case.follow(LOW):
                case.notify(LOW)
            assert case.delivery.waiting_count == 0
        assert case.take() == []

    run(work)


def test_long_work_is_served_in_pieces() -> None:
    async def work(case: Case) -> None:
        clock = asyncio.get_running_loop().time

        def slow() -> None:
            case.pushed.append(HIGH)
            until = clock() + 0.002
            while clock() < until:
                pass

        with case.delivery.following(HIGH, slow, is_early=False), case.follow(LOW), case.follow(MIDDLE):
            case.notify(LOW, MIDDLE, HIGH)
            assert case.take() == [HIGH]
            await case.until(lambda: len(case.pushed) == 2)
            assert case.take() == [MIDDLE, LOW]

    run(work)


def test_readers_that_are_behind_take_turns_by_priority() -> None:
    async def work(case: Case) -> None:
        async def read(topic_id: TopicId) -> None:
            await case.delivery.turn(topic_id)
            case.pushed.append(topic_id)

        tasks = [asyncio.create_task(read(topic_id)) for topic_id in (LOW, LOW, MIDDLE, OTHER, HIGH, MIDDLE)]
        await asyncio.gather(*tasks)
        # The first one found the loop free.
        assert case.take() == [LOW, HIGH, MIDDLE, MIDDLE, OTHER, LOW]
        assert case.delivery.waiting_count == 0

    run(work)


def test_a_turn_that_is_not_wanted_any_more_is_given_to_the_next() -> None:
    async def work(case: Case) -> None:
        tasks = [asyncio.create_task(case.delivery.turn(topic_id)) for topic_id in (OTHER, HIGH, MIDDLE, LOW)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        await asyncio.gather(*tasks[2:])
        assert case.delivery.waiting_count == 0

    run(work)


def test_pressure_merges_records_below_the_top_band() -> None:
    async def work(case: Case) -> None:
        case.pressure.merge_ns = 5_000_000
        with case.follow(LOW), case.follow(HIGH):
            for _ in range(10):
                case.notify(LOW, HIGH)
            assert case.take() == [HIGH] * 10
            await case.until(lambda: bool(case.pushed))
            assert case.take() == [LOW]
            assert case.delivery.waiting_count == 0
            # The time for which records were merged is no wait.
            assert case.pressure.waits[-1] < 5_000_000
            case.pressure.merge_ns = 0
            case.notify(LOW)
            assert case.take() == [LOW]

    run(work)


def test_records_may_be_merged_for_a_moment() -> None:
    async def work(case: Case) -> None:
        case.pressure.merge_ns = 100_000
        with case.follow(LOW), case.follow(OTHER):
            case.notify(LOW)
            case.notify(OTHER)  # while a timer runs for the first
            await case.until(lambda: len(case.pushed) == 2)
            assert set(case.take()) == {LOW, OTHER}

    run(work)


def test_what_is_merged_does_not_wait_as_long_as_what_pauses() -> None:
    async def work(case: Case) -> None:
        loop = asyncio.get_running_loop()
        with case.follow(LOW), case.follow(OTHER):
            case.pressure.wants_to_defer = True
            case.notify(LOW)
            paused_until = case.delivery._timer_due
            case.pressure.merge_ns = 5_000_000
            case.notify(OTHER)
            merging_until = case.delivery._timer_due
            assert 0 < merging_until < paused_until
            assert merging_until <= loop.time() + 0.005
            await case.until(lambda: case.pushed == [OTHER])

    run(work)


def test_the_lowest_band_pauses_and_continues() -> None:
    async def work(case: Case) -> None:
        with case.follow(LOW), case.follow(OTHER):
            case.pressure.wants_to_defer = True
            case.notify()
            assert case.deferred == [True]
            case.notify(LOW, OTHER)
            assert case.take() == [OTHER]
            behind = asyncio.create_task(case.delivery.turn(LOW))
            await case.delivery.turn(OTHER)
            assert not behind.done()
            case.pressure.wants_to_defer = False
            await case.until(lambda: bool(case.pushed))
            await behind
            assert case.take() == [LOW]
            assert case.deferred == [True, False]

    run(work)


def test_watchers_look_for_changes_each_time_and_are_pushed_by_their_best_topic() -> None:
    class Watcher:
        def __init__(self, case: Case, name: int, priority: int | None) -> None:
            self.case = case
            self.name = TopicId(name)
            self.priority = priority
            self.refreshed = 0

        def refresh(self) -> int | None:
            self.refreshed += 1
            return self.priority

        def push(self) -> None:
            self.case.pushed.append(self.name)

    async def work(case: Case) -> None:
        low, high, none = Watcher(case, 100, -100), Watcher(case, 101, 950), Watcher(case, 102, None)
        with case.delivery.watching(low), case.delivery.watching(high), case.delivery.watching(none):
            with case.follow(MIDDLE), case.follow(OTHER):
                case.notify(MIDDLE)
                assert case.take() == [101, MIDDLE, 100]
            # A pause that ends lets them look again: they leave topics of the lowest band out meanwhile.
            case.pressure.wants_to_defer = True
            case.notify()
            case.take()
            refreshed = none.refreshed
            case.pressure.wants_to_defer = False
            await case.until(lambda: none.refreshed > refreshed)
        assert not case.delivery.has_readers

    run(work)
