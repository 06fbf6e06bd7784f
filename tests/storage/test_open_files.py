"""A bounded cache of open files: unpinned files may be synced and closed, and are opened again on demand."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from seawall.errors import DescriptorsError, SyncError
from seawall.io.disk.files import OsFiles
from seawall.storage.open_files import OpenFiles
from seawall.storage.shared_file import SharedFile
from seawall.testing import SimDisk


def shared_files(disk: SimDisk, cache: OpenFiles, count: int) -> list[SharedFile]:
    disk.make_directory("/d")
    return [SharedFile(cache.open(f"/d/{number}", exclusive=True), cache) for number in range(count)]


def test_the_least_recently_used_file_is_closed() -> None:
    disk = SimDisk(seed=1)
    cache = OpenFiles(disk, 2)
    first, second, third = shared_files(disk, cache, 3)
    assert [each.is_open for each in (first, second, third)] == [False, True, True]
    second.pin().unpin()
    with first.writing() as file:
        file.write([b"again"], 0)
    assert [each.is_open for each in (first, second, third)] == [True, True, False]
    with first.reading() as file:
        assert file.read(5, 0) == b"again"


def test_pinned_files_stay_open_and_excess_ones_close_when_unpinned() -> None:
    disk = SimDisk(seed=1)
    cache = OpenFiles(disk, 2)
    files = shared_files(disk, cache, 5)
    pins = [each.pin() for each in files]
    assert (len(cache), all(each.is_open for each in files)) == (5, True)
    for pin in pins:
        pin.unpin()
    assert len(cache) == 2


def test_unsynced_changes_are_synced_before_a_file_is_closed() -> None:
    disk = SimDisk(seed=1)
    cache = OpenFiles(disk, 1)
    (dirty,) = shared_files(disk, cache, 1)
    disk.sync_directory("/")
    disk.sync_directory("/d")
    with dirty.writing() as file:
        file.write([b"kept"], 0)
    other = SharedFile(cache.open("/d/other", exclusive=True), cache)
    assert (dirty.is_open, other.is_open) == (False, True)
    disk.crash(keep="none")
    assert disk.open("/d/0").read(4, 0) == b"kept"


def test_a_failed_sync_is_reported_and_refuses_every_later_change() -> None:
    disk = SimDisk(seed=1)
    cache = OpenFiles(disk, 1)
    reported: list[SyncError] = []
    cache.on_sync_failed = reported.append
    (dirty,) = shared_files(disk, cache, 1)
    with dirty.writing() as file:
        file.write([b"lost"], 0)
    disk.fail("sync", path="/d/0")
    SharedFile(cache.open("/d/other", exclusive=True), cache)
    assert len(reported) == 1
    # A sync through a new descriptor would succeed and hide the failure.
    with pytest.raises(SyncError):
        dirty.sync()
    with pytest.raises(SyncError):
        dirty.pin_to_write()
    with dirty.reading() as file:
        assert file.fileno() >= 0


@pytest.fixture
def free_descriptors() -> Iterator[int]:
    """Lower the descriptor limit to a few more than those in use; returns how many are free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.listdir("/proc/self/fd")
    limit = max(map(int, used)) + 12
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    # The descriptor used for the listing is free again.
    yield limit - len(used) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_unpinned_files_are_closed_before_an_open_fails(
    tmp_path: Path, free_descriptors: int
) -> None:
    files, cache = OsFiles(), OpenFiles(OsFiles(), 100_000)
    files.sync_directory(str(tmp_path))
    count = free_descriptors + 20
    kept = [SharedFile(cache.open(str(tmp_path / f"{number}"), exclusive=True), cache) for number in range(count)]
    assert len(cache) <= free_descriptors
    pins: list[SharedFile] = []
    with pytest.raises(DescriptorsError, match="no file descriptor is left"):
        pins.extend(each.pin() for each in kept)
    # A change in progress can still be completed.
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        os.open(os.devnull, os.O_RDONLY)
    files.sync_directory(str(tmp_path))
    pins[0].unpin()
    kept[-1].pin().unpin()
    for each in pins[1:]:
        each.unpin()
    for each in kept:
        each.close()
