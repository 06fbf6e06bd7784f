"""A node to measure: in a process of its own, on a data directory that is made for it and removed after it.

The process is a peer (`peers.py`), so it ends with its figure, whatever happens; it is killed, and nothing it served is
of any use afterwards. Clients are in this process, or wherever a figure wants them.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from seawall.bench.subjects.peers import listening_process
from seawall.client.connection.targets import parse_target
from seawall.client.remote_log import RemoteLog
from seawall.config import Config
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.fabric.naming import SHARED_MEMORY_DIRECTORY
from seawall.io.network.loops import loop_factory
from seawall.limits import MIB
from seawall.server.node import NodeSettings, start_node
from seawall.wire.format.fields import JsonValue

TOPIC: Final = "bench"
#: What a topic keeps of what it was sent; what is older is dropped all the time, as in a log that is never full.
KEPT_SIZE: Final = 256 * MIB
#: A segment ends by its bytes: the usual bound on its records ends one every megabyte of small ones.
SEGMENT_RECORDS: Final = 1_000_000


def _nothing(_log: EmbeddedLog) -> None:
    """A topic is empty at first."""


@contextmanager
def connected_log(directory: Path, **settings: JsonValue) -> Iterator[RemoteLog]:
    """A client of a fresh node with one topic of order 2, and of the given settings."""
    with (
        running_node(directory, _nothing, **settings) as address,
        RemoteLog(parse_target(f"seawall://{address}")) as log,
    ):
        yield log


@contextmanager
def running_node(
    directory: Path, fill: Callable[[EmbeddedLog], None] = _nothing, /, **settings: JsonValue
) -> Iterator[str]:
    """Where a fresh node listens that has such a topic, with what `fill` writes before it is served."""
    with node_process(directory, fill, **settings) as (address, _):
        yield address


@contextmanager
def node_process(
    directory: Path, fill: Callable[[EmbeddedLog], None] = _nothing, /, **settings: JsonValue
) -> Iterator[tuple[str, int]]:
    """The same: where it listens, and the number of its process."""
    kept: dict[str, JsonValue] = {"cap_bytes": KEPT_SIZE, "segment_max_records": SEGMENT_RECORDS}
    path = tempfile.mkdtemp(prefix="seawall-bench-", dir=directory)
    # A node that is killed leaves its fabric.
    shared = Path(SHARED_MEMORY_DIRECTORY)
    fabric = tempfile.mkdtemp(prefix="seawall-bench-", dir=shared if shared.exists() else directory)
    try:
        with open_log(path) as log:
            log.create_topic(TOPIC, order=2, **(kept | settings))
            fill(log)
        with listening_process("node", path, fabric) as found:
            yield found
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(fabric, ignore_errors=True)


def serve(data: Path, fabric: Path, tell: Callable[[str], None]) -> None:
    """Be such a node, until the process ends."""
    _, make_loop = loop_factory()
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_serve(data, fabric, tell))


async def _serve(data: Path, fabric: Path, tell: Callable[[str], None]) -> None:
    config = Config()
    config = replace(config, fabric=replace(config.fabric, directory=str(fabric)))
    node = await start_node(data, NodeSettings(port=0), config=config)
    gc.collect()
    gc.freeze()
    tell(node.address)
    raise await node.failure
