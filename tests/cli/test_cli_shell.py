"""The command line around the commands: options, exit codes, errors, and modules that are not loaded."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from seawall import __version__, errors
from seawall.cli import main as shell
from seawall.config import LoadedConfig

#: Modules that small commands must not load; the kernels alone take most of a second.
HEAVY = ("numba", "numpy", "pyarrow", "rich", "llvmlite", "asyncio")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SEAWALL_")]:
        monkeypatch.delenv(name)
    # A command may export it: monkeypatch restores it to its current state, absent.
    monkeypatch.setenv("SEAWALL_KERNELS_CACHE_DIR", "")
    monkeypatch.delenv("SEAWALL_KERNELS_CACHE_DIR")


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[LoadedConfig], None]], None]:
    """Add a command `probe` that runs an action of the test."""

    def install(action: Callable[[LoadedConfig], None]) -> None:
        command = click.Command("probe", callback=click.pass_obj(action))
        monkeypatch.setitem(shell.seawall.commands, "probe", command)

    return install


def run_process(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEAWALL_")}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**clean, **(environ or {})},
    )


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["config", "show", "--json"]])
def test_small_commands_load_nothing_heavy(arguments: list[str]) -> None:
    done = run_process("-X", "importtime", "-m", "seawall", *arguments)
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "seawall" in loaded
    assert not loaded.intersection(HEAVY)


def test_version(runner: CliRunner) -> None:
    result = runner.invoke(shell.seawall, ["--version"])
    assert (result.exit_code, result.output) == (0, f"seawall, version {__version__}\n")


def test_help_lists_every_command_without_loading_it(runner: CliRunner) -> None:
    result = runner.invoke(shell.seawall, ["-h"])
    assert result.exit_code == 0
    for command in shell.COMMANDS:
        assert f"  {command.name}" in result.output
        assert str(command.short_help) in result.output


@pytest.mark.parametrize("command", [command.name for command in shell.COMMANDS])
def test_every_command_can_be_loaded(runner: CliRunner, command: str) -> None:
    result = runner.invoke(shell.seawall, [command, "--help"], prog_name="seawall")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: seawall {command} ")


def test_an_unknown_command_is_the_callers_mistake(runner: CliRunner) -> None:
    result = runner.invoke(shell.seawall, ["nonsense"])
    assert result.exit_code == shell.EXIT_CALLER
    assert "No such command 'nonsense'" in result.stderr


def test_settings_come_from_file_environment_and_flags(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "seawall.toml"
    path.write_text("[bench]\nrounds = 6\nseconds = 6\n[topology]\npin = true\n")
    monkeypatch.setenv("SEAWALL_BENCH_ROUNDS", "7")
    monkeypatch.setenv("SEAWALL_BENCH_SECONDS", "7s")
    options = [
        "--config",
        str(path),
        "--set",
        "bench.rounds=7",
        "--set",
        "bench.rounds=8",
        "--set",
        "bench.directory=a=b",
    ]
    result = runner.invoke(shell.seawall, [*options, "config", "show", "--json"])
    shown = json.loads(result.output)
    assert shown["topology.pin"] == {"value": True, "origin": f"file {path}"}
    assert shown["bench.seconds"] == {"value": 7.0, "origin": "environment SEAWALL_BENCH_SECONDS"}
    assert shown["bench.rounds"] == {"value": 8, "origin": "flag --set"}
    assert shown["bench.directory"]["value"] == "a=b"
    assert shown["disk.backend"] == {"value": "auto", "origin": "default"}


def test_a_flag_without_a_value_is_refused(runner: CliRunner) -> None:
    result = runner.invoke(shell.seawall, ["--set", "disk.backend", "config", "show"])
    assert result.exit_code == shell.EXIT_CALLER
    assert "'disk.backend' has no value; write section.field=value" in result.stderr


def test_a_wrong_setting_is_one_line_on_standard_error(runner: CliRunner) -> None:
    result = runner.invoke(shell.seawall, ["--set", "disk.backend=fast", "config", "show"])
    assert (result.exit_code, result.stdout) == (shell.EXIT_CALLER, "")
    assert result.stderr == "seawall: disk.backend is 'fast' (flag --set): it must be one of auto, resident, uring\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInputError("wrong"), 2),
        (errors.UnsupportedError("wrong"), 2),
        (errors.CorruptionError("wrong"), 1),
        (errors.FullError("wrong"), 1),
        (errors.SyncError("wrong"), 1),
        (errors.OutcomeUnknownError("wrong"), 1),
        (PermissionError("wrong"), 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    runner: CliRunner, probe: Callable[..., None], error: Exception, code: int
) -> None:
    def fail(_loaded: LoadedConfig) -> None:
        raise error

    probe(fail)
    result = runner.invoke(shell.seawall, ["probe"])
    assert (result.exit_code, result.stderr) == (code, "seawall: wrong\n")
    result = runner.invoke(shell.seawall, ["--debug", "probe"])
    assert result.exit_code == code
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("seawall: wrong\n")


def test_an_unexpected_exception_is_not_caught(runner: CliRunner, probe: Callable[..., None]) -> None:
    def fail(_loaded: LoadedConfig) -> None:
        raise ZeroDivisionError

    probe(fail)
    assert isinstance(runner.invoke(shell.seawall, ["probe"]).exception, ZeroDivisionError)


def test_an_interrupt_ends_with_130(runner: CliRunner, probe: Callable[..., None]) -> None:
    def interrupt(_loaded: LoadedConfig) -> None:
        raise KeyboardInterrupt

    probe(interrupt)
    result = runner.invoke(shell.seawall, ["probe"])
    assert (result.exit_code, result.stderr) == (shell.EXIT_INTERRUPTED, "seawall: interrupted\n")


def test_a_command_that_finds_the_pipe_closed_ends_quietly(runner: CliRunner, probe: Callable[..., None]) -> None:
    def fail(_loaded: LoadedConfig) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    probe(fail)
    result = runner.invoke(shell.seawall, ["probe"])
    assert (result.exit_code, result.output) == (shell.EXIT_FAILED, "")


def test_a_closed_pipe_ends_quietly() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "seawall", "config", "show"],
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith("SEAWALL_")},
        )
    finally:
        os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ([], None, None),
        (["--set", "kernels.cache_dir=/somewhere"], None, "/somewhere"),
        (["--set", "kernels.cache_dir=/somewhere"], "/elsewhere", "/somewhere"),
        (["--set", "kernels.cache_dir="], "/elsewhere", ""),
        ([], "/elsewhere", "/elsewhere"),
    ],
)
def test_the_cache_directory_of_the_kernels_is_exported(
    runner: CliRunner,
    probe: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    before: str | None,
    after: str | None,
) -> None:
    seen: list[str | None] = []
    probe(lambda _loaded: seen.append(os.environ.get("SEAWALL_KERNELS_CACHE_DIR")))
    if before is not None:
        monkeypatch.setenv("SEAWALL_KERNELS_CACHE_DIR", before)
    assert runner.invoke(shell.seawall, [*options, "probe"]).exit_code == 0
    assert seen == [after]


def test_main_runs_the_command_line_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["seawall", "config", "show"])
    with pytest.raises(SystemExit) as ended:
        shell.main()
    assert ended.value.code == 0
    assert "disk.backend" in capsys.readouterr().out
