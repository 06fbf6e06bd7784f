"""Serve a node inside a child process until the process ends (role `node` of `second_process.py`)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from seawall.config import Config
from seawall.io.network.loops import loop_factory
from seawall.server.node import NodeSettings, start_node


def serve(data: Path, fabric: Path, on_listening: Callable[[str], None]) -> None:
    """Serve a data directory; calls `on_listening` with the address of the node."""
    _, make_loop = loop_factory()
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_serve(data, fabric, on_listening))


async def _serve(data: Path, fabric: Path, on_listening: Callable[[str], None]) -> None:
    config = Config()
    config = replace(config, fabric=replace(config.fabric, directory=str(fabric)))
    node = await start_node(data, NodeSettings(port=0), config=config)
    gc.collect()
    gc.freeze()
    on_listening(node.address)
    raise await node.failure
