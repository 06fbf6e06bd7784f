"""The demo refuses a directory that is not its own; `make demo` runs and checks all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

DEMO = Path(__file__).parents[2] / "examples" / "demo"


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), "--directory", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    done = run(tmp_path)
    assert done.returncode == 1
    assert "is not empty and not of a demo" in re.sub(r"\s+", " ", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
