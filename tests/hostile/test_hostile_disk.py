"""A disk that fails under a server process: it goes on read-only, says so, and ends with exit code 1.

The failure is real: the kernel refuses writes beyond the size that `RLIMIT_FSIZE` allows, which `prlimit` lowers while
the node runs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from hostile_node import PATIENCE_S, HostileNode

import seawall
from seawall.errors import OutcomeUnknownError, ReadOnlyError
from seawall.wire.format.gaps import Gap

_VALUE = b"x" * 1_000
#: The log of a node has more bytes than this after `_RECORDS`, and its standard error never has.
_FILE_SIZE = 64 * 1024
_RECORDS = 100


def _fail_writes(node: HostileNode) -> None:
    """Have every write behind the first 64 KiB of a file fail with EFBIG."""
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (_FILE_SIZE, _FILE_SIZE))


def _status(node: HostileNode, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seawall", "status", "--url", node.url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_failed_write_leaves_the_server_read_only(start_node: Callable[..., HostileNode]) -> None:
    node = start_node()
    assert _status(node).returncode == 0
    with seawall.connect(node.url) as log:
        log.create_topic("events")
        for _ in range(_RECORDS):
            log.publish("events", _VALUE)
        applier = log.subscriber("events")
        assert sum(len(item) for item in applier.poll(1)) == _RECORDS
        _fail_writes(node)
        # Nobody knows what became of the batch in flight; every later one was certainly not stored.
        with pytest.raises((OutcomeUnknownError, ReadOnlyError)):
            log.publish("events", _VALUE)
        for _ in range(3):
            with pytest.raises(ReadOnlyError, match="read-only"):
                log.publish("events", _VALUE)
        with pytest.raises(ReadOnlyError, match="read-only"):
            log.create_topic("others")
        with pytest.raises(ReadOnlyError, match="read-only"), seawall.connect(node.url) as late:
            late.publish("events", _VALUE)
        assert sum(len(item) for item in log.read("events")) == _RECORDS
        assert applier.poll(0.1) == []
        assert log.status().details["state"] == "read-only"
    assert node.is_running
    told = _status(node, "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["state"] == "read-only"
    assert "read-only" in _status(node).stdout
    assert "read-only" in node.stderr
    os.kill(node.process.pid, signal.SIGTERM)
    node.process.communicate(timeout=PATIENCE_S)
    assert node.process.returncode == 1
    node.start()
    with seawall.connect(node.url) as log:
        stored = sum(len(item) for item in log.read("events") if not isinstance(item, Gap))
        assert stored >= _RECORDS
        log.publish("events", _VALUE)
    assert node.stop() == 0
