"""A TCP proxy that injects faults: it splits, delays and stalls bytes, resets connections in the middle of a frame, and
duplicates or swaps batches.

It knows only where frames end (the length in the header), which of them are version 2 batches, and that a batch may
have a trailing checksum, which stays with its batch.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

HEADER = 44
#: The maximal number of small pieces; the rest is sent at once.
_PIECES = 20
_LENGTH = struct.Struct("<I")
_FLAGS_AT, _TRAILING_SUM, _SUM_SIZE = 95, 0x08, 48
_LINGER_NONE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Faults:
    """The faults, each with its probability."""

    #: Average number of bytes until a connection is reset; 0 means never.
    life_bytes: int = 0
    #: Of a piece of bytes: it is split, delayed, or its connection stalls.
    split: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.02
    stall: float = 0.0
    stall_s: float = 0.5
    #: Of a batch: it is sent twice, or after the next one.
    duplicate: float = 0.0
    swap: float = 0.0


CALM = Faults()


@dataclass
class Frames:
    """Splits a byte stream into frames and applies faults to batches."""

    random: random.Random
    rest: bytes = b""
    is_raw: bool = False
    held: list[bytes] = field(default_factory=list)

    def feed(self, data: bytes, faults: Faults) -> bytes:
        """The bytes to forward."""
        if self.is_raw:
            return data
        buffer = self.rest + data
        out: list[bytes] = []
        while len(buffer) >= HEADER:
            if buffer[:4] != b"LANC":
                self.is_raw = True
                self.rest = b""
                return b"".join([*out, *self.flush(), buffer])
            size = HEADER + _LENGTH.unpack_from(buffer, 32)[0]
            if _is_batch(buffer) and len(buffer) > _FLAGS_AT and buffer[_FLAGS_AT] & _TRAILING_SUM:
                size += _SUM_SIZE
            if len(buffer) < size:
                break
            self._take(buffer[:size], faults, out)
            buffer = buffer[size:]
        self.rest = buffer
        # There may be no next frame: forward the held one now.
        return b"".join([*out, *self.flush()])

    def flush(self) -> list[bytes]:
        held, self.held = self.held, []
        return held

    def _take(self, frame: bytes, faults: Faults, out: list[bytes]) -> None:
        if not _is_batch(frame):
            out += [*self.flush(), frame]
            return
        if not self.held and self.random.random() < faults.swap:
            self.held = [frame]
            return
        out += [frame, *self.flush()]
        if self.random.random() < faults.duplicate:
            out.append(frame)


def _is_batch(frame: bytes) -> bool:
    return frame[4] == 2 and bool(frame[5] & 0x04)


class Proxy:
    """Listens on its own port and forwards to another, on a thread with an event loop."""

    def __init__(self, target: Callable[[], int], seed: object) -> None:
        self._target = target
        self._seed = seed
        self._made = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listening = threading.Event()
        #: May be changed at any time.
        self.faults = CALM
        self.port = 0
        self.resets = 0

    @property
    def url(self) -> str:
        return f"seawall://127.0.0.1:{self.port}"

    def cut_all(self) -> None:
        """Reset every connection."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cut)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy")
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._end.wait()
        server.close()
        while self._writers:
            self._cut()
            await asyncio.sleep(0.01)

    def _cut(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._made += 1
        chance = random.Random(f"{self._seed} {self._made}")
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            _reset(writer)
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        life = int(chance.expovariate(1 / self.faults.life_bytes)) if self.faults.life_bytes else 0
        frames = Frames(chance)
        up = asyncio.ensure_future(self._pass_on(reader, far_writer, chance, frames, life))
        down = asyncio.ensure_future(self._pass_on(far_reader, writer, chance, None, life))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            # One side has closed; the other may still send an answer.
            await asyncio.wait((up, down), timeout=1)
        finally:
            for task in (up, down):
                task.cancel()
            for each in (writer, far_writer):
                _reset(each)
                self._writers.discard(each)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        chance: random.Random,
        frames: Frames | None,
        life: int,
    ) -> None:
        passed = 0
        try:
            while data := await reader.read(65_536):
                faults = self.faults
                data = frames.feed(data, faults) if frames is not None else data
                if life and passed + len(data) >= life and faults.life_bytes:
                    writer.write(data[: life - passed])
                    await writer.drain()
                    self.resets += 1
                    break
                passed += len(data)
                await self._send(writer, data, faults, chance)
            else:
                if frames is not None and frames.rest:
                    writer.write(frames.rest)
                writer.write_eof()
                return
        except OSError:
            pass
        _reset(writer)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, faults: Faults, chance: random.Random) -> None:
        if chance.random() < faults.stall:
            await asyncio.sleep(faults.stall_s)
        if chance.random() < faults.split:
            for _ in range(_PIECES):
                size = chance.choice((1, 7, 43, 44, 45, 96, 1_000, 9_000))
                writer.write(data[:size])
                data = data[size:]
                await asyncio.sleep(0)
                if not data or writer.transport.is_closing():
                    return
        writer.write(data)
        if chance.random() < faults.delay:
            await asyncio.sleep(chance.random() * faults.delay_s)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by a reset: the other side loses what it has not read."""
    sock = writer.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return  # it has ended by itself
    if not writer.transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    writer.transport.abort()
