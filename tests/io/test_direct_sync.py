"""Choosing between one durable write and a write followed by a sync."""

import errno
import os
from pathlib import Path

import pytest

from seawall.config import load
from seawall.io.disk import direct_sync
from seawall.io.disk.disk_ring import DiskRing, serve_inline
from seawall.io.disk.ring_backends import open_configured_ring
from seawall.kernels.runtime import disk_ring


@pytest.fixture(autouse=True)
def _clear_cache() -> None:
    direct_sync.MEASURED.clear()


def test_the_measurement_leaves_no_file_behind(tmp_path: Path) -> None:
    assert direct_sync.direct_sync_wins(str(tmp_path)) in (True, False)
    assert list(tmp_path.iterdir()) == []


def test_the_faster_kind_of_write_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    # The clock decides, so the disk need not be slow.
    monkeypatch.setattr(os, "pwritev", lambda descriptor, buffers, at, _flags=0: write(descriptor, buffers, at))
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    slow_direct = iter([value for _ in range(16) for value in (0, 100, 110)])
    monkeypatch.setattr(direct_sync, "perf_counter_ns", lambda: next(slow_direct))
    assert not direct_sync.direct_sync_wins(str(tmp_path))
    direct_sync.MEASURED.clear()
    slow_sync = iter([value for _ in range(16) for value in (0, 10, 110)])
    monkeypatch.setattr(direct_sync, "perf_counter_ns", lambda: next(slow_sync))
    assert direct_sync.direct_sync_wins(str(tmp_path))


def test_direct_sync_loses_where_the_file_system_refuses_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "pwritev", refuse)
    assert not direct_sync.direct_sync_wins(str(tmp_path))


def test_direct_sync_loses_where_the_system_has_no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_DSYNC")
    assert not direct_sync.direct_sync_wins(str(tmp_path))


@pytest.mark.parametrize("direct", [False, True])
def test_a_ring_executes_a_durable_write_with_and_without_direct_sync(tmp_path: Path, direct: bool) -> None:
    ring = DiskRing(4, direct_sync=direct)
    try:
        with (tmp_path / "file").open("w+b") as file:
            ring.write(file, [b"durable", b" bytes"], 3, tag=1, sync=True)
            assert serve_inline(ring) == 1
            assert [done.result for done in ring.reap()] == [13]
        assert (tmp_path / "file").read_bytes() == b"\0\0\0durable bytes"
    finally:
        ring.close()


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("direct", ["auto", "on", "off"])
def test_the_configuration_selects_direct_sync_and_pinning_of_a_ring(tmp_path: Path, direct: str, pin: bool) -> None:
    flags = {"disk.ring_entries": "8", "disk.direct_sync": direct, "topology.pin": str(pin).lower()}
    ring = open_configured_ring(load(environ={}, flags=flags).config, str(tmp_path))
    try:
        assert ring.entries == 8
        assert ring.server is not None
        assert ring.server.name == "resident"
        wanted = direct_sync.direct_sync_wins(str(tmp_path)) if direct == "auto" else direct == "on"
        assert ring.words[disk_ring.CONTROL_DIRECT_SYNC] == wanted
        with (tmp_path / "file").open("w+b") as file:
            ring.write(file, [b"bytes"], 0, tag=1, sync=True)
            ring.submit()
            assert [done.result for done in ring.reap(wait_ms=10_000)] == [5]
    finally:
        ring.close()
