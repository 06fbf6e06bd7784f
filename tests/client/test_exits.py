"""A program that ends with records under way: they are stored, or it says how many are not, and it ends soon."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exiting_programs import CALLS
from real_server import ServerProcess

import seawall

PROGRAMS = Path(__file__).with_name("exiting_programs.py")
ENDINGS = {"end": 0, "exit": 3, "exception": 1}
#: How long a program may take: much longer than its end waits, much less than for ever.
PATIENCE_S = 90


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data")
    with seawall.connect(process.url) as log:
        log.create_topic("events")
    yield process
    process.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with seawall.open(tmp_path / "data") as log:
        log.create_topic("events")
    return tmp_path / "data"


def start(program: str, place: object, ending: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAMS), program, str(place), ending]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def errors_of(process: subprocess.Popen[str], ending: str) -> str:
    """What a program wrote to standard error, once it has ended as it should."""
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == ENDINGS[ending], errors
    assert ("LookupError" in errors) is (ending == "exception"), errors
    return errors


def undelivered(errors: str) -> int:
    """How many records a program said that it did not deliver."""
    told = re.findall(r"RuntimeWarning: (\d+) records were handed in and not delivered", errors)
    assert len(told) == 1, errors
    return int(told[0])


@pytest.mark.parametrize("ending", ENDINGS)
def test_records_on_their_way_to_a_server_are_stored(server: ServerProcess, ending: str) -> None:
    assert "records were handed in" not in errors_of(start("connected", server.url, ending), ending)
    with seawall.connect(server.url) as log:
        assert log.describe("events").record_count == CALLS


@pytest.mark.parametrize("ending", ENDINGS)
def test_records_on_their_way_into_an_embedded_log_are_stored(data: Path, ending: str) -> None:
    assert "records were handed in" not in errors_of(start("embedded", data, ending), ending)
    with seawall.open(data) as log:
        assert log.describe("events").record_count == CALLS


@pytest.mark.parametrize("program", ["brokers", "daemon", "closed"])
def test_so_are_those_of_brokers_and_of_daemon_threads(data: Path, program: str) -> None:
    assert "records were handed in" not in errors_of(start(program, data, "end"), "end")
    with seawall.open(data) as log:
        assert log.describe("events").record_count == CALLS


@pytest.mark.slow
def test_a_server_that_is_gone_does_not_keep_a_program_from_its_end(server: ServerProcess) -> None:
    process = start("gone", server.url, "end")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    server.kill()
    try:
        assert undelivered(errors_of(process, "end")) == CALLS
    finally:
        server.start()


def test_records_of_a_closed_loop_are_counted(server: ServerProcess) -> None:
    count = undelivered(errors_of(start("connected_loop", server.url, "end"), "end"))
    with seawall.connect(server.url) as log:
        # What was sent and not answered may be stored, too.
        assert 0 < count <= CALLS <= count + log.describe("events").record_count


def test_records_of_a_closed_loop_of_an_embedded_log_are_counted(data: Path) -> None:
    count = undelivered(errors_of(start("embedded_loop", data, "end"), "end"))
    with seawall.open(data) as log:
        assert 0 < count <= CALLS <= count + log.describe("events").record_count
