"""Programs that exit with records in flight: the records are stored, or a warning counts those that are not."""

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
#: How long a program may take: much longer than its exit waits for deliveries.
TIMEOUT_S = 90


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("server") / "data")
    yield running
    running.stop()


@pytest.fixture
def server(process: ServerProcess) -> Iterator[ServerProcess]:
    """The server of the module, with an empty topic."""
    with seawall.connect(process.url) as log:
        log.create_topic("events")
        yield process
        log.delete_topic("events")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with seawall.open(tmp_path / "data") as log:
        log.create_topic("events")
    return tmp_path / "data"


def start(program: str, location: object, ending: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAMS), program, str(location), ending]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def errors_of(process: subprocess.Popen[str], ending: str) -> str:
    """What a program wrote to standard error; its exit code must be that of its ending."""
    try:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == ENDINGS[ending], errors
    assert ("LookupError" in errors) is (ending == "exception"), errors
    return errors


def undelivered(errors: str) -> int:
    """The number of undelivered records that the warning of a program reports."""
    counts = re.findall(r"RuntimeWarning: (\d+) records were handed in and not delivered", errors)
    assert len(counts) == 1, errors
    return int(counts[0])


@pytest.mark.parametrize("ending", ["end", "exit"])
def test_records_in_flight_to_a_server_are_stored_at_exit(server: ServerProcess, ending: str) -> None:
    assert "records were handed in" not in errors_of(start("connected", server.url, ending), ending)
    with seawall.connect(server.url) as log:
        assert log.describe("events").record_count == CALLS


def test_records_in_flight_in_an_embedded_log_are_stored_after_an_exception(data: Path) -> None:
    assert "records were handed in" not in errors_of(start("embedded", data, "exception"), "exception")
    with seawall.open(data) as log:
        assert log.describe("events").record_count == CALLS


@pytest.mark.parametrize("program", ["brokers", "daemon", "closed"])
def test_records_of_brokers_and_daemon_threads_are_stored_at_exit(data: Path, program: str) -> None:
    assert "records were handed in" not in errors_of(start(program, data, "end"), "end")
    with seawall.open(data) as log:
        assert log.describe("events").record_count == CALLS


@pytest.mark.slow
def test_a_killed_server_does_not_keep_a_program_from_exiting(server: ServerProcess) -> None:
    process = start("server_killed", server.url, "end")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    server.kill()
    try:
        assert undelivered(errors_of(process, "end")) == CALLS
    finally:
        server.start()


def test_undelivered_records_of_a_closed_event_loop_are_counted(server: ServerProcess) -> None:
    count = undelivered(errors_of(start("connected_loop", server.url, "end"), "end"))
    with seawall.connect(server.url) as log:
        # Records that were sent and not acknowledged may be stored as well.
        assert 0 < count <= CALLS <= count + log.describe("events").record_count


def test_undelivered_records_of_a_closed_event_loop_of_an_embedded_log_are_counted(data: Path) -> None:
    count = undelivered(errors_of(start("embedded_loop", data, "end"), "end"))
    with seawall.open(data) as log:
        assert 0 < count <= CALLS <= count + log.describe("events").record_count
