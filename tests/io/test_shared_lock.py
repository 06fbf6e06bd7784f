"""A lock that threads and kernels share has one holder at a time."""

from __future__ import annotations

import threading

from seawall.io.process.shared_lock import SharedLock
from seawall.kernels.runtime.locks import acquire_lock, release_lock, try_acquire_lock


def test_the_lock_excludes_other_threads() -> None:
    lock, total = SharedLock(), [0]

    def count() -> None:
        for _ in range(2_000):
            with lock:
                before = total[0]
                total[0] = before + 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [8_000]


def test_a_nonblocking_acquire_returns_false_while_the_lock_is_held() -> None:
    lock = SharedLock()
    assert lock.acquire(blocking=False)
    assert not lock.acquire(blocking=False)
    lock.release()
    assert lock.acquire()
    lock.release()


def test_an_acquire_waits_for_a_while() -> None:
    lock, waits = SharedLock(), threading.Event()
    assert lock.acquire_within(0)
    assert not lock.acquire_within(0)
    assert not lock.acquire_within(1_000_000)
    found: list[bool] = []

    def wait() -> None:
        waits.set()
        found.append(lock.acquire_within(60_000_000_000))
        lock.release()

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    lock.release()
    thread.join()
    assert found == [True]
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_kernel_and_a_thread_exclude_each_other() -> None:
    lock = SharedLock()
    assert acquire_lock(lock.words) == 0
    assert not lock.acquire(blocking=False)
    waiting = threading.Thread(target=lock.acquire)
    waiting.start()
    assert release_lock(lock.words) == 0
    waiting.join()
    assert try_acquire_lock(lock.words) != 0
