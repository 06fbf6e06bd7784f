"""Unlinking large files: the name goes at once, a thread frees the blocks, and a full disk waits for them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from seawall.io.disk import files, space_release
from seawall.io.disk.files import OsFiles
from seawall.io.disk.space_release import Releaser
from seawall.limits import MIB


class Gate:
    """A releaser whose thread closes no descriptor until the test opens the gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.releaser = Releaser()
        self.opened = threading.Event()
        self.closed: list[int] = []
        real = os.close

        def close(descriptor: int) -> None:
            if threading.current_thread().name == "seawall-releasing":
                assert self.opened.wait(30)
                self.closed.append(descriptor)
            real(descriptor)

        monkeypatch.setattr(os, "close", close)
        monkeypatch.setattr(files, "RELEASER", self.releaser)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.opened.set()
    made.releaser.wait()


def make(path: Path, size: int) -> str:
    with path.open("wb") as file:
        file.write(os.urandom(MIB) * (size // MIB))
    return str(path)


def test_unlink_removes_the_name_at_once_and_the_blocks_later(tmp_path: Path, gate: Gate) -> None:
    path = make(tmp_path / "large", 16 * MIB)
    OsFiles().unlink(path)
    assert list(tmp_path.iterdir()) == []
    assert gate.closed == []
    gate.opened.set()
    assert gate.releaser.wait()
    assert len(gate.closed) == 1
    assert not gate.releaser.wait()


def test_small_and_missing_files_need_no_thread(tmp_path: Path, gate: Gate) -> None:
    OsFiles().unlink(make(tmp_path / "small", MIB))
    with pytest.raises(FileNotFoundError):
        OsFiles().unlink(str(tmp_path / "small"))
    assert not gate.releaser.wait()


def test_a_failed_unlink_leaves_no_descriptor_open(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "large", 16 * MIB)

    def refuse(_path: str) -> None:
        raise PermissionError(errno.EACCES, "not now")

    with monkeypatch.context() as failing:
        failing.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            OsFiles().unlink(path)
    gate.opened.set()
    gate.releaser.wait()
    assert len(gate.closed) == 1
    assert Path(path).exists()


def test_a_full_disk_waits_for_pending_space(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reservations and writes both wait; with nothing pending, a full disk is an error."""
    reserve, write = os.posix_fallocate, os.pwritev
    refused: list[str] = []

    def no_space(what: str) -> None:
        if not gate.closed:
            refused.append(what)
            # Not before: the refused call has to wait.
            gate.opened.set()
            raise OSError(errno.ENOSPC, "full")

    def posix_fallocate(descriptor: int, at: int, length: int) -> None:
        no_space("reserve")
        reserve(descriptor, at, length)

    def pwritev(descriptor: int, buffers: list[bytes], at: int) -> int:
        no_space("write")
        return write(descriptor, buffers, at)

    disk = OsFiles()
    file = disk.open(str(tmp_path / "next"), create=True)
    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)
    monkeypatch.setattr(os, "pwritev", pwritev)
    for needs in (lambda: file.allocate(4096), lambda: file.write([b"x"], 0)):
        gate.opened.clear()
        gate.closed.clear()
        disk.unlink(make(tmp_path / "large", 16 * MIB))
        needs()
    assert refused == ["reserve", "write"]
    gate.closed.clear()
    with pytest.raises(OSError, match="full"):
        file.allocate(8192)
    file.close()


def test_space_released_before_the_wait_begins_counts(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release ends between the failed reservation and the wait."""
    reserve = os.posix_fallocate

    def posix_fallocate(descriptor: int, at: int, length: int) -> None:
        if not gate.closed:
            gate.opened.set()
            assert gate.releaser.wait()
            raise OSError(errno.ENOSPC, "full")
        reserve(descriptor, at, length)

    disk = OsFiles()
    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)
    disk.unlink(make(tmp_path / "large", 16 * MIB))
    with closing(disk.open(str(tmp_path / "next"), create=True)) as file:
        file.allocate(4096)
        assert file.size() == 4096


def test_unlink_blocks_while_too_many_descriptors_are_pending(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_release, "_PENDING_MAX", 2)
    paths = [make(tmp_path / f"{number}", 8 * MIB) for number in range(3)]
    disk = OsFiles()
    for path in paths[:2]:
        disk.unlink(path)
    third = threading.Thread(target=disk.unlink, args=(paths[2],))
    third.start()
    while Path(paths[2]).exists():
        third.join(0.01)
    assert third.is_alive()
    assert gate.closed == []
    gate.opened.set()
    third.join(30)
    gate.releaser.wait()
    assert len(gate.closed) == 3


def test_a_forked_child_does_not_wait_for_descriptors_of_its_parent(tmp_path: Path, gate: Gate) -> None:
    OsFiles().unlink(make(tmp_path / "large", 16 * MIB))
    path = make(tmp_path / "of the child", 16 * MIB)
    pid = os.fork()
    if not pid:
        # The gate is closed: waiting for descriptors of the parent would hang.
        code = 1
        try:
            if not gate.releaser.wait():
                gate.opened.set()
                OsFiles().unlink(path)
                gate.releaser.wait()
                code = 0 if len(gate.closed) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert gate.closed == []
