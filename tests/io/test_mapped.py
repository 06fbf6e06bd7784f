"""Mapped parts of files: fetched bytes equal the file, and a failed fetch is an error, never a signal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from seawall.io.disk import mapped
from seawall.io.disk.files import OsFile, OsFiles
from seawall.io.disk.mapped import map_part
from seawall.testing.machine.disk import SimDisk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is mapped elsewhere")

CONTENT = np.random.default_rng(3).integers(0, 256, 100_000, np.uint8).tobytes()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OsFile]:
    (tmp_path / "file").write_bytes(CONTENT)
    opened = OsFiles().open(str(tmp_path / "file"))
    yield opened
    opened.close()


def regions(path: str) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(path)


@pytest.mark.parametrize(("at", "length"), [(0, 100_000), (0, 1), (1, 5_000), (4_096, 4_096), (50_001, 49_999)])
def test_a_part_holds_the_bytes_of_the_file(file: OsFile, at: int, length: int) -> None:
    part = map_part(file, at, length)
    assert part is not None
    start = at - part.at
    assert 0 <= start < 65_536
    assert part.fetch(start, start + length)
    assert part.bytes[start:].tobytes() == CONTENT[at : at + length]
    assert not part.bytes.flags.writeable


def test_a_mapping_outlives_handle_and_name_and_ends_with_its_last_view(file: OsFile) -> None:
    part = map_part(file, 0, 5_000)
    assert part is not None
    assert part.fetch(0, 5_000)
    view = part.bytes[10:20]
    file.close()
    Path(file.path).unlink()
    del part
    assert view.tobytes() == CONTENT[10:20]
    assert regions(file.path) == 1
    del view
    assert regions(file.path) == 0


def test_pages_beyond_the_end_cannot_be_fetched(file: OsFile) -> None:
    part = map_part(file, 0, len(CONTENT))
    assert part is not None
    file.truncate(10_000)
    assert part.fetch(0, 10_000)
    assert not part.fetch(8_192, 50_000)


def test_announcing_a_range_does_not_change_its_bytes(file: OsFile) -> None:
    part = map_part(file, 0, len(CONTENT))
    assert part is not None
    for start, end in ((0, 4_096), (90_000, 200_000), (100_000, 200_000), (300_000, 400_000)):
        part.announce(start, end)
    assert part.fetch(0, len(CONTENT))
    assert part.bytes.tobytes() == CONTENT


def test_map_part_returns_none_if_a_range_cannot_be_mapped(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(seed=1)
    disk.make_directory("/d")
    assert map_part(disk.open("/d/file", create=True), 0, 10) is None
    assert map_part(file, 5, 0) is None
    assert map_part(file, 5, len(CONTENT) - 4) is None
    monkeypatch.setattr(mapped, "map_pages", lambda *_: None)
    assert map_part(file, 0, 10) is None
