"""`seawall doctor`: every check on this machine, as a table and as JSON, and its exit code."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall.cli.doctor import command
from seawall.cli.doctor.checks import Check, Status
from seawall.config import load
from seawall.io.disk.uring import probe
from seawall.kernels.runtime import warm

NAMES = [
    "interpreter",
    "packages",
    "cpu",
    "numa",
    "memory",
    "kernel cache",
    "io_uring",
    "shared memory",
    "disk sync",
    "disk free",
    "permissions",
    "open files",
    "huge pages",
    "java",
    *(["spark python"] if find_spec("pyspark") else []),
    "pyspark",
    "uvloop",
    "etcd",
    "redis-server",
    "chromium",
]


def run(*options: str) -> Result:
    return CliRunner().invoke(command.doctor, options, obj=load())


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    checks: list[Check] = []

    def examine(*_facts: object) -> Iterator[Check]:
        yield from checks

    monkeypatch.setattr(command, "examine", examine)
    return checks


def test_every_check_runs_on_this_machine(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEAWALL_")}
    done = subprocess.run(
        [sys.executable, "-m", "seawall", "--set", f"bench.directory={tmp_path}", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=clean,
    )
    assert (done.returncode, done.stderr) == (0, "")
    checks = json.loads(done.stdout)["checks"]
    assert [check["name"] for check in checks] == NAMES
    for check in checks:
        assert list(check) == ["name", "status", "found", "cost", "fix"]
        assert check["status"] in ("ok", "warn", "missing")
        assert check["found"]
        assert bool(check["cost"]) is bool(check["fix"]) is (check["status"] != "ok")
    assert list(tmp_path.iterdir()) == []


def test_io_uring_is_really_probed(tmp_path: Path) -> None:
    probed = probe()
    found = {check.name: check for check in command.examine(load().config, {"PATH": str(tmp_path)}, tmp_path)}
    assert found["io_uring"].found == probed.detail
    assert (found["io_uring"].status is Status.OK) is probed.available


def test_missing_kernels_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "seawall.kernels.runtime.jit", None)
    monkeypatch.setitem(sys.modules, "seawall.io.disk.uring", None)
    found = {check.name: check for check in command.examine(load().config, {"PATH": str(tmp_path)}, tmp_path)}
    assert list(found) == NAMES
    assert found["kernel cache"].is_broken
    assert found["io_uring"].status is Status.MISSING
    assert found["io_uring"].found.startswith("not tried: ")


def test_the_table_shows_cost_and_fix_of_problems(findings: list[Check]) -> None:
    findings += [
        Check("first", Status.OK, "fine [bold]as it is[/bold]"),
        Check("second", Status.WARN, "poor", "time", "do this"),
        Check("third", Status.MISSING, "nothing", "much", "get that"),
    ]
    result = run()
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert ["first", "ok", "fine", "[bold]as", "it", "is[/bold]"] in lines
    assert ["second", "warn", "poor"] in lines
    assert ["cost:", "time"] in lines
    assert ["third", "missing", "nothing"] in lines
    assert ["fix:", "get", "that"] in lines


@pytest.mark.parametrize(("required", "code"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_only_a_required_check_fails_the_command(
    findings: list[Check], required: bool, code: int, options: list[str]
) -> None:
    findings.append(Check("thing", Status.MISSING, "nothing", "all", "get it", required=required))
    assert run(*options).exit_code == code


def test_warming_shows_its_progress_on_standard_error(findings: list[Check], monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[str] = []

    def compile_all(progress: Callable[[str, int, int], None]) -> float:
        for done, name in enumerate(("one", "two"), 1):
            progress(name, done, 2)
            warmed.append(name)
        return 1.25

    monkeypatch.setattr(warm, "warm", compile_all)
    result = run("--warm", "--json")
    assert warmed == ["one", "two"]
    assert "kernels are ready after 1.2 s" in result.stderr
    assert json.loads(result.stdout) == {"checks": []}
