"""Every interface of a log that accepts sizes, with one small driver for each.

`LogEntry` has the methods of a log: embedded or connected, for threads or on an event loop, which it runs on a thread.
`Lwp1Entry` and `Lwp2Entry` send frames that no Seawall client would, with correct checksums. A refusal is a Seawall
error on every interface: `RefusedError` is that of a frame.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import lz4.block
import pytest

import seawall
from seawall import limits
from seawall.api.received import ReceivedBatch, ReceivedRecord
from seawall.core.transactions import StagedRange
from seawall.core.types import ClientId, ClientSeq, Seq, SessionEpoch, TimestampNs, TopicId
from seawall.errors import SeawallError
from seawall.wire.format import compression
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.batches import batch_header, block_of, encode_batch
from seawall.wire.format.codes import AckStatus, Codec, Command, Features, HelloFlags, Kind, ReadBy
from seawall.wire.format.decoder import Frame, FrameDecoder
from seawall.wire.lwp1 import requests as lwp1_requests
from seawall.wire.lwp1.replies import TopicReply, parse_topic_reply
from seawall.wire.lwp2 import keyed as lwp2_keyed
from seawall.wire.lwp2 import reading as lwp2_reading
from seawall.wire.lwp2 import session as lwp2_session
from seawall.wire.lwp2 import topics as lwp2_topics
from seawall.wire.lwp2.frames import ControlPayload, encode_control
from seawall.wire.lwp2.reading import Bounds, Fetch, iter_chunks, parse_bounds_reply, parse_data_prefix
from seawall.wire.lwp2.session import Hello, Welcome, parse_error, parse_welcome
from seawall.wire.lwp2.topics import TopicCreate, TopicFind

#: How long an answer may take before that is a failure.
PATIENCE_S = 60

FEATURES = int(Features.LZ4 | Features.ZSTD | Features.PUSH | Features.LONG_POLL | Features.IDEMPOTENCY_KEYS)


def value_of(size: int) -> bytes:
    """Text that differs by its size, and whose pieces do not look alike from 16 bytes to the next."""
    pattern = b"%016x seawall " % size
    return (pattern * (size // len(pattern) + 1))[:size]


class LoopThread:
    """An event loop on its own thread, which also answers pings between calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="size-entries")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine on the loop; raises its error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class OnLoop:
    """A log on an event loop, or an object of it, for a caller that blocks."""

    def __init__(self, runner: LoopThread, wrapped: Any) -> None:
        self._runner = runner
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._wrapped, name)

        async def finish(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        def call(*arguments: Any, **named: Any) -> Any:
            result = self._runner.run(finish(*arguments, **named))
            return OnLoop(self._runner, result) if name in ("stage", "publisher", "queue", "watch") else result

        return call if callable(method) else method


class LogEntry:
    """A log by its methods. `open_log` makes another handle, with a name or a token."""

    def __init__(self, name: str, log: Any, open_log: Callable[..., Any], *, is_remote: bool) -> None:
        self.name = name
        self.log = log
        self.open_log = open_log
        self.is_remote = is_remote

    def create(self, topic: str) -> None:
        self.log.create_topic(topic, durability="disk")

    def drop(self, topic: str) -> None:
        self.log.delete_topic(topic)

    def records(self, topic: str, from_seq: int = 1) -> list[ReceivedRecord]:
        found: list[ReceivedRecord] = []
        while items := self.log.read(topic, from_seq):
            batches = [item for item in items if isinstance(item, ReceivedBatch)]
            found += [record for batch in batches for record in batch]
            from_seq = batches[-1].next_seq
        return found

    def state(self, topic: str) -> tuple[object, ...]:
        """The state that a refusal must not change."""
        info = self.log.describe(topic)
        return info.floor, info.next_seq, info.record_count, info.byte_count, tuple(self.log.topics())

    def next_seq(self, topic: str) -> int:
        return int(self.log.describe(topic).next_seq)

    def works(self, topic: str) -> None:
        """Check that the same handle still works."""
        before = self.next_seq(topic)
        assert self.log.publish(topic, b"next").first_seq == before

    def publish_all(self, topic: str, records: Any, **options: Any) -> None:
        """Publish by a publisher, which does not wait for each record."""
        publisher = self.log.publisher(topic, **options)
        try:
            publisher.publish(records)
        finally:
            publisher.close()

    def stage(self, *batches: Any) -> list[StagedRange]:
        """Stage batches; the range of each."""
        stager = self.log.stage()
        try:
            for records in batches:
                stager.publish(records)
            found = [seq for each in stager.ranges() for seq in range(each.first_seq, each.last_seq + 1)]
        finally:
            stager.close()
        assert len(found) == len(batches), "one record a batch"
        return [StagedRange(Seq(seq), Seq(seq)) for seq in found]


@contextmanager
def threads_entry(url: str) -> Iterator[LogEntry]:
    with seawall.connect(url) as log:
        yield LogEntry("connect", log, lambda **named: seawall.connect(url, **named), is_remote=True)


@contextmanager
def loop_entry(url: str) -> Iterator[LogEntry]:
    with LoopThread() as runner:

        def open_log(**named: Any) -> OnLoop:
            return OnLoop(runner, runner.run(_opened(lambda: seawall.connect_async(url, **named))))

        log = open_log()
        yield LogEntry("connect_async", log, open_log, is_remote=True)
        log.close()


@contextmanager
def embedded_entry(path: Path) -> Iterator[LogEntry]:
    with seawall.open(path) as log:
        yield LogEntry("open", log, lambda **_: log, is_remote=False)


@contextmanager
def embedded_loop_entry(path: Path) -> Iterator[LogEntry]:
    with LoopThread() as runner:
        log = OnLoop(runner, runner.run(_opened(lambda: seawall.open_async(path))))
        yield LogEntry("open_async", log, lambda **_: log, is_remote=False)
        log.close()


async def _opened(make: Callable[[], Any]) -> Any:
    return await make().open()


# --- frames ------------------------------------------------------------------------------------------------------


class RefusedError(SeawallError):
    """A server has refused a frame: by its code, and maybe by closing the connection."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code:#04x}: {text}")
        self.code = code


class _Wire:
    """A blocking connection, made again when the server has closed it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        try:
            self.connect()
        except RefusedError:
            self.close()
            raise

    def connect(self) -> None:
        self._socket = socket.create_connection(self.address, timeout=PATIENCE_S)

    def send(self, data: bytes) -> None:
        # A server that refuses a frame by its header does not read the rest.
        with suppress(ConnectionError):
            self._socket.sendall(data)

    def receive(self, size: int) -> bytes:
        with suppress(ConnectionError):
            return self._socket.recv(size)
        return b""

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_V1_HEADER = struct.Struct("<4sBBHIQQIIII")
_V1_BATCH, _V1_LZ4, _V1_ACK, _V1_CONTROL, _V1_ERROR = 0x04, 0x05, 0x08, 0x40, 0xFF


class Lwp1Entry(_Wire):
    """Version 1, encoded by plain `struct`."""

    def _frame(self, flags: int, payload: bytes, number: int, topic_id: int) -> bytes:
        crc = zlib.crc32(struct.pack("<4sBBH", b"LANC", 1, flags, 0))
        sizes = (len(payload), zlib.crc32(payload) if payload else 0)
        return _V1_HEADER.pack(b"LANC", 1, flags, 0, crc, number, 0, 1, *sizes, topic_id) + payload

    def exchange(self, flags: int, payload: bytes, number: int, topic_id: int = 0) -> bytes:
        """Send a frame; the payload of its answer. `RefusedError` if that is an error, or the end."""
        self.send(self._frame(flags, payload, number, topic_id))
        header = self._exactly(_V1_HEADER.size)
        _, _, answer, _, _, batch_id, _, _, length, _, _ = _V1_HEADER.unpack(header)
        received = self._exactly(length)
        if answer == _V1_CONTROL and batch_id == _V1_ERROR:
            error = json.loads(received)
            raise RefusedError(error["code"], error["message"])
        return received

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.receive(size - len(found))
            if not piece:
                raise RefusedError(0, "the connection has ended")
            found += piece
        return bytes(found)

    def ask(self, command: int, payload: bytes) -> bytes:
        return self.exchange(_V1_CONTROL, payload, command)

    def create(self, name: str) -> int:
        return int(json.loads(self.ask(0x01, name.encode()))["id"])

    def ingest(self, topic_id: int, payload: bytes) -> None:
        self.exchange(_V1_BATCH, payload, 1, topic_id)

    def ingest_lz4(self, topic_id: int, plain: bytes) -> None:
        self.exchange(_V1_LZ4, lz4.block.compress(plain, store_size=False), 1, topic_id)

    def stream(self, topic_id: int, start: int, size: int) -> bytes:
        """So many bytes of a topic."""
        found = bytearray()
        while len(found) < size:
            reply = self.ask(0x10, struct.pack("<IQI", topic_id, start + len(found), 16 * limits.MIB))
            assert len(reply) > 16, "the topic ends before that"
            found += reply[16:]
        return bytes(found)

    def end(self, topic_id: int) -> int:
        following: int = struct.unpack_from("<Q", self.ask(0x10, struct.pack("<IQI", topic_id, 2**64 - 1, 1)))[0]
        return following


@contextmanager
def unbounded() -> Iterator[None]:
    """Let encoders of this process write what they would refuse; servers are other processes."""
    huge = 1 << 30
    places = (
        (compression, ("BLOCK_SIZE_MAX",)),
        (limits, ("BLOCK_SIZE_MAX", "TRANSACTION_OWNER_SIZE_MAX", "CURSOR_OWNER_SIZE_MAX", "TOPIC_NAME_SIZE_MAX")),
        (lwp1_requests, ("TOPIC_NAME_SIZE_MAX", "TOKEN_SIZE_MAX")),
        (lwp2_session, ("TOKEN_SIZE_MAX", "CLIENT_NAME_SIZE_MAX", "PAYLOAD_SIZE_MAX")),
        (lwp2_topics, ("TAG_SIZE_MAX", "TOPIC_SETTINGS_SIZE_MAX")),
        (lwp2_keyed, ("PAYLOAD_SIZE_MIN",)),
        (lwp2_reading, ("FETCH_WAIT_MS_MAX",)),
    )
    with pytest.MonkeyPatch.context() as patch:
        for module, names in places:
            for name in names:
                patch.setattr(module, name, huge)
        yield


class Lwp2Entry(_Wire):
    """Version 2, with a session."""

    client_id = 77

    def connect(self) -> None:
        super().connect()
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self._requests = 0
        self.welcome = self.hello()
        self._next_seq = int(self.welcome.next_seq)

    def hello(self, **named: Any) -> Welcome:
        hello = Hello(flags=HelloFlags.OPEN, client_id=ClientId(self.client_id), features=FEATURES, **named)
        with unbounded():
            frame = encode_control(hello, request_id=1)
        self.send(frame)
        return parse_welcome(self.frame().payload)

    def frame(self) -> Frame:
        """The next frame but keepalives; `RefusedError` if it is an error, or the end."""
        while not self._frames:
            data = self.receive(1 << 20)
            if not data:
                raise RefusedError(0, "the connection has ended")
            self._decoder.feed(data)
            self._frames += [each for each in self._decoder.frames() if each.header.kind != Kind.KEEPALIVE]
        frame = self._frames.pop(0)
        if frame.header.kind == Kind.CONTROL and frame.header.command == Command.ERROR:
            error = parse_error(frame.payload)
            raise RefusedError(error.code, error.text)
        return frame

    def frames_until(self, request_id: int) -> None:
        """Take frames up to the one that answers a request."""
        while self.frame().header.id != request_id:
            pass

    def send_request(self, payload: ControlPayload) -> int:
        """Send a request; its id."""
        self._requests += 1
        with unbounded():
            self.send(encode_control(payload, request_id=self._requests))
        return self._requests

    def ask(self, payload: ControlPayload) -> Frame:
        self.send_request(payload)
        return self.frame()

    def create(self, name: str, **settings: Any) -> TopicReply:
        return parse_topic_reply(self.ask(TopicCreate(name, {"durability": "disk"} | settings)).payload)

    def describe(self, name: str) -> TopicReply:
        return parse_topic_reply(self.ask(TopicFind(name)).payload)

    def bounds(self, topic_id: TopicId) -> tuple[int, int]:
        reply = parse_bounds_reply(self.ask(Bounds(topic_id)).payload)
        return reply.floor_seq, reply.end_seq

    def publish(
        self, topic_id: TopicId, block: bytes, record_count: int, *, codec: Codec = Codec.NONE, raw_length: int = 0
    ) -> None:
        """Send a block as a batch; `RefusedError` if its ack says so."""
        with unbounded():
            header = batch_header(
                block,
                topic_id=topic_id,
                client_id=self.welcome.client_id,
                client_seq=ClientSeq(self._next_seq),
                session_epoch=SessionEpoch(self.welcome.session_epoch),
                record_count=record_count,
                timestamp_ns=TimestampNs(0),
                codec=codec,
                raw_length=raw_length or None,
            )
            self.send(encode_batch(header, block))
        frame = self.frame()
        assert frame.header.kind == Kind.ACK, frame.header
        (row,) = ack_rows(frame.payload)
        if row["status"] == AckStatus.REJECTED:
            raise RefusedError(int(row["reason"]), "the batch was rejected")
        assert row["status"] == AckStatus.OK
        self._next_seq += 1

    def block(self, topic_id: TopicId, seq: int) -> bytes:
        """The plain block of the batch with a seq."""
        frame = self.ask(Fetch(topic_id, ReadBy.SEQ, seq, limits.FETCH_SIZE_MAX, 1))
        prefix = parse_data_prefix(frame.payload)
        assert prefix.first_seq == seq
        ((header, block),) = iter_chunks(frame.payload, frame.header.record_count)
        return bytes(block_of(header, block))


def run_pub(url: str, topic: str, content: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """`seawall pub` with its standard input."""
    command = [sys.executable, "-m", "seawall", "pub", topic, "--url", url, *arguments]
    return subprocess.run(command, input=content, capture_output=True, timeout=PATIENCE_S, check=False)
