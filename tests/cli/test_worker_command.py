"""`seawall worker` with real processes: kills, stops, reloads, and what is refused."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import seawall as api
from seawall.cli.main import seawall
from seawall.cli.worker.sources import Sources
from seawall.client.remote_log import RemoteLog
from seawall.errors import NotFoundError
from seawall.tasks import TaskQueue

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from real_server import RealServer

WAIT_S = 100.0

#: The module that worker processes import. `begun` tells the test that a task runs; `go` lets it end.
MODULE = """
import os
from threading import Event
from seawall.tasks import Backoff, TaskQueue, current_job

tasks = TaskQueue({location!r}, topic="jobs", results=True, lease_s=1.0)
nothing = 17

def begin():
    tasks.log.publish("begun", {{"pid": os.getpid(), "seq": current_job().seq}})

@tasks.task
def add(a, b):
    return [a + b, os.getpid()]

@tasks.task
def hang_once():
    current_job().publish("out", b"x")
    if current_job().deliveries == 1:
        begin()
        Event().wait()
    return "done"

@tasks.task
def wait_for_go():
    begin()
    assert tasks.log.wait_for("go", 1, 60)
    return "gone"

@tasks.task
def hang():
    begin()
    Event().wait()
"""


class Command:
    """A running `seawall worker`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seawall", "worker", "app:tasks", *arguments],
            cwd=directory,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def wait_for_line(self, text: str) -> str:
        """Read standard error up to a line with this text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r}: {''.join(self.lines)}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit code, once it has ended."""
        _, rest = self.process.communicate(timeout=WAIT_S)
        self.lines += rest.splitlines(keepends=True)
        return self.process.returncode

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data") as real:
        yield real


@pytest.fixture
def log(server: RealServer) -> Iterator[RemoteLog]:
    with api.connect(server.url) as connected:
        for topic in ("begun", "go", "out"):
            connected.create_topic(topic)
        yield connected


@pytest.fixture
def directory(tmp_path: Path, server: RealServer) -> Path:
    """Where the module is."""
    made = tmp_path / "program"
    made.mkdir()
    (made / "app.py").write_text(MODULE.format(location=server.url))
    return made


@pytest.fixture
def tasks(log: RemoteLog) -> TaskQueue:
    """The queue as a program sees it that only sends."""
    return TaskQueue(log, "jobs", results=True)


def sender(tasks: TaskQueue, name: str) -> Any:
    """A task whose function is elsewhere."""
    return tasks.task(name=name)(lambda *_args: None)


def begun(log: RemoteLog, count: int = 1) -> dict[str, int]:
    """What the task that began last has told."""
    assert log.wait_for("begun", count, WAIT_S)
    found: dict[str, int] = [record.json() for record in log.records("begun")][count - 1]
    return found


def test_processes_share_the_jobs_and_stop_in_order(directory: Path, tasks: TaskQueue) -> None:
    with Command(directory, "--processes", "2", "--threads", "2", "--json") as command:
        for number in (1, 2):
            command.wait_for_line(f'"worker":{number},"message":"works on queue jobs: 4 tasks, 2 threads"')
        add = sender(tasks, "add")
        found = [add.send(number, 1) for number in range(20)]
        assert [each.result(WAIT_S)[0] for each in found] == list(range(1, 21))
        command.signal(signal.SIGINT)
        assert command.ended() == 0
    lines = [json.loads(line) for line in command.lines]
    jobs = [line for line in lines if "outcome" in line]
    assert sorted(line["seq"] for line in jobs) == [each.seq for each in found]
    assert {(line["task"], line["delivery"], line["outcome"], line["level"]) for line in jobs} == {
        ("add", 1, "done", "INFO")
    }
    assert tasks.queue.counts().leased == tasks.queue.counts().ready == 0


def test_a_job_whose_worker_is_killed_is_done_once(directory: Path, log: RemoteLog, tasks: TaskQueue) -> None:
    """The first attempt has published a record, which is not seen: only that of the acked attempt is."""
    with Command(directory, "--threads", "1") as command:
        sent = sender(tasks, "hang_once").send()
        os.kill(begun(log)["pid"], signal.SIGKILL)
        command.wait_for_line("process 1 has ended by SIGKILL: starts again in 0.5 s")
        assert sent.result(WAIT_S) == "done"
        assert "job 1, delivery 2: done" in command.wait_for_line("hang_once, job 1")
        command.signal(signal.SIGTERM)
        assert command.ended() == 0
    assert [record.value for record in log.records("out")] == [b"x"]
    assert log.describe("jobs.results").record_count == 1
    assert log.describe("jobs").record_count == 0


def test_a_stop_lets_running_tasks_finish(directory: Path, log: RemoteLog, tasks: TaskQueue) -> None:
    with Command(directory) as command:
        sent = sender(tasks, "wait_for_go").send()
        begun(log)
        command.signal(signal.SIGTERM)
        command.wait_for_line("received SIGTERM: waits up to 20 s for running tasks")
        log.publish("go", b"x")
        assert command.ended() == 0
    assert sent.result(WAIT_S) == "gone"
    assert "0 tasks did not finish" in command.lines[-1]


def test_a_stop_returns_the_jobs_of_tasks_that_take_too_long(directory: Path, log: RemoteLog, tasks: TaskQueue) -> None:
    with Command(directory, "--grace", "0.1") as command:
        sent = sender(tasks, "hang").send()
        begun(log)
        command.signal(signal.SIGTERM)
        assert command.ended() == 0
    (job,) = log.queue("jobs").claim(1)
    assert (job.seq, job.deliveries) == (sent.seq, 2)


def test_a_second_signal_stops_at_once(directory: Path, log: RemoteLog, tasks: TaskQueue) -> None:
    with Command(directory, "--grace", "1000") as command:
        sender(tasks, "hang").send()
        begun(log)
        command.signal(signal.SIGTERM)
        command.wait_for_line("received SIGTERM: waits up to 1000 s")
        command.signal(signal.SIGINT)
        assert command.ended() == 1
    assert any("kills process" in line for line in command.lines)


def test_a_stop_ends_processes_that_wait_for_a_server(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"seawall://127.0.0.1:{silent.getsockname()[1]}"
        with Command(directory, "--url", url, "--grace", "0") as command:
            silent.settimeout(WAIT_S)
            connection, _ = silent.accept()
            with connection:
                command.signal(signal.SIGTERM)
                # Exit code 1 if it had to be killed.
                assert command.ended() == 0


def test_workers_end_when_their_supervisor_is_killed(directory: Path, log: RemoteLog, tasks: TaskQueue) -> None:
    with Command(directory, "--grace", "0.1") as command:
        sender(tasks, "hang").send()
        ended = os.pidfd_open(begun(log)["pid"])
        command.signal(signal.SIGKILL)
        assert select.select([ended], [], [], WAIT_S)[0]
        os.close(ended)
        assert command.ended() == -signal.SIGKILL
    assert log.queue("jobs").claim(1, wait_s=20)[0].deliveries == 2


@pytest.mark.slow
def test_changed_sources_start_the_processes_again(directory: Path, server: RealServer, tasks: TaskQueue) -> None:
    source = MODULE.format(location=server.url)
    add = sender(tasks, "add")
    with Command(directory, "--reload") as command:
        first = add.send(1, 2).result(WAIT_S)
        assert first[0] == 3
        (directory / "app.py").write_text(source.replace("a + b", "a * b * 10"))
        command.wait_for_line("app.py changed: starts its processes again")
        command.wait_for_line("works on queue jobs")
        second = add.send(1, 2).result(WAIT_S)
        assert second[0] == 20
        assert second[1] != first[1]
        (directory / "app.py").write_text("this is no Python")
        command.wait_for_line("SyntaxError")
        command.wait_for_line("starts again when a source has changed")
        (directory / "app.py").write_text(source.replace("a + b", "a - b"))
        assert add.send(1, 2).result(WAIT_S)[0] == -1
        command.signal(signal.SIGTERM)
        assert command.ended() == 0


@pytest.mark.slow
def test_what_the_target_must_be(directory: Path, tmp_path: Path) -> None:
    def refusal(*arguments: str) -> str:
        command = [sys.executable, "-m", "seawall", "worker", *arguments]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "app:nothing is of type int, not a seawall.tasks.TaskQueue" in refusal("app:nothing")
    assert "module 'app' has no 'other'" in refusal("app:other", "--processes", "3")
    assert "module 'absent' cannot be imported" in refusal("absent:tasks")
    (directory / "local.py").write_text(MODULE.format(location=str(tmp_path / "here")))
    refused = refusal("local:tasks", "--processes", "2")
    assert "which one process at a time can open" in refused
    assert refused.count("cannot start") == 1
    assert not (tmp_path / "here").exists()


def test_options_that_contradict_each_other_are_refused() -> None:
    def refusal(*arguments: str) -> str:
        result = CliRunner().invoke(seawall, ["worker", *arguments])
        assert result.exit_code == 2
        return result.output

    assert "write MODULE:ATTR" in refusal("app")
    assert "write MODULE:ATTR" in refusal(":tasks")
    assert "use only one of them" in refusal("app:tasks", "--url", "seawall://127.0.0.1:1", "--data", "x")
    assert "one process at a time" in refusal("app:tasks", "--data", "x", "--processes", "2")


@pytest.mark.slow
def test_another_log_than_that_of_the_module(directory: Path, log: RemoteLog, tmp_path: Path) -> None:
    """`--data`: the module names a server, and the jobs are in a directory."""
    tasks = TaskQueue(tmp_path / "own", "jobs", results=True)
    sender(tasks, "add").send(4, 5)
    tasks.close()
    with Command(directory, "--data", str(tmp_path / "own")) as command:
        command.wait_for_line("add, job 1, delivery 1: done")
        command.signal(signal.SIGTERM)
        assert command.ended() == 0
    with api.open(tmp_path / "own") as own:
        (record,) = own.records("jobs.results")
        assert record.json()["result"][0] == 9
    assert "jobs" not in log.topics()


def test_changes_of_sources_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shop"
    (package / "inner").mkdir(parents=True)
    for path in (package / "__init__.py", package / "inner" / "mails.py", tmp_path / "flat.py", tmp_path / "other.py"):
        path.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    in_package, flat = Sources.of_module("shop.inner.mails"), Sources.of_module("flat")
    assert in_package.changed() == flat.changed() == []
    os.utime(package / "inner" / "mails.py", (1, 1))
    os.utime(tmp_path / "other.py", (1, 1))
    assert in_package.changed() == [package / "inner" / "mails.py"]
    assert flat.changed() == [tmp_path / "other.py"]
    (package / "new.py").write_text("")
    (tmp_path / "other.py").unlink()
    assert in_package.changed() == [package / "new.py"]
    assert flat.changed() == [tmp_path / "other.py"]
    assert in_package.changed() == flat.changed() == []
    with pytest.raises(NotFoundError, match="no module 'absent_module'"):
        Sources.of_module("absent_module.part")
