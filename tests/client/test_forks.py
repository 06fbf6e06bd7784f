"""A process that forks while it uses a client: nothing is lost or stored twice, and no side disturbs the other."""

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
from forking_clients import RECORDS, WORKERS
from real_server import ServerProcess

import seawall
from seawall.api.received import ReceivedBatch

PROGRAMS = Path(__file__).with_name("forking_clients.py")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data")
    with seawall.connect(process.url) as log:
        log.create_topic("events")
    yield process
    process.stop()


def run(name: str, server: ServerProcess) -> Any:
    command = [sys.executable, str(PROGRAMS), name, server.url]
    # A group of its own: children that hang end with it.
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
    told = run("busy", server)
    assert told["codes"] == [0] * 4 * WORKERS
    wanted = Counter(f"{turn}-{worker}-{n}" for turn in range(4) for worker in range(WORKERS) for n in range(RECORDS))
    wanted += Counter(f"{kind}-{number}" for kind in ("stream", "wait") for number in range(told[kind]))
    assert stored(server) == wanted


def test_what_existed_before_a_fork_refuses_in_the_child(server: ServerProcess) -> None:
    """INV-FORK-PARENT."""
    assert run("inherited", server) == {"codes": [0, 0], "items": 7, "followed": True}
    once = ["in-a-transaction", "under-way", "parent"]
    assert stored(server) == Counter([*once, *["child", "child in a transaction"] * 2])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_fork_beside_an_event_loop(server: ServerProcess, loop: str) -> None:
    assert run(loop, server) == {"codes": [0, 0], "items": True}
    assert stored(server) == Counter(["parent-0", "under-way", "parent", "child", "child"])
