"""`seawall bench` as a command: output, JSON, exit codes, and no process left after an interrupt."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import config
from seawall.bench import registry as suites
from seawall.bench.harness import Baseline, BenchContext, Measurement, plain
from seawall.bench.results import Better, Goal
from seawall.cli.bench import bench
from seawall.errors import InvalidInputError, UnsupportedError

TRIAL = "trial_suite"


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[BenchContext]:
    """A suite with one goal reached, one missed and one that cannot be judged; the contexts that it was loaded with."""
    used: list[BenchContext] = []

    def absent(seconds: float) -> float:
        raise UnsupportedError("not on this machine")

    def suite(context: BenchContext) -> Iterator[Measurement]:
        used.append(context)
        other = Baseline("other", plain(lambda _: 4.0))
        yield Measurement("good", "s", Better.LOWER, plain(lambda _: 2.0), other, Goal.ratio_at_most(0.5))
        yield Measurement("bad", "B/s", Better.HIGHER, plain(lambda _: 2e9), None, Goal.value_at_least(3e9))
        yield Measurement("absent", "s", Better.LOWER, plain(absent), None, Goal.value_at_most(1.0))
        yield Measurement("absent too", "s", Better.LOWER, plain(absent))

    monkeypatch.setitem(suites.SUITES, TRIAL, suites.SuiteEntry("", "for this test"))
    monkeypatch.setattr(suites, "load", {TRIAL: suite}.__getitem__)
    return used


def invoke(*arguments: str, **settings: str) -> Result:
    loaded = config.load(environ={}, flags={f"bench.{key}": value for key, value in settings.items()})
    return CliRunner().invoke(bench, arguments, obj=loaded)


def test_the_table_is_printed_to_stdout_and_the_progress_to_stderr(contexts: list[BenchContext]) -> None:
    done = invoke(TRIAL)
    assert done.exit_code == 0
    assert "seawall bench trial_suite" in done.stdout
    assert "[1/4] good: 2.00 s, 0.500x other" in done.stderr
    assert "[2/4] bad: 2.00 GB/s" in done.stderr
    assert "missed" not in done.stderr


def test_check_names_every_missed_goal_and_exits_with_1(contexts: list[BenchContext]) -> None:
    done = invoke(TRIAL, "--check")
    assert done.exit_code == 1
    lines = done.stderr.splitlines()[-2:]
    assert lines == [
        "not judged: absent: left out: not on this machine",
        "missed: bad: value 2.00 GB/s, goal ≥ 3.00 GB/s",
    ]
    assert "seawall bench trial_suite" in done.stdout


def test_check_passes_when_every_goal_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Measurement("good", "s", Better.LOWER, plain(lambda _: 2.0), goal=Goal.value_at_most(2.0))
    monkeypatch.setitem(suites.SUITES, TRIAL, suites.SuiteEntry("", "for this test"))
    monkeypatch.setattr(suites, "load", lambda _: lambda _: [figure])
    done = invoke(TRIAL, "--check")
    assert done.exit_code == 0
    assert "missed" not in done.stderr


def test_the_report_is_kept_as_json_even_when_a_goal_is_missed(contexts: list[BenchContext], tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    assert invoke(TRIAL, "--check", "--json", str(kept)).exit_code == 1
    report = json.loads(kept.read_text(encoding="utf-8"))
    assert report["suite"] == TRIAL
    assert {"cpu", "cores", "memory_bytes", "kernel", "python", "libraries"} <= set(report["machine"])
    assert [(each["name"], each["met"]) for each in report["results"]] == [
        ("good", True),
        ("bad", False),
        ("absent", None),
        ("absent too", None),
    ]


def test_a_json_file_that_cannot_be_written_is_refused_before_measuring(
    contexts: list[BenchContext], tmp_path: Path
) -> None:
    done = invoke(TRIAL, "--json", str(tmp_path / "absent" / "report.json"))
    assert done.exit_code == 2
    assert "there is no directory" in done.stderr
    assert contexts == []


def test_flags_override_the_configuration(contexts: list[BenchContext], tmp_path: Path) -> None:
    settings = {"seconds": "7.5", "rounds": "6", "directory": str(tmp_path)}
    invoke(TRIAL, **settings)
    invoke(TRIAL, "--seconds", "0.5", "--rounds", "9", **settings)
    assert contexts == [BenchContext(7.5, 6, tmp_path), BenchContext(0.5, 9, tmp_path)]


@pytest.mark.parametrize("arguments", [("--rounds", "4"), ("--seconds", "0"), ("--seconds", "nan")])
def test_too_little_time_or_too_few_rounds_are_refused(
    contexts: list[BenchContext], arguments: tuple[str, str]
) -> None:
    assert isinstance(invoke(TRIAL, *arguments).exception, InvalidInputError)


def test_list_names_every_suite() -> None:
    done = invoke("--list")
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(suites.SUITES)


def test_without_a_suite_the_suites_are_named() -> None:
    done = invoke()
    assert done.exit_code == 2
    assert f"Name a suite: {', '.join(suites.SUITES)}." in done.stderr


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from click.testing import CliRunner
from seawall import config
from seawall.bench import registry
from seawall.bench.harness import Measurement
from seawall.bench.results import Better
from seawall.bench.subjects import second_process
from seawall.bench.suites import processes
from seawall.cli.bench import bench

# Interrupts are ignored if the tests run in the background of a shell.
signal.signal(signal.SIGINT, signal.default_int_handler)
start = second_process.subprocess.Popen.__init__

def print_pid(self, *arguments, **options):
    start(self, *arguments, **options)
    print(self.pid, flush=True)

second_process.subprocess.Popen.__init__ = print_pid
figure = Measurement("loopback", "B/s", Better.HIGHER, processes.loopback_bandwidth)
registry.SUITES["trial"] = registry.SuiteEntry("", "for this test")
registry.load = lambda name: lambda context: [figure]
bench.main(["trial", "--seconds", "1000"], standalone_mode=False, obj=config.load(environ={}))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for a process that is not a child")
def test_an_interrupt_leaves_no_process_behind() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        child = os.pidfd_open(int(run.stdout.readline()))
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode != 0
    # Either its parent kills it or it exits at the end of its input: that depends on when the signal arrived.
    ended, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert ended
