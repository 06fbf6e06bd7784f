"""`seawall sub`: records as they arrive, while another process writes; owners and their commits; how it ends."""

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
from seawall.cli.main import seawall
from seawall.cli.reading import subscribe
from seawall.cli.reading.selection import Selection
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """A writer that has the directory open while the command runs."""
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


def test_without_follow_it_stops_at_the_current_end(log: EmbeddedLog, data: Path) -> None:
    result = run(data)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\ntwo\n", "")
    rows = [json.loads(each) for each in run(data, "--format", "json", "--from", "2").stdout.splitlines()]
    assert [row["value"] for row in rows] == ["two"]
    assert run(data, "--from", "latest").stdout == ""


def test_following_prints_records_of_another_process_until_an_interrupt(log: EmbeddedLog, data: Path) -> None:
    with started(data, "--follow") as process:
        assert [line(process), line(process)] == ["one", "two"]
        log.publish("events", "three")
        assert line(process) == "three"
        log.publish("other", "another topic")
        log.checkpoint()
        log.publish("events", ["four", "five"])
        assert [line(process), line(process)] == ["four", "five"]
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "seawall: interrupted\n")


def test_following_reports_the_gap_after_a_crash(log: EmbeddedLog, data: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "killed")
    with started(copy, "--follow", "--format", "json", "--until", "65") as process:
        assert [json.loads(line(process))["value"] for _ in range(2)] == ["one", "two"]
        with open_log(copy, SETTINGS) as restarted:
            restarted.publish("events", ["after", "behind the end"])
            assert json.loads(line(process)) == {"gap": {"first_seq": 3, "last_seq": 64, "reason": "crash"}}
            assert json.loads(line(process))["seq"] == 65
            assert line(process) == ""
        assert process.wait(timeout=60) == 0


def test_following_waits_behind_deleted_records(log: EmbeddedLog, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def await_more(_view: object, _topic: str, selection: Selection) -> None:
        raise SystemExit(selection.next_seq)

    log.delete("events", before_seq=3)
    monkeypatch.setattr(subscribe, "_wait_for_more", await_more)
    assert run(data, "--follow").exit_code == 3


def test_following_ends_quietly_when_the_output_is_closed(log: EmbeddedLog, data: Path) -> None:
    with started(data, "--follow") as process:
        assert [line(process), line(process)] == ["one", "two"]
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        # It notices though no record is published.
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == ""


def test_a_pause_ends_when_the_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        subscribe.pause_output(0.001)
        os.close(read_end)
        with pytest.raises(BrokenPipeError):
            subscribe.pause_output(3600)


def test_following_works_if_the_output_is_no_file(
    log: EmbeddedLog, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe.time, "sleep", lambda _seconds: log.publish("events", "three"))
    assert run(data, "--follow", "--limit", "3").stdout == "one\ntwo\nthree\n"


def test_an_owner_continues_where_it_committed(log: EmbeddedLog, data: Path) -> None:
    log.close()
    assert run(data, "--from", "committed", "--owner", "billing").stdout == "one\ntwo\n"
    arguments = ["--from", "committed", "--owner", "billing", "--commit", "--limit", "1"]
    assert run(data, *arguments).stdout == "one\n"
    assert run(data, *arguments).stdout == "two\n"
    assert run(data, *arguments).stdout == ""
    with open_log(data, SETTINGS) as again:
        assert again.committed("billing", "events") == 3
        # While a writer has the directory open, the cursor can be read but not changed.
        again.publish("events", "three")
        assert run(data, "--from", "committed", "--owner", "billing").stdout == "three\n"
        refused = run(data, *arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"in use by process {os.getpid()}: " in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--commit"], "--commit needs --owner NAME"),
        (["--from", "committed"], "--from committed needs --owner NAME"),
        (["--commit", "--follow", "--owner", "a"], "use only one of them"),
        (["--follow", "--until", "end"], "omit --until end"),
        (["--from", "never"], "'never' is neither 'earliest', 'latest', 'committed', nor a seq"),
        (["--until", "earliest"], "'earliest' is neither 'end', nor a seq"),
    ],
)
def test_mistakes_exit_with_2(log: EmbeddedLog, data: Path, arguments: list[str], message: str) -> None:
    result = run(data, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr.replace("\n", " ")


def test_a_missing_directory_or_topic_is_refused(log: EmbeddedLog, data: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "missing").exit_code == 2
    missing = CliRunner().invoke(seawall, ["sub", "missing", "--data", str(data)])
    assert (missing.exit_code, "missing" in missing.stderr) == (2, True)
