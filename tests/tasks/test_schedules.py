"""Periodic tasks: each tick is pushed once, however many schedulers there are, and whatever clocks do."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import Barrier, Thread

import pytest

from seawall import limits
from seawall.api.publishable import Message
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings
from seawall.errors import InvalidInputError, LimitError
from seawall.tasks.cron import parse_cron
from seawall.tasks.schedules import CronSchedule, IntervalSchedule, PeriodicTask, Scheduler, schedule_owner

Log = EmbeddedLog | RemoteLog

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64)

#: A Friday in 2026, 12:00 UTC.
NOON_MS = 1_777_636_800_000


class HandClock:
    """A clock that a test sets."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ns(self) -> int:
        return self.now_ms * 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


def scheduler(log: Log, clock: HandClock, interval_ms: int = 10_000) -> Scheduler:
    task = PeriodicTask("clean", IntervalSchedule(interval_ms), lambda tick_ms: Message(str(tick_ms)))
    return Scheduler(log, "jobs", [task], clock)


def pushed(log: Log) -> list[int]:
    return [int(record.value) for record in log.records("jobs")]


def test_the_first_scheduler_begins_with_the_next_tick(log: Log) -> None:
    log.create_topic("jobs", type="queue")
    clock = HandClock(NOON_MS + 3_000)
    first = scheduler(log, clock)
    assert first.push_due() == []
    assert first.pause_s() == 7.0
    clock.now_ms = NOON_MS + 10_000
    assert first.push_due() == [("clean", NOON_MS + 10_000)]
    assert first.push_due() == []
    assert first.pause_s() == 10.0
    assert pushed(log) == [NOON_MS + 10_000]


def test_after_a_pause_only_the_latest_tick_is_made_up_for(log: Log) -> None:
    log.create_topic("jobs", type="queue")
    scheduler(log, HandClock(NOON_MS)).push_due()
    assert scheduler(log, HandClock(NOON_MS + 75_000)).push_due() == [("clean", NOON_MS + 70_000)]
    assert pushed(log) == [NOON_MS + 70_000]


def test_a_tick_is_pushed_although_the_log_has_forgotten_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_OWNERS_MAX", 2)
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("jobs", type="queue")
        clock = HandClock(NOON_MS)
        running, other = scheduler(log, clock), scheduler(log, clock)
        assert running.push_due() == other.push_due() == []
        for number in range(2):
            with log.transaction(f"owner-{number}"):
                pass
        assert log.transaction_state(schedule_owner("jobs", "clean")) is None
        clock.now_ms += 10_000
        assert running.push_due() == [("clean", NOON_MS + 10_000)]
        assert other.push_due() == []
        assert pushed(log) == [NOON_MS + 10_000]


def test_a_scheduler_with_a_late_clock_pushes_nothing_old(log: Log) -> None:
    log.create_topic("jobs", type="queue")
    scheduler(log, HandClock(NOON_MS)).push_due()
    scheduler(log, HandClock(NOON_MS + 50_000)).push_due()
    late = HandClock(NOON_MS + 30_000)
    behind = scheduler(log, late)
    assert behind.push_due() == []
    late.now_ms = NOON_MS + 60_000
    assert behind.push_due() == [("clean", NOON_MS + 60_000)]
    assert pushed(log) == [NOON_MS + 50_000, NOON_MS + 60_000]


def test_schedulers_at_the_same_moment_push_a_tick_once(log: Log) -> None:
    log.create_topic("jobs", type="queue")
    clock = HandClock(NOON_MS)
    scheduler(log, clock).push_due()
    for number in range(1, 11):
        clock.now_ms = NOON_MS + number * 10_000
        barrier, found = Barrier(4), []

        def run(barrier: Barrier = barrier, found: list[tuple[str, int]] = found) -> None:
            each = scheduler(log, clock)
            barrier.wait()
            found += each.push_due()

        threads = [Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [("clean", clock.now_ms)]
    assert pushed(log) == [NOON_MS + number * 10_000 for number in range(1, 11)]


def test_each_tick_is_pushed_once_whatever_clocks_and_restarts_do(tmp_path: Path) -> None:
    random = Random(17)
    clocks = [HandClock(NOON_MS) for _ in range(3)]
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("jobs", type="queue")
    found: list[int] = []
    for _ in range(12):
        with open_log(tmp_path / "data", SETTINGS) as log:
            schedulers = [scheduler(log, clock) for clock in clocks]
            for _ in range(15):
                number = random.randrange(3)
                clocks[number].now_ms += random.choice([-15_000, 1_000, 4_000, 10_000, 35_000])
                found += [tick for _, tick in schedulers[number].push_due()]
            assert pushed(log) == found
    assert found == sorted(set(found))
    assert len(found) > 15


def test_tasks_have_ticks_of_their_own_and_a_long_wait_is_cut(log: Log) -> None:
    log.create_topic("jobs", type="queue")
    clock = HandClock(NOON_MS)
    tasks = [
        PeriodicTask("daily", CronSchedule(parse_cron("0 0 * * *")), lambda tick_ms: Message(f"daily {tick_ms}")),
        PeriodicTask("hourly", IntervalSchedule(3_600_000), lambda tick_ms: Message(f"hourly {tick_ms}")),
    ]
    both = Scheduler(log, "jobs", tasks, clock)
    assert both.push_due() == []
    assert both.pause_s() == limits.TASK_TICK_WAIT_S
    clock.now_ms = NOON_MS + 12 * 3_600_000
    assert both.push_due() == [("daily", clock.now_ms), ("hourly", clock.now_ms)]


def test_invalid_schedules_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least 1 second"):
        IntervalSchedule(999)
    with pytest.raises(LimitError, match="shorter name"):
        schedule_owner("q" * 200, "t" * 100)
    assert schedule_owner("mails", "clean") == "schedule:mails:clean"
