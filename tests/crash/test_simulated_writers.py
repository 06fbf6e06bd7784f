"""Every function that writes to the log or to segments runs on a simulated disk in the crash sweep."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from crash_arriving import ArrivingWorld
from crash_following import FollowingWorld
from crash_sweep import run_case
from crash_transactions import FollowingTransactionWorld, TransactionWorld
from crash_world import World

import seawall
from seawall.testing import SimDisk

SOURCES = Path(seawall.__file__).parent
PACKAGES = ("engine", "storage")
#: Calls that write to a file, with buffers and a position.
CALLS = {"write", "write_all", "write_durably", "write_uncached", "copy_range"}
ARGUMENTS_MIN = 3

#: Functions that only pass the writes of a commit to a disk ring, a kernel on real descriptors. `Commit`, whose own
#: writes are simulated, decides what is written and where.
EXECUTORS = {
    "engine/commit/ring_driver.py RingDriver._write_segment",
    "engine/commit/ring_driver.py RingDriver._write_epoch",
}

#: Writes a file again whose name was removed, which no crash does: `tests/hostile/test_hostile_damaged_files`.
AFTER_DAMAGE = {"storage/segments/segment.py SegmentWriter._restore_name"}

#: Routers are crashed at every call in `tests/engine/test_routers_model`.
ROUTERS = {"engine/routing/routing.py Routing._write"}

#: Numbers of the cases that run until every writer was seen: ends of a script, which take less time than photos of one.
CASES = range(14, 40, 5)


def writers() -> set[str]:
    """The functions of the source that write."""
    return {
        f"{path.relative_to(SOURCES).as_posix()} {name}"
        for package in PACKAGES
        for path in (SOURCES / package).rglob("*.py")
        for name in _writing(ast.parse(path.read_text()), ())
    }


def _writing(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _writing(child, (*names, child.name))
            continue
        if isinstance(child, ast.Call) and len(child.args) + len(child.keywords) >= ARGUMENTS_MIN:
            called = child.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in CALLS:
                yield ".".join(names)
        if isinstance(child, ast.Attribute) and child.attr == "write_durably":
            yield ".".join(names)
        yield from _writing(child, names)


def test_every_writer_runs_on_a_simulated_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = writers() - EXECUTORS - AFTER_DAMAGE - ROUTERS
    assert "storage/wal/epoch_write.py EpochWrite.execute" in expected
    assert writers() >= EXECUTORS | AFTER_DAMAGE | ROUTERS
    seen: set[str] = set()
    call = SimDisk.call

    def noted(disk: SimDisk, *arguments: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "run_case":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCES):
                seen.add(f"{path.relative_to(SOURCES).as_posix()} {frame.f_code.co_qualname}")
            frame = frame.f_back
        return call(disk, *arguments)

    monkeypatch.setattr(SimDisk, "call", noted)
    worlds = (TransactionWorld, FollowingTransactionWorld, World, ArrivingWorld, FollowingWorld)
    for number in CASES:
        for make in worlds:
            if not expected <= seen:
                run_case(1, number, make)
    assert not expected - seen
