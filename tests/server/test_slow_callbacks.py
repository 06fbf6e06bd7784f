"""Slow callbacks of an event loop are counted, with their name."""

import asyncio

import pytest

from seawall.server.connection.slow_callbacks import SlowCallbacks, SlowFigures

MS = 1_000_000


class Clock:
    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


def test_only_callbacks_longer_than_a_millisecond_are_counted():
    clock = Clock()
    probe = SlowCallbacks(clock)
    for name, taken_ns in (("quick", MS), ("slow", 2 * MS), ("slower", 5 * MS), ("slow", 3 * MS)):
        with probe.watching(name):
            clock.now_ns += taken_ns
    assert probe.figures == SlowFigures(3, 5_000, "slower")


def test_a_nested_callback_counts_once():
    clock = Clock()
    probe = SlowCallbacks(clock)
    with probe.watching("outer"):
        clock.now_ns += MS
        with probe.watching("inner"):
            clock.now_ns += MS
    assert probe.figures == SlowFigures(1, 2_000, "outer")


def test_each_step_of_a_task_is_watched_and_waiting_is_not():
    clock = Clock()
    probe = SlowCallbacks(clock)

    async def work():
        clock.now_ns += 2 * MS
        await asyncio.sleep(0)
        clock.now_ns += MS // 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        clock.now_ns += 4 * MS

    async def run():
        task = asyncio.create_task(probe.watched(work()))
        await asyncio.sleep(0)
        clock.now_ns += 50 * MS
        await task

    asyncio.run(run())
    assert probe.figures.count == 2
    assert probe.figures.longest_us == 4_000
    assert probe.figures.longest.endswith("work")


def test_errors_of_a_task_are_raised_unchanged():
    async def work():
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(SlowCallbacks().watched(work()))


def test_figures_of_several_loops_are_merged():
    assert SlowFigures.of([]) == SlowFigures()
    clock = Clock()
    first, second = SlowCallbacks(clock), SlowCallbacks(clock)
    for probe, taken_ns in ((first, 2 * MS), (second, 3 * MS)):
        with probe.watching(f"{taken_ns}"):
            clock.now_ns += taken_ns
    assert SlowFigures.of([first, second]) == SlowFigures(2, 3_000, f"{3 * MS}")
