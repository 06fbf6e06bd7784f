"""A shared file stays open while any reader pins it, and no longer."""

import threading
from multiprocessing.pool import ThreadPool

import pytest

from seawall.errors import InvariantError, SyncError
from seawall.storage.shared_file import SharedFile
from seawall.testing import SimDisk


@pytest.fixture
def shared() -> SharedFile:
    disk = SimDisk(seed=1)
    disk.make_directory("/d")
    return SharedFile(disk.open("/d/file", create=True))


def test_without_pins_the_owner_closes_the_file(shared: SharedFile) -> None:
    shared.close()
    shared.close()
    assert shared.file.fileno() == -1


def test_the_last_pin_closes_a_file_that_its_owner_closed(shared: SharedFile) -> None:
    first, second = shared.pin(), shared.pin()
    shared.close()
    first.unpin()
    assert shared.file.fileno() >= 0
    second.unpin()
    assert shared.file.fileno() == -1


def test_pins_alone_do_not_close_the_file(shared: SharedFile) -> None:
    shared.pin().unpin()
    assert shared.file.fileno() >= 0


def test_a_closed_file_cannot_be_pinned(shared: SharedFile) -> None:
    pin = shared.pin()
    shared.close()
    with pytest.raises(InvariantError, match="INV-PINNED-OPEN"):
        shared.pin()
    pin.unpin()
    with pytest.raises(InvariantError, match="INV-PINNED-OPEN"):
        pin.unpin()


def test_many_threads_unpin_and_one_closes(shared: SharedFile) -> None:
    pins = [shared.pin() for _ in range(64)]
    barrier = threading.Barrier(8)

    def unpin_all(number: int) -> None:
        barrier.wait()
        for pin in pins[number::8]:
            pin.unpin()

    threads = [threading.Thread(target=unpin_all, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    shared.close()
    for thread in threads:
        thread.join()
    assert shared.file.fileno() == -1


class FailingFile:
    """A file whose syncs block until the test lets them fail."""

    path = "/d/failing"

    def __init__(self) -> None:
        self.begun, self.may_fail = threading.Event(), threading.Event()

    def sync(self) -> None:
        self.begun.set()
        assert self.may_fail.wait(20)
        raise SyncError("the disk is gone")


def test_a_sync_with_nothing_left_waits_for_the_sync_in_progress() -> None:
    """INV-SYNC-FATAL: two threads that sync the same changes get the same result."""
    file = FailingFile()
    shared = SharedFile(file)
    with ThreadPool(2) as pool:
        first = pool.apply_async(shared.sync)
        assert file.begun.wait(20)
        second = pool.apply_async(shared.sync)
        second.wait(0.05)
        assert not second.ready()
        file.may_fail.set()
        for outcome in (first, second):
            with pytest.raises(SyncError, match="the disk is gone"):
                outcome.get(20)
