"""Two clients that behave as the published ones of version 1, encoded by plain `struct` without Seawall's codec.

`PythonClient` sends records, many frames before it reads an ack, skips the checksum of a payload where the field is 0,
and answers every keepalive. `RustClient` sends bytes as they are, by default to topic 0, checks both checksums of every
frame, and takes the next frame for the answer to its last request.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Self

HEADER = struct.Struct("<4sBBHIQQIIII")
BATCH, ACK, BACKPRESSURE, KEEPALIVE, CONTROL = 0x04, 0x08, 0x10, 0x20, 0x40
END_OF_PYTHON = 0x7FFF_FFFF_FFFF_FFFF
END_OF_RUST = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class Received:
    """One frame of the server."""

    flags: int
    batch_id: int
    payload: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.payload)

    @property
    def error(self) -> int | None:
        return self.document["code"] if self.flags == CONTROL and self.batch_id == 0xFF else None


def frame(flags: int, payload: bytes = b"", *, batch_id: int = 0, topic: int = 0, count: int = 0) -> bytes:
    crc = zlib.crc32(struct.pack("<4sBBH", b"LANC", 1, flags, 0))
    checksum = zlib.crc32(payload) if payload else 0
    return HEADER.pack(b"LANC", 1, flags, 0, crc, batch_id, 7, count, len(payload), checksum, topic) + payload


def record(value: bytes, record_type: int = 1) -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


class Client:
    """What both have in common."""

    checks_every_payload = True

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.batch_id = 0

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> Self:
        return cls(*await asyncio.open_connection(*address))

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def receive(self) -> Received:
        header = await asyncio.wait_for(self.reader.readexactly(44), 20)
        magic, version, flags, reserved, crc, batch_id, when, count, length, checksum, topic = HEADER.unpack(header)
        assert (magic, version, reserved, when, count, topic) == (b"LANC", 1, 0, 0, 0, 0)
        assert crc == zlib.crc32(header[:8])
        assert flags in (ACK, BACKPRESSURE, KEEPALIVE, CONTROL)
        payload = await asyncio.wait_for(self.reader.readexactly(length), 20)
        if checksum or self.checks_every_payload:
            assert checksum == zlib.crc32(payload)
        assert len(header) + len(payload) <= 16 * 1024 * 1024
        return Received(flags, batch_id, payload)

    async def ask(self, command: int, payload: bytes = b"") -> Received:
        self.send(frame(CONTROL, payload, batch_id=command))
        return await self.receive()

    async def at_end(self) -> bool:
        """Whether the server closes without another frame."""
        return await asyncio.wait_for(self.reader.read(1), 20) == b""

    async def create(self, name: str) -> int:
        return int((await self.ask(0x01, name.encode())).document["id"])

    def ingest(self, payload: bytes, topic: int, *, flags: int = BATCH) -> bytes:
        self.batch_id += 1
        return frame(flags, payload, batch_id=self.batch_id, topic=topic, count=self.batch_id * 77)

    async def acks(self, count: int) -> list[int]:
        found = [await self.receive() for _ in range(count)]
        assert {(each.flags, each.payload) for each in found} <= {(ACK, b"")}
        return [each.batch_id for each in found]

    async def fetch(self, topic: int, start: int, size: int = 65_536) -> tuple[int, int, bytes]:
        reply = await self.ask(0x10, struct.pack("<IQI", topic, start, size))
        assert reply.batch_id == 0x11, reply.payload
        following, length, count = struct.unpack_from("<QII", reply.payload)
        assert len(reply.payload) == 16 + length
        return following, count, reply.payload[16:]


class PythonClient(Client):
    """Records, pipelined."""

    checks_every_payload = False

    async def publish(self, topic: int, *payloads: bytes) -> None:
        """Send all frames, then read all acks."""
        first = self.batch_id + 1
        self.send(*(self.ingest(payload, topic) for payload in payloads))
        assert await self.acks(len(payloads)) == list(range(first, first + len(payloads)))

    async def poll(self, topic: int, offset: int) -> tuple[int, list[bytes]]:
        """Records from an offset on; it stays where it was if there are none."""
        following, _, data = await self.fetch(topic, offset)
        found = []
        while data:
            _, length = struct.unpack_from("<BI", data)
            found.append(data[5 : 5 + length])
            data = data[5 + length :]
        return (following if found else offset), found


class RustClient(Client):
    """Bytes as they are."""

    async def write(self, payload: bytes, topic: int = 0) -> Received:
        self.send(self.ingest(payload, topic))
        return await self.receive()

    async def create_or_find(self, name: str) -> int:
        reply = await self.ask(0x01, name.encode())
        if reply.error is None:
            return int(reply.document["id"])
        assert reply.error == 0x11
        topics = (await self.ask(0x03)).document["topics"]
        return next(int(topic["id"]) for topic in topics if topic["name"] == name)

    async def end_of(self, topic: int) -> int:
        following, count, data = await self.fetch(topic, END_OF_RUST, 1)
        assert (count, data) == (0, b"")
        return following
