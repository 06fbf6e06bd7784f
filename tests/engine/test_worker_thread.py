"""The thread that commits for those who do not wait: when it starts, and what becomes of it."""

from __future__ import annotations

import threading

import pytest

from seawall.engine.commit.worker_thread import WorkerThread


def test_wakes_are_answered_until_it_is_stopped() -> None:
    done = threading.Semaphore(0)
    pump = WorkerThread(done.release)
    for _ in range(3):
        pump.wake()
        assert done.acquire(timeout=30)
    pump.stop()
    # What is left is done before it ends: nothing was, so the work had one more look.
    assert done.acquire(blocking=False)
    pump.wake()
    assert not done.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_started_anew() -> None:
    threads: list[threading.Thread] = []
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        begun.set()
        if len(threads) == 1:
            raise RuntimeError("the end of this thread")
        done.set()

    pump = WorkerThread(work)
    pump.wake()
    assert begun.wait(30)
    threads[0].join(30)
    assert not threads[0].is_alive()
    pump.wake()
    assert done.wait(30)
    assert threads[1] is not threads[0]
    pump.stop()
    assert not threads[1].is_alive()


def test_one_that_was_never_woken_has_nothing_to_end() -> None:
    pump = WorkerThread(lambda: None)
    before = threading.active_count()
    pump.stop()
    pump.wake()
    assert threading.active_count() == before
