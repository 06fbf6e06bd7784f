"""Connections that arrive during a drain: each is accepted and closed, or never accepted; none delays the drain."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from seawall.io.network.sockets import parse_address
from seawall.server.node import NodeSettings, start_node
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.session import Hello

HELLO = encode_control(Hello(), request_id=1)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("said", [b"", HELLO], ids=["silent", "greeting"])
@pytest.mark.parametrize("iterations", [0, 1, 2, 4])
def test_a_drain_right_after_new_connections_completes(
    tmp_path: Path, make_loop: Callable[[], asyncio.AbstractEventLoop], said: bytes, iterations: int
) -> None:
    async def work() -> None:
        node = await start_node(tmp_path / "data", NodeSettings(port=0))
        with ExitStack() as stack:
            for _ in range(8):
                # The system accepts it before the server does.
                peer = stack.enter_context(socket.create_connection(parse_address(node.address)))
                peer.sendall(said)
            for _ in range(iterations):
                await asyncio.sleep(0)
            assert await node.drain(10), "the drain waited for a closed connection"

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(work())
