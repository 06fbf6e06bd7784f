"""Disk subjects: they write at successive positions, sync, and leave nothing behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seawall.bench import harness
from seawall.bench.suites import disk
from seawall.errors import UnsupportedError
from seawall.limits import KIB, MIB

Call = tuple[str, int, int]


@pytest.fixture(autouse=True)
def small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FILE_SIZE", MIB)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every write (position, length) and every sync, in order; they are executed as well."""
    seen: list[Call] = []
    pwrite, sync = os.pwrite, disk.sync

    def watched_write(descriptor: int, block: memoryview, position: int) -> int:
        seen.append(("write", position, len(block)))
        return pwrite(descriptor, block, position)

    def watched_sync(descriptor: int) -> None:
        seen.append(("sync", 0, 0))
        sync(descriptor)

    monkeypatch.setattr(os, "pwrite", watched_write)
    monkeypatch.setattr(disk, "sync", watched_sync)
    return seen


@pytest.mark.parametrize("make", [disk.write_latency, disk.write_bandwidth])
def test_every_write_is_synced_and_continues_at_the_next_position(
    tmp_path: Path, calls: list[Call], make: Callable[[Path, int], harness.Subject]
) -> None:
    with make(tmp_path, 512 * KIB)() as run:
        assert calls == [("write", 0, MIB), ("sync", 0, 0)]  # the file is filled before anything is timed
        calls.clear()
        for _ in range(3):
            assert run(0.0) > 0
    positions = (0, 512 * KIB, 0)
    assert calls == [call for at in positions for call in (("write", at, 512 * KIB), ("sync", 0, 0))]


def test_the_file_has_no_name_and_no_descriptor_is_left(tmp_path: Path) -> None:
    with disk.filled_file(tmp_path) as descriptor:
        assert list(tmp_path.iterdir()) == []
        assert os.fstat(descriptor).st_size == MIB
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_short_write_is_continued() -> None:
    written: list[tuple[bytes, int]] = []

    def short(descriptor: int, block: memoryview, position: int) -> int:
        written.append((bytes(block[:3]), position))
        return len(written[-1][0])

    disk.write_fully(short, 0, memoryview(b"01234567"), 100)
    assert written == [(b"012", 100), (b"345", 103), (b"67", 106)]


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="only Linux has RWF_DSYNC")
def test_a_flagged_write_needs_no_sync(tmp_path: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    flagged: list[tuple[int, int, int]] = []

    def watched(descriptor: int, blocks: tuple[memoryview], position: int, flags: int) -> int:
        flagged.append((position, len(blocks[0]), flags))
        return os.pwrite(descriptor, blocks[0], position)

    monkeypatch.setattr(os, "pwritev", watched)
    with disk.flagged_write_latency(tmp_path, 4 * KIB)() as run:
        calls.clear()
        run(0.0)
        run(0.0)
    assert flagged == [(0, 4 * KIB, os.RWF_DSYNC), (4 * KIB, 4 * KIB, os.RWF_DSYNC)]
    assert not [call for call in calls if call[0] == "sync"]


def test_without_the_flag_the_figure_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_DSYNC", raising=False)
    with (
        disk.flagged_write_latency(tmp_path, 4 * KIB)() as run,
        pytest.raises(UnsupportedError, match="this system has no RWF_DSYNC"),
    ):
        run(0.0)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.EOPNOTSUPP, UnsupportedError), (errno.EINVAL, UnsupportedError), (errno.EIO, OSError)],
)
def test_a_refused_flag_is_left_out_and_a_failed_write_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "RWF_DSYNC", 2, raising=False)
    monkeypatch.setattr(os, "pwritev", refuse, raising=False)
    with disk.flagged_write_latency(tmp_path, 4 * KIB)() as run, pytest.raises(expected):
        run(0.0)


def test_a_missing_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"), disk.write_latency(tmp_path / "absent", 4 * KIB)():
        pass
