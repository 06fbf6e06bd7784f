"""The worker thread: when it starts, runs its work, dies and stops."""

from __future__ import annotations

import threading

import pytest

from seawall.engine.commit.worker_thread import WorkerThread


def test_every_wake_runs_the_work_until_stop() -> None:
    done = threading.Semaphore(0)
    worker = WorkerThread(done.release)
    for _ in range(3):
        worker.wake()
        assert done.acquire(timeout=30)
    worker.stop()
    # Stopping runs the work once more.
    assert done.acquire(blocking=False)
    worker.wake()
    assert not done.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_started_again() -> None:
    threads: list[threading.Thread] = []
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        begun.set()
        if len(threads) == 1:
            raise RuntimeError("the end of this thread")
        done.set()

    worker = WorkerThread(work)
    worker.wake()
    assert begun.wait(30)
    threads[0].join(30)
    assert not threads[0].is_alive()
    worker.wake()
    assert done.wait(30)
    assert threads[1] is not threads[0]
    worker.stop()
    assert not threads[1].is_alive()


def test_stop_without_a_wake_starts_no_thread() -> None:
    worker = WorkerThread(lambda: None)
    before = threading.active_count()
    worker.stop()
    worker.wake()
    assert threading.active_count() == before
