"""Processes that fork while they use a client: nothing is lost or stored twice; parent and child stay independent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from forking_clients import RECORDS, ROUNDS, WORKERS
from real_server import ServerProcess

import seawall
from seawall.api.received import ReceivedBatch

PROGRAMS = Path(__file__).with_name("forking_clients.py")


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


def run(name: str, server: ServerProcess) -> Any:
    command = [sys.executable, str(PROGRAMS), name, server.url]
    # Its own process group, so that children that hang are killed with it.
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = program.communicate(timeout=90)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert program.returncode == 0, errors
    assert "Traceback" not in errors, errors
    return json.loads(output)


def stored(server: ServerProcess) -> Counter[str]:
    with seawall.connect(server.url) as log:
        batches = (item for item in log.follow("events") if isinstance(item, ReceivedBatch))
        return Counter(record.value.decode() for batch in batches for record in batch)


def test_workers_publish_over_the_log_that_their_parent_opened(server: ServerProcess) -> None:
    assert run("preload", server) == [0] * WORKERS
    wanted = Counter(f"{name}-{number}" for name in [*range(WORKERS), "parent"] for number in range(RECORDS))
    assert stored(server) == wanted + Counter(["parent-0"])


def test_children_of_a_parent_whose_threads_are_busy(server: ServerProcess) -> None:
    result = run("busy", server)
    assert result["codes"] == [0] * ROUNDS * WORKERS
    workers = [f"{round_number}-{worker}" for round_number in range(ROUNDS) for worker in range(WORKERS)]
    wanted = Counter(f"{worker}-{number}" for worker in workers for number in range(RECORDS))
    wanted += Counter(f"{kind}-{number}" for kind in ("stream", "wait") for number in range(result[kind]))
    assert stored(server) == wanted


def test_objects_from_before_a_fork_refuse_calls_in_the_child(server: ServerProcess) -> None:
    """INV-FORK-PARENT."""
    assert run("inherited", server) == {"codes": [0, 0], "items": 7, "followed": True}
    once = ["in-a-transaction", "in-flight", "parent"]
    assert stored(server) == Counter([*once, *["child", "child in a transaction"] * 2])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_fork_beside_an_event_loop(server: ServerProcess, loop: str) -> None:
    assert run(loop, server) == {"codes": [0, 0], "items": True}
    assert stored(server) == Counter(["parent-0", "in-flight", "parent", "child", "child"])
