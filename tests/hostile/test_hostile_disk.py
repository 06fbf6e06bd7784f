"""A disk that fails under a server process: it becomes read-only, reports it, and exits with code 1.

The failure is real: the kernel refuses writes beyond the size that `RLIMIT_FSIZE` allows, which `prlimit` lowers while
the node runs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from hostile_node import PATIENCE_S, HostileNode

import seawall
from seawall.cli.main import seawall as command
from seawall.errors import OutcomeUnknownError, ReadOnlyError
from seawall.wire.format.gaps import Gap

_VALUE = b"x" * 1_000
#: The log file of a node is larger than this after `_RECORDS`; the file of its standard error is smaller.
_FILE_SIZE = 64 * 1024
_RECORDS = 100


def _fail_writes(node: HostileNode) -> None:
    """Make every write after the first 64 KiB of a file fail with EFBIG."""
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (_FILE_SIZE, _FILE_SIZE))


def _status(node: HostileNode, *options: str) -> Result:
    return CliRunner().invoke(command, ["status", "--url", node.url, *options])


def test_a_failed_write_leaves_the_server_read_only(start_node: Callable[..., HostileNode]) -> None:
    node = start_node()
    assert _status(node).exit_code == 0
    with seawall.connect(node.url) as log:
        log.create_topic("events")
        for _ in range(_RECORDS):
            log.publish("events", _VALUE)
        subscriber = log.subscriber("events")
        assert sum(len(item) for item in subscriber.poll(1)) == _RECORDS
        _fail_writes(node)
        # The outcome of the batch in flight is unknown; every later one was certainly not stored.
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
        assert subscriber.poll(0.1) == []
        assert log.status().details["state"] == "read-only"
    assert node.is_running
    status = _status(node, "--json")
    assert status.exit_code == 1
    assert json.loads(status.stdout)["state"] == "read-only"
    assert "read-only" in _status(node).stdout
    assert "read-only" in node.stderr
    os.kill(node.process.pid, signal.SIGTERM)
    node.process.communicate(timeout=PATIENCE_S)
    assert node.process.returncode == 1
    with seawall.open(node.data) as log:
        stored = sum(len(item) for item in log.read("events") if not isinstance(item, Gap))
        assert stored >= _RECORDS
        log.publish("events", _VALUE)
