"""`seawall queue`: jobs are pushed, worked on and counted, in a data directory and on a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import seawall as api
from seawall import limits
from seawall.cli.main import seawall
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from real_server import RealServer

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096)

#: Prints the value and the environment of a job, and fails if the value says so.
PROGRAM = """
import os, sys
value = sys.stdin.buffer.read()
with open(sys.argv[1], "a") as output:
    found = [os.environ.get("SEAWALL_JOB_" + name) for name in ("SEQ", "DELIVERIES", "KEY")]
    print(value.decode(), *found, sys.argv[2:], file=output)
sys.exit(3 if value == b"bad" else 0)
"""


class Place:
    """Where a command finds its log."""

    def __init__(self, *location: str) -> None:
        self.location = location

    def run(self, *arguments: str, text: str | bytes | None = None, code: int = 0) -> Result:
        name, *rest = arguments
        result = CliRunner().invoke(seawall, ["queue", name, *self.location, *rest], input=text)
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, text: str | bytes | None = None, code: int = 0) -> Any:
        name, *rest = arguments
        return json.loads(self.run(name, "--json", *rest, text=text, code=code).stdout)


@pytest.fixture(params=["data", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    data = tmp_path / "data"
    with open_log(data, SETTINGS) as log:
        log.create_topic("mails", type="queue", leases_durable=True)
        log.create_topic("events")
    if request.param == "data":
        yield Place("--data", str(data))
        return
    with RealServer(data) as server:
        yield Place("--url", server.url)


@pytest.fixture
def program(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return (sys.executable, str(path), str(tmp_path / "output"))


def test_lines_are_pushed_and_counted(place: Place) -> None:
    assert place.run("push", "mails", text="one\ntwo\n").output == "2 jobs\n"
    assert place.json("push", "mails", text="three") == {"queue": "mails", "jobs": 1}
    assert place.run("push", "mails", text="").output == "0 jobs\n"
    [counts] = place.json("stats", "mails")
    oldest_ms = counts.pop("oldest_ms")
    assert counts == {"queue": "mails", "ready": 3, "leased": 0, "delayed": 0, "dead_lettered": 0}
    assert oldest_ms > 1_700_000_000_000
    assert place.run("stats", "mails").output.startswith(
        "mails  3 ready, 0 leased, 0 delayed, 0 dead-lettered, the oldest of 2"
    )


def test_options_of_jobs(place: Place) -> None:
    place.run("push", "mails", text="low\n")
    place.run("push", "mails", "--priority", "9", text="high\nhigher\n")
    place.run("push", "mails", "--delay", "3600", "--format", "json", text='{"later":1}\n[2]\n')
    place.run("push", "mails", "--format", "raw", "--priority", "1", text="whole\ninput")
    assert place.json("push", "mails", "--unique", "key", text="only") == {"queue": "mails", "seq": 7, "new": True}
    assert place.run("push", "mails", "--unique", "key", text="again").output == "job 7 is there already\n"
    assert (
        "2 jobs with the unique key 'key'"
        in place.run(*("push", "mails", "--unique", "key"), text="one\ntwo\n", code=2).output
    )
    [counts] = place.json("stats", "mails")
    assert (counts["ready"], counts["delayed"]) == (5, 2)
    values = [place.json("claim", "mails")[0]["value"] for _ in range(5)]
    assert values == ["high", "higher", "whole\ninput", "low", "only"]


def test_a_queue_is_created(place: Place, tmp_path: Path) -> None:
    place.run("push", "new", "--create", text="job")
    place.run("push", "new", "--create", text="job")
    assert place.json("stats", "new")[0]["ready"] == 2
    assert "events" in place.run("stats", "events", code=2).output
    assert "missing" in place.run("claim", "missing", code=2).output
    elsewhere = Place("--data", str(tmp_path / "other"))
    assert "not a data directory" in elsewhere.run("push", "new", text="job", code=2).output


def test_jobs_are_claimed_acked_and_returned_by_different_processes(place: Place) -> None:
    place.run("push", "mails", text="one\ntwo\nthree\n")
    claimed = place.json("claim", "mails", "--count", "2", "--node", "me", "--lease", "600")
    assert [(job["value"], job["seq"], job["node"], job["deliveries"]) for job in claimed] == [
        ("one", 1, "me", 1),
        ("two", 2, "me", 1),
    ]
    line = place.run("claim", "mails", "--node", "me").output
    third, deliveries, value = line.rstrip("\n").split("\t")
    assert (third.partition(":")[0], deliveries, value) == ("3", "1", "three")
    assert place.run("claim", "mails", code=1).output == ""
    first, second = (job["job"] for job in claimed)
    assert place.run("ack", "mails", first, "--node", "me").output == "1 jobs acked\n"
    assert place.run("ack", "mails", first, third, "--node", "me", code=1).output == (
        "1 jobs acked; the lease of 1 has ended\n"
    )
    assert place.json("nack", "mails", second, "--node", "other", code=1) == {
        "queue": "mails",
        "returned": 0,
        "skipped": [2],
        "ready": 0,
        "leased": 1,
    }
    assert place.run("nack", "mails", second, "--node", "me", "--delay", "3600").output == "1 jobs returned\n"
    assert place.json("stats", "mails")[0]["delayed"] == 1
    assert "write SEQ:LEASE" in place.run("ack", "mails", "1", "--node", "me", code=2).output


def test_a_command_runs_for_each_job(place: Place, program: tuple[str, ...]) -> None:
    place.run("push", "mails", text="one\nbad\nthree\n")
    result = place.json("work", "--until-empty", "--backoff", "3600", "mails", *program, "--json", "x")
    assert result == {"queue": "mails", "done": 2, "returned": 1}
    assert Path(program[2]).read_text().splitlines() == [
        "one 1 1 None ['--json', 'x']",
        "bad 2 1 None ['--json', 'x']",
        "three 3 1 None ['--json', 'x']",
    ]
    [counts] = place.json("stats", "mails")
    assert (counts["ready"], counts["leased"], counts["delayed"]) == (0, 0, 1)
    assert "0 jobs done, 0 returned" in place.run("work", "--until-empty", "mails", *program).stderr


def test_a_key_is_passed_and_a_failed_job_runs_again(place: Place, program: tuple[str, ...]) -> None:
    if place.location[0] == "--url":
        with api.connect(place.location[1]) as log:
            log.queue("mails").push(api.Message(b"job", key=b"k"))
    else:
        with open_log(Path(place.location[1]), SETTINGS) as log:
            log.queue("mails").push(api.Message(b"job", key=b"k"))
    missing = place.run("work", "--until-empty", "--backoff", "0", "mails", "no-such-command", code=2)
    assert "there is no command 'no-such-command'" in missing.output
    forbidden = place.run("work", "--until-empty", "--backoff", "0", "mails", str(Path(program[1]).parent), code=2)
    assert "cannot be run, and the job is returned: Permission denied" in forbidden.output
    place.run("work", "--until-empty", "mails", *program)
    assert Path(program[2]).read_text() == "job 1 3 k []\n"


def test_options_of_work_come_before_the_queue(place: Place) -> None:
    place.run("push", "mails", text="one\n")
    refused = place.run("work", "mails", "--until-empty", "true", code=2)
    assert "'--until-empty' after QUEUE is the command to run: write options before 'mails'" in refused.output
    assert "worker name" in place.run("claim", "mails", "--node", "", code=2).output
    [counts] = place.json("stats", "mails")
    assert (counts["ready"], counts["leased"]) == (1, 0)


def test_sigterm_lets_the_running_command_finish(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(begun)
    os.mkfifo(go)
    script = f"import sys; open({str(begun)!r}, 'w').close(); open({str(go)!r}).close()"
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("mails", type="queue")
    with RealServer(tmp_path / "data") as server, api.connect(server.url) as log:
        log.queue("mails").push(["one", "two"])
        work = [sys.executable, "-m", "seawall", "queue", "work", "--json", "--url", server.url, "mails"]
        with subprocess.Popen([*work, sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
            begun.open().close()
            process.send_signal(signal.SIGTERM)
            go.open("w").close()
            output, _ = process.communicate(timeout=60)
        assert (process.returncode, json.loads(output)) == (0, {"queue": "mails", "done": 1, "returned": 0})
        assert log.queue("mails").counts()[:3] == (1, 0, 0)


def test_sigterm_ends_a_command_that_waits_for_jobs(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("mails", type="queue")
    with RealServer(tmp_path / "data") as server, api.connect(server.url) as log:
        queue = log.queue("mails")
        queue.push("one")
        work = [sys.executable, "-m", "seawall", "queue", "work", "--json", "--url", server.url, "mails"]
        with subprocess.Popen([*work, "true"], stdout=subprocess.PIPE) as process:
            deadline = threading.Event()
            while queue.counts().ready or queue.counts().leased:
                deadline.wait(0.01)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        assert (process.returncode, json.loads(output)) == (0, {"queue": "mails", "done": 1, "returned": 0})


def test_dead_letters_are_listed_and_moved_back(place: Place, program: tuple[str, ...]) -> None:
    missing = place.run("dead", "mails", code=2)
    assert "'mails' has no dead-letter topic" in missing.output
    topic = ["topic", "set", "mails", "max_deliveries=1", "dead_letter=dead", *place.location]
    assert CliRunner().invoke(seawall, topic).exit_code == 0
    assert place.json("dead", "mails") == []
    place.run("push", "mails", text="bad\n")
    place.run("push", "mails", text="good\n")
    place.run("work", "--until-empty", "--backoff", "0", "mails", *program)
    place.run("work", "--until-empty", "mails", *program)
    letters = place.json("dead", "mails")
    assert [(each["value"], json.loads(each["meta"])["$dead_letter_src_seq"]) for each in letters] == [("bad", 1)]
    assert place.run("dead", "mails").output.split("\t")[2] == "bad\n"
    assert place.json("dead", "mails", "--redrive", "--limit", "5") == {"queue": "mails", "moved": 1}
    assert place.json("dead", "mails") == []
    assert place.run("dead", "mails", "--redrive").output == "0 jobs moved back\n"
    assert place.json("stats", "mails")[0]["ready"] == 1


def test_a_queue_is_purged(place: Place) -> None:
    place.run("push", "mails", text="one\ntwo\n")
    place.run("claim", "mails", "--lease", "600")
    refused = place.run("purge", "mails", text="n\n", code=1)
    assert "Permanently delete 1 jobs of mails?" in refused.output
    assert place.json("purge", "mails", "--yes") == {"queue": "mails", "deleted": 1}
    assert place.run("purge", "mails", "--yes").output == "0 jobs deleted\n"
    assert place.json("stats", "mails")[0]["leased"] == 1
