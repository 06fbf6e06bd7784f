"""`seawall watch`: records of many topics as they arrive, their formats, and the cursor file."""

import json
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
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topics(["orders", "audit.a", "audit.b", "other"])
        log.publish("orders", ["one", "two", "three"])
        log.publish("audit.a", b"\xff")
        log.publish("other", "unseen")
    return tmp_path / "data"


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(seawall, ["watch", *arguments, "--data", str(data)])


def test_records_are_printed_with_their_topic(data: Path) -> None:
    result = run(data, "orders", "audit.*")
    assert (result.exit_code, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == ["audit.a\t\\xff", "orders\tone", "orders\tthree", "orders\ttwo"]
    assert run(data, "orders", "--from", "latest").stdout == ""


def test_json_has_records_and_reports(data: Path) -> None:
    with open_log(data) as log:
        log.configure_topic("orders", cap_records=1)
        log.publish("orders", ["four"])
    found = [json.loads(line) for line in run(data, "orders", "audit.b", "--format", "json").stdout.splitlines()]
    assert found[0] == {"topic": "audit.b", "caught_up": {"next_seq": 1}}
    assert found[1] == {"topic": "orders", "gap": {"first_seq": 1, "last_seq": 3, "reason": "cap"}}
    assert (found[2]["topic"], found[2]["seq"], found[2]["value"]) == ("orders", 4, "four")
    assert found[3] == {"topic": "orders", "caught_up": {"next_seq": 5}}


def test_the_cursor_file_continues_in_the_middle_of_a_batch(data: Path, tmp_path: Path) -> None:
    cursor = tmp_path / "audit.cursor"
    printed = []
    for _ in range(6):
        result = run(data, "orders", "audit.*", "--limit", "1", "--cursor-file", str(cursor))
        assert result.exit_code == 0
        printed += result.stdout.splitlines()
    assert sorted(printed) == ["audit.a\t\\xff", "orders\tone", "orders\tthree", "orders\ttwo"]
    assert {path.name for path in tmp_path.iterdir()} == {"data", "audit.cursor"}
    with open_log(data) as log:
        log.delete_topic("audit.a")
        log.delete_topic("orders")
        log.create_topic("orders")
        log.publish("orders", "again")
    result = run(data, "orders", "audit.*", "--cursor-file", str(cursor))
    assert result.stdout == "orders\tagain\n"
    assert sorted(result.stderr.splitlines()) == [
        "audit.a: deleted: seqs from 2 to before 2 were not printed",
        "orders: created again: its seqs begin again",
    ]
    for nonsense in (b"nonsense", b"\xff\xfe", b""):
        cursor.write_bytes(nonsense)
        result = run(data, "orders", "--cursor-file", str(cursor))
        assert (result.exit_code, "not one that a watch has returned" in result.stderr) == (2, True)
        assert f"cursor file {cursor}" in result.stderr
    result = run(data, "orders", "--cursor-file", str(tmp_path / "nowhere" / "cursor"))
    assert (result.exit_code, result.stdout, "there is no directory" in result.stderr) == (2, "", True)


def test_wrong_options_are_refused(data: Path) -> None:
    for arguments, text in (
        ([], "Missing argument"),
        (["orders", "--follow"], "--follow needs --url"),
        (["nowhere"], "there is no topic 'nowhere'"),
        (["a*b"], "is not allowed"),
        (["orders", "--format", "raw"], "'raw' is not one of"),
    ):
        result = run(data, *arguments)
        assert (result.exit_code, text in result.stderr) == (2, True), result.stderr


@contextmanager
def served(data: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "seawall", "serve", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if "127.0.0.1:" in line:
                    yield "seawall://127.0.0.1:" + line.partition("127.0.0.1:")[2].split()[0].strip(",.")
                    break
        finally:
            server.terminate()
            server.stdout.read()


def test_following_a_server_prints_topics_that_appear_later(data: Path) -> None:
    with served(data) as url:
        command = [sys.executable, "-m", "seawall", "watch", "audit.*", "--url", url, "--follow", "--strong"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "audit.a\t\\xff\n"
            publish = [sys.executable, "-m", "seawall", "pub", "audit.new", "--create", "--url", url]
            subprocess.run(publish, input="late\n", text=True, check=True, capture_output=True)
            assert process.stdout.readline() == "audit.new\tlate\n"
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
