"""Start a node to measure, in its own process and on a temporary data directory.

The process is a child (`second_process.py`, which runs `node_server.serve`): leaving the context manager kills it and
removes its files. Clients run in this process, or wherever a figure starts them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from seawall.bench.subjects.second_process import listening_process
from seawall.client.connection.targets import parse_target
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.fabric.naming import SHARED_MEMORY_DIRECTORY
from seawall.limits import MIB
from seawall.wire.format.fields import JsonValue

TOPIC: Final = "bench"
#: Cap of the topic: once reached, the topic continuously drops its oldest records, as a log in production does.
KEPT_SIZE: Final = 256 * MIB
#: High enough that segments end by their size: the default limit would end one after every megabyte of small records.
SEGMENT_RECORDS: Final = 1_000_000


def _leave_empty(_log: EmbeddedLog) -> None:
    """Leave the topic empty."""


@contextmanager
def connected_log(directory: Path, **settings: JsonValue) -> Iterator[RemoteLog]:
    """Start a new node with one topic of order 2 and the given settings; yields a client of it."""
    with (
        running_node(directory, _leave_empty, **settings) as address,
        RemoteLog(parse_target(f"seawall://{address}")) as log,
    ):
        yield log


@contextmanager
def running_node(
    directory: Path, fill: Callable[[EmbeddedLog], None] = _leave_empty, /, **settings: JsonValue
) -> Iterator[str]:
    """Start a new node with such a topic, filled by `fill`; yields its address."""
    with node_process(directory, fill, **settings) as (address, _):
        yield address


@contextmanager
def node_process(
    directory: Path, fill: Callable[[EmbeddedLog], None] = _leave_empty, /, **settings: JsonValue
) -> Iterator[tuple[str, int]]:
    """The same; yields the address and the process id."""
    defaults: dict[str, JsonValue] = {"cap_bytes": KEPT_SIZE, "segment_max_records": SEGMENT_RECORDS}
    path = tempfile.mkdtemp(prefix="seawall-bench-", dir=directory)
    # A killed node leaves its fabric behind, so give it a directory that is removed here.
    shared = Path(SHARED_MEMORY_DIRECTORY)
    fabric = tempfile.mkdtemp(prefix="seawall-bench-", dir=shared if shared.exists() else directory)
    try:
        with open_log(path) as log:
            log.create_topic(TOPIC, order=2, **(defaults | settings))
            fill(log)
        with listening_process("node", path, fabric) as address_and_pid:
            yield address_and_pid
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(fabric, ignore_errors=True)
