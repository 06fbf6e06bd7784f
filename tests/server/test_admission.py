"""Required tokens: a peer that shows none in time is disconnected, whatever it sends meanwhile."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import pytest

from seawall.limits import UNADMITTED_PAYLOAD_SIZE_MAX
from seawall.server.connection.access import Access, Right
from seawall.server.connection.session import ConnectionLimits
from seawall.server.node import NodeSettings, start_node
from seawall.wire.format.codes import V1Command, V1Flags
from seawall.wire.format.frames import encode_header_v1
from seawall.wire.lwp1.frames import encode_request
from seawall.wire.lwp1.requests import Authenticate, ListTopics
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.session import Hello

SENT = {
    "nothing": b"",
    "a byte": b"L",
    "half a header": encode_ping(1)[:20],
    "a request of version 1": encode_request(ListTopics()),
    "a wrong token": encode_request(Authenticate("guess")),
    "HELLO without a token": encode_control(Hello(), request_id=1),
}


@pytest.mark.parametrize("sent", SENT)
def test_a_peer_that_shows_no_token_in_time_is_disconnected(tmp_path: Path, sent: str) -> None:
    async def work() -> None:
        settings = NodeSettings(port=0, bounds=ConnectionLimits(admission_s=0.3))
        node = await start_node(tmp_path / "data", settings, access=Access({"secret": Right.ALL}))
        host, _, port = node.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        known_reader, known = await asyncio.open_connection(host, int(port))
        known.write(encode_request(Authenticate("secret")))
        await known_reader.readexactly(44)
        writer.write(SENT[sent])
        async with asyncio.timeout(60):
            await reader.read()
        assert node.counts["authentication_required"] >= 1
        # A peer that has shown its token stays connected.
        known.write(encode_request(ListTopics()))
        async with asyncio.timeout(60):
            assert await known_reader.readuntil(b"topics")
        writer.close()
        known.close()
        assert await node.drain(25)

    asyncio.run(work())


@pytest.mark.parametrize(("size", "code"), [(-1, 0x04), (0, 0x04), (1, 0x03)])
def test_a_frame_before_the_token_has_a_smaller_size_limit(tmp_path: Path, size: int, code: int) -> None:
    """At the bound it is refused for its content, above it for its size."""

    async def work() -> None:
        node = await start_node(tmp_path / "data", NodeSettings(port=0), access=Access({"secret": Right.ALL}))
        host, _, port = node.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        payload = b"x" * (UNADMITTED_PAYLOAD_SIZE_MAX + size)
        about = {"payload_length": len(payload), "payload_crc": zlib.crc32(payload)}
        writer.write(encode_header_v1(V1Flags.CONTROL, batch_id=V1Command.AUTHENTICATE, **about) + payload)
        async with asyncio.timeout(60):
            header = await reader.readexactly(44)
            reply = await reader.readexactly(int.from_bytes(header[32:36], "little"))
        assert json.loads(reply)["code"] == code
        writer.close()
        assert await node.drain(25)

    asyncio.run(work())
