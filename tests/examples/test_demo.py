"""The demo as a user runs it, small: everything is started, killed on the way, and checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(450)]

DEMO = Path(__file__).parents[2] / "examples" / "demo"


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), "--directory", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=430)


def test_the_demo_end_to_end(tmp_path: Path) -> None:
    left = tmp_path / "demo" / "run-of-a-demo-that-was-killed"
    left.mkdir(parents=True)
    (tmp_path / "demo" / "seawall-demo.lock").touch()
    done = run(tmp_path / "demo", "--events", "4000", "--writers", "2", "--seconds", "4", "--limit", "400")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    shown = re.sub(r"\s+", " ", done.stdout)
    assert "What was proven" in shown
    assert "4,000 events in 160 batches" in shown
    assert "nothing lost, nothing twice" in shown
    assert "the same 4,000 rows" in shown
    assert not left.exists()


def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    done = run(tmp_path)
    assert done.returncode == 1
    assert "is not empty and not of a demo" in re.sub(r"\s+", " ", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
