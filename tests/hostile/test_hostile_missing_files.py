"""A server over a data directory with missing files: it names them, exits with an error code, and changes nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_node import PATIENCE_S

from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings
from seawall.limits import WAL_FILE_SIZE_MIN


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory whose log was trimmed, as a killed process leaves it."""
    settings = StoreSettings(wal_file_size=WAL_FILE_SIZE_MIN, ballast_size=4096, checkpoint_size=1 << 40)
    with open_log(tmp_path / "live", settings) as log:
        log.create_topic("events")
        for _ in range(4):
            log.publish("events", [b"x" * 40_000])
            log.checkpoint()
        log.publish("events", [b"y" * 40_000])
        return shutil.copytree(tmp_path / "live", tmp_path / "data")


def tree(data: Path) -> dict[str, bytes]:
    """Every file but LOCK, whose text is for people."""
    files = (each for each in data.rglob("*") if each.is_file() and each.name != "LOCK")
    return {str(each.relative_to(data)): each.read_bytes() for each in files}


def check_refused(data: Path, message: str, exit_code: int = 1) -> None:
    before = tree(data)
    command = [sys.executable, "-m", "seawall", "serve", "--data", str(data), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout) == (exit_code, "")
    assert message in ended.stderr
    assert "restore" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert tree(data) == before


def test_without_its_snapshots_a_trimmed_log_is_not_served(data: Path) -> None:
    for path in (data / "meta").iterdir():
        path.unlink()
    check_refused(data, "no sound snapshot (snapshot-<position>.meta) is left")


@pytest.mark.slow
def test_without_its_newest_file_a_log_is_not_served(data: Path) -> None:
    newest = max((data / "wal").glob("*.wal"))
    newest.unlink()
    check_refused(data, f"{newest.name} is missing")


@pytest.mark.slow
def test_a_directory_that_lost_everything_is_not_served_as_a_new_one(data: Path) -> None:
    for name in ("meta", "wal", "topics"):
        shutil.rmtree(data / name)
        (data / name).mkdir()
    check_refused(data, "no WAL file is left")


@pytest.mark.slow
def test_without_format_nothing_is_served(data: Path) -> None:
    (data / "FORMAT").unlink()
    check_refused(data, "has no FORMAT", exit_code=2)
