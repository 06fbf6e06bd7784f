"""`seawall sub`: records as they come, beside a writer; owners and their commits; how it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.cli import subscribe
from seawall.cli.main import seawall
from seawall.cli.selection import Selection
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """A writer that runs beside the command."""
    with open_log(tmp_path / "data", SETTINGS) as opened:
        opened.create_topic("events")
        opened.create_topic("other")
        opened.publish("events", ["one", "two"])
        yield opened


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(seawall, ["sub", "events", *arguments, "--data", str(data)])


@contextmanager
def started(data: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "seawall", "sub", "events", "--data", str(data), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_without_follow_it_ends_at_the_present_end(log: EmbeddedLog, data: Path) -> None:
    result = run(data)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\ntwo\n", "")
    rows = [json.loads(each) for each in run(data, "--format", "json", "--from", "2").stdout.splitlines()]
    assert [row["value"] for row in rows] == ["two"]
    assert run(data, "--from", "latest").stdout == ""


def test_a_follower_prints_what_another_process_writes(log: EmbeddedLog, data: Path) -> None:
    with started(data, "--follow", "--until", "5") as process:
        assert [line(process), line(process)] == ["one", "two"]
        log.publish("events", "three")
        assert line(process) == "three"
        log.publish("other", "not this")
        log.checkpoint()
        log.publish("events", ["four", "five", "six"])
        assert [line(process), line(process), line(process)] == ["four", "five", ""]
        assert process.wait(timeout=60) == 0


def test_a_follower_sees_the_gap_that_a_new_life_tells_of(log: EmbeddedLog, data: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "killed")
    with started(copy, "--follow", "--format", "json", "--limit", "3") as process:
        assert [json.loads(line(process))["value"] for _ in range(2)] == ["one", "two"]
        with open_log(copy, SETTINGS) as next_life:
            next_life.publish("events", "after")
            assert json.loads(line(process)) == {"gap": {"first_seq": 3, "last_seq": 64, "reason": "crash"}}
            assert json.loads(line(process))["seq"] == 65
        assert process.wait(timeout=60) == 0


def test_a_follower_waits_behind_deleted_records(log: EmbeddedLog, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def await_more(_view: object, _topic: str, selection: Selection) -> None:
        raise SystemExit(selection.next_seq)

    log.delete("events", before_seq=3)
    monkeypatch.setattr(subscribe, "_wait_for_more", await_more)
    assert run(data, "--follow").exit_code == 3


def test_an_interrupt_ends_it_with_130(log: EmbeddedLog, data: Path) -> None:
    with started(data, "--follow") as process:
        assert [line(process), line(process)] == ["one", "two"]
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "seawall: interrupted\n")


def test_a_follower_whose_reader_went_away_ends_quietly(log: EmbeddedLog, data: Path) -> None:
    with started(data, "--follow") as process:
        assert [line(process), line(process)] == ["one", "two"]
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        # Nothing is published: it notices all the same.
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == ""


def test_a_rest_ends_when_the_reader_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        subscribe._pause(0.001)
        os.close(read_end)
        with pytest.raises(BrokenPipeError):
            subscribe._pause(3600)


def test_following_works_where_the_output_is_no_file(
    log: EmbeddedLog, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe.time, "sleep", lambda _seconds: log.publish("events", "three"))
    assert run(data, "--follow", "--limit", "3").stdout == "one\ntwo\nthree\n"


def test_an_owner_goes_on_where_it_committed(log: EmbeddedLog, data: Path) -> None:
    log.close()
    assert run(data, "--from", "committed", "--owner", "billing").stdout == "one\ntwo\n"
    arguments = ["--from", "committed", "--owner", "billing", "--commit", "--limit", "1"]
    assert run(data, *arguments).stdout == "one\n"
    assert run(data, *arguments).stdout == "two\n"
    assert run(data, *arguments).stdout == ""
    with open_log(data, SETTINGS) as again:
        assert again.committed("billing", "events") == 3
        # Beside a writer what was committed can be used, but not changed.
        again.publish("events", "three")
        assert run(data, "--from", "committed", "--owner", "billing").stdout == "three\n"
        refused = run(data, *arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"in use by process {os.getpid()}: " in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--commit"], "--commit needs --owner NAME"),
        (["--from", "committed"], "--from committed needs --owner NAME"),
        (["--commit", "--follow", "--owner", "a"], "use only one of them"),
        (["--follow", "--until", "end"], "omit --until end"),
        (["--from", "never"], "'never' is neither 'earliest', 'latest', 'committed', nor a seq"),
        (["--until", "earliest"], "'earliest' is neither 'end', nor a seq"),
    ],
)
def test_mistakes_exit_with_2(log: EmbeddedLog, data: Path, arguments: list[str], said: str) -> None:
    result = run(data, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr.replace("\n", " ")


def test_what_is_not_there_is_refused(log: EmbeddedLog, data: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "gone").exit_code == 2
    missing = CliRunner().invoke(seawall, ["sub", "gone", "--data", str(data)])
    assert (missing.exit_code, "gone" in missing.stderr) == (2, True)
