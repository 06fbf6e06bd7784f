"""Invalid bytes to a served node over real sockets, while other clients publish, read and check every answer.

A run sends a number of bytes in one protocol version, over several connections at a time. The seed and the number of a
connection determine its bytes: noise, or valid frames of every kind, some of them mutated: bits flipped, cut, repeated,
two spliced together, lengths changed; most of them with correct checksums, so that they pass the first checks.

Meanwhile two witnesses publish and read, one in each version, on topics that no mutated frame may name: such frames are
skipped, because a valid command may delete any topic.

At the end the witnesses have read exactly what they wrote, the node answers and shuts down in order, its standard error
has no traceback, its memory has grown by less than `MEMORY_GROWTH_KIB_MAX`, and its log verifies.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos_node import ChaosNode
from fuzz_mutation import mutate
from lwp2_peer import Data, Peer
from v1_clients import BATCH, CONTROL, PythonClient, frame, record
from wire_damage import HEADER_SIZE, healed_1, healed_2

from seawall.api.publishable import Message, encode
from seawall.core.routers import RouterSettings
from seawall.core.types import ClientId, Seq, TopicEpoch, TopicId
from seawall.core.watches import TopicPatterns, WatchPosition, WatchSpec
from seawall.engine.api.open_log import open_log
from seawall.wire.format.codes import ALL_TOPICS, ClaimFlags, Codec, Features, HelloFlags, ReadBy, ReadFlags
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.lwp1.requests import CreateTopicWithRetention, DeleteTopic, GetTopic, ListTopics, SetRetention
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.jobs import (
    JobAck,
    JobClaim,
    JobExtend,
    JobNack,
    JobPeek,
    JobPushUnique,
    JobRequest,
    QueueCountsRequest,
    QueuePurge,
    QueueRedrive,
)
from seawall.wire.lwp2.keyed import PublishKeyed
from seawall.wire.lwp2.reading import Bounds, Commit, Fetch
from seawall.wire.lwp2.routers import RouterDelete, RouterDescribe, RouterList, RouterPut
from seawall.wire.lwp2.session import Goodbye, Hello
from seawall.wire.lwp2.sessions import SessionList, SessionRetire
from seawall.wire.lwp2.subscriptions import Credit, Subscribe, Unsubscribe
from seawall.wire.lwp2.topics import RecordsDelete, TopicConfigure, TopicCreate, TopicDescribe, TopicFind
from seawall.wire.lwp2.watches import Watch

#: Allowed growth of a node after the warm-up: the ring, thousands of sessions, hundreds of topics, valid records, and
#: the allocator's reserve. `_warm_up` loads the libraries that a command needs.
MEMORY_GROWTH_KIB_MAX = 64 * 1024

CONNECTIONS = 4
TOPICS = (
    "plain",
    "ordered",
    "tagged",
    "small",
    "jobs",
    *(f"filler{number}" for number in range(5)),
    "witness2",
    "witness1",
)
WITNESS_2, WITNESS_1 = len(TOPICS) - 1, len(TOPICS)
_WITNESSES = (WITNESS_1.to_bytes(4, "little"), WITNESS_2.to_bytes(4, "little"))
_SETTINGS: dict[str, dict[str, object]] = {
    "ordered": {"order": 5},
    "small": {"cap_records": 50, "discard": "reject"},
    "jobs": {"type": "queue", "cap_records": 500},
}
_PATIENCE_S = 60


@dataclass
class Outcome:
    """The counts of a run."""

    sent: int = 0
    connections: int = 0
    rounds: int = 0
    grown_kib: int = 0


# --- frames ----------------------------------------------------------------------------------------------------------


def frames_of_1(chance: random.Random) -> list[bytes]:
    """Valid frames of version 1, of every kind."""
    topic = chance.choice([0, 1, 1, 2, 3, 4, 99])
    value = chance.randbytes(chance.randrange(300))
    request = struct.pack("<IQI", topic, chance.choice([0, 0, 7, 1 << 62, (1 << 64) - 1]), chance.randrange(70_000))
    made = [
        frame(BATCH, record(value), batch_id=1, topic=topic),
        frame(BATCH, record(value) * 3, batch_id=2, topic=topic),
        frame(BATCH, value or b"x", batch_id=3, topic=topic),
        frame(BATCH | 1, bytes.fromhex("1f01000100ffffff50") + bytes(5), batch_id=4, topic=topic),
        frame(0x20),
        frame(CONTROL, request, batch_id=0x10),
        frame(CONTROL, request + bytes(8), batch_id=0x20),
        frame(CONTROL, request[:4] + bytes(8), batch_id=0x21),
        frame(CONTROL, request + bytes(4), batch_id=0x22),
        frame(CONTROL, batch_id=0x03),
        frame(CONTROL, batch_id=0x07),
        frame(CONTROL, struct.pack("<I", topic), batch_id=0x04),
        frame(CONTROL, struct.pack("<IQQ", 4, 1 << 40, 1 << 40), batch_id=0x05),
        frame(CONTROL, b"token", batch_id=0x08),
    ]
    if chance.random() < 0.05:
        made += [frame(CONTROL, b"plain", batch_id=0x01), frame(CONTROL, struct.pack("<I", 99), batch_id=0x02)]
    return made


def frames_of_2(chance: random.Random, peer: Peer) -> list[bytes]:
    """Valid frames of version 2, of every kind."""
    topic = TopicId(chance.choice([1, 1, 2, 3, 4, 99, ALL_TOPICS]))
    by = chance.choice([ReadBy.POSITION, ReadBy.EARLIEST, ReadBy.LATEST, ReadBy.TIME])
    start, flags = chance.choice([0, 3, 1 << 50]), ReadFlags(chance.choice([0, 2, 4, 6]))
    value = chance.randbytes(chance.randrange(300))
    codec = chance.choice([Codec.LZ4, Codec.ZSTD])
    payloads = [
        Fetch(topic, by, start, chance.randrange(1, 90_000), chance.randrange(99), wait_ms=5, flags=flags),
        Subscribe(topic, by, start, 90_000, 900, chance.randrange(9_000), linger_us=chance.choice([0, 9]), flags=flags),
        Credit(90_000, 900),
        Unsubscribe(),
        Watch(
            WatchSpec(
                TopicPatterns(["plain", "*"]), chance.random() < 0.5, {"plain": WatchPosition(TopicEpoch(1), Seq(2))}
            ),
            *(90_000, 900, chance.randrange(9_000)),
        ),
        Bounds(TopicId(1)),
        Commit(TopicId(1), 4, TopicEpoch(1), Seq(3)),
        ListTopics(),
        GetTopic(TopicId(2)),
        SetRetention(TopicId(4), 1 << 40, 1 << 40),
        TopicFind("plain"),
        TopicDescribe(TopicId(3)),
        TopicConfigure(TopicId(4), {"cap_records": 60, "ttl_ms": 1 << 40}),
        RecordsDelete(TopicId(3), Seq(4), "tag"),
        RecordsDelete(TopicId(1), Seq(chance.randrange(1, 9))),
        PublishKeyed(TopicId(chance.choice([1, 2, 4, 99])), 1, chance.randbytes(chance.randrange(9)), record(value)),
        PublishKeyed(TopicId(1), 2, b"key", record(value) * 2),
        SessionList(chance.randrange(1 << 20), chance.randrange(1, 9)),
        RouterPut("a->b", "plain", "copies", RouterSettings(tag_prefix="t", allow_cycle=chance.random() < 0.5)),
        RouterDescribe("a->b"),
        RouterList("a", chance.randrange(1, 9)),
        RouterDelete("a->b"),
        SessionRetire(ClientId(chance.choice([1 << 20, 1 << 40, (1 << 63) - 1]))),
    ]
    payloads += queue_requests(chance, value)
    if chance.random() < 0.05:
        payloads += [
            TopicCreate("plain", {"order": 5}),
            CreateTopicWithRetention("plain", 1, 1),
            DeleteTopic(TopicId(99)),
            Goodbye(0, 0),
        ]
    return [
        *(peer.batch(chance.choice([1, 1, 2, 4, 99]), value, b"more") for _ in range(6)),
        peer.batch(1, bytes(999), codec=codec),
        peer.batch(2, value, seq=peer.seq + chance.randrange(3)),
        encode_ping(1),
        *(encode_control(payload, request_id=chance.randrange(4)) for payload in payloads),
    ]


def queue_requests(chance: random.Random, value: bytes) -> list[JobRequest]:
    """Every request of queues: to a queue, and sometimes to another topic or to none."""
    topic = TopicId(chance.choice([5, 5, 5, 5, 1, 99]))
    jobs = tuple(sorted(chance.sample(range(1, 900), 3))), (1, 2, chance.randrange(1 << 63))
    headers = [("seawall-unique", chance.choice(["a", "b"])), ("seawall-not-before", "5"), ("seawall-priority", "7")]
    (block,) = encode(Message(value, headers=headers[: chance.randrange(4)]))
    count = chance.randrange(1, 2_000)
    return [
        JobClaim(topic, "fuzz", count, chance.randrange(900), 5, ClaimFlags(chance.randrange(2))),
        JobAck(topic, "fuzz", *jobs),
        JobNack(topic, "fuzz", *jobs, chance.randrange(900)),
        JobExtend(topic, "fuzz", *jobs, chance.randrange(900)),
        JobPeek(topic, count),
        QueueCountsRequest(topic),
        QueuePurge(topic),
        QueueRedrive(topic, count),
        JobPushUnique(topic, block.block),
    ]


def damaged(chance: random.Random, frames: list[bytes], heal: Callable[..., bytes]) -> bytes:
    """One mutated frame."""
    data = chance.choice(frames)
    kind = chance.randrange(40)
    if kind == 0:
        other = chance.choice(frames)
        data = data[: chance.randrange(len(data))] + other[chance.randrange(len(other)) :]
    elif kind == 1 and len(data) >= HEADER_SIZE:
        length = chance.choice([0, 1, 51, 52, len(data), 1 << 16, (1 << 24) + 1, (1 << 32) - 1, chance.randrange(300)])
        data = data[:32] + struct.pack("<I", length) + data[36:]
    elif kind == 2:
        data = data[: chance.randrange(len(data))]
    elif kind < 20 and len(data) > HEADER_SIZE:
        # The header stays valid, so that the command is executed.
        at = chance.randrange(HEADER_SIZE, len(data))
        data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    elif kind < 30:
        at = chance.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
    else:
        data = mutate(chance, data)
    # A wrong checksum ends the connection, and later frames are not read: so that is rare.
    if chance.random() < 0.97:
        data = heal(data, lengths=kind != 1)
    return data


def stream_of(chance: random.Random, frames: list[bytes], heal: Callable[..., bytes]) -> bytes:
    """The bytes that a connection sends after its greeting."""
    if chance.random() < 0.05:
        noise = chance.randbytes(chance.randrange(1, 9_000))
        return b"" if _aims(noise) else noise
    share = chance.choice([0.1, 0.3, 0.9])
    chosen = [
        damaged(chance, frames, heal) if chance.random() < share else chance.choice(frames)
        for _ in range(chance.randrange(1, 120))
    ]
    return b"".join(data for data in chosen if not _aims(data))


def _aims(data: bytes) -> bool:
    return any(witness in data for witness in _WITNESSES)


# --- attackers -------------------------------------------------------------------------------------------------------


async def send_one(port: int, version: int, seed: str, number: int) -> int:
    """One attacking connection; returns the number of bytes sent."""
    chance = random.Random(f"{seed} {version} {number}")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0
    try:
        if version == 1:
            data = stream_of(chance, frames_of_1(chance), healed_1)
        else:
            # Each is a new client, so that its bytes do not depend on earlier connections.
            peer = Peer(reader, writer)
            peer.welcome = type("Welcome", (), {"client_id": chance.getrandbits(62) | 1, "session_epoch": 1})
            features = int(Features.LZ4 | Features.ZSTD)
            # A short gap timeout: there are many holes, and they are not under test.
            who = ClientId(peer.welcome.client_id)
            hello = Hello(flags=HelloFlags.OPEN, client_id=who, features=features, gap_timeout_ms=100)
            greeting, patience_s = encode_control(hello, request_id=1), float(_PATIENCE_S)
            if chance.random() < 0.1:
                greeting, patience_s = damaged(chance, [greeting], healed_2), 0.2
            if not _aims(greeting):
                writer.write(greeting)
                sent += len(greeting)
                await _welcomed(reader, patience_s)
            data = stream_of(chance, frames_of_2(chance, peer), healed_2)
        writer.write(data)
        sent += len(data)
        if chance.random() < 0.7:
            writer.write_eof()
            async with asyncio.timeout(_PATIENCE_S):
                while await reader.read(1 << 16):
                    continue
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return sent


async def _welcomed(reader: asyncio.StreamReader, patience_s: float) -> None:
    """Wait for any answer or a timeout: an incomplete greeting is not answered."""
    decoder = FrameDecoder()
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while data := await reader.read(1 << 16):
                decoder.feed(data)
                if decoder.frames():
                    return


async def send_all(
    port: int, version: int, seed: str, size: int, outcome: Outcome, told: Callable[[int], None]
) -> None:
    """Open connections, several at a time, until `size` bytes are sent."""

    async def send_some() -> None:
        while outcome.sent < size:
            outcome.connections += 1
            sent = await send_one(port, version, seed, outcome.connections)
            outcome.sent += sent
            told(sent)

    await asyncio.gather(*(send_some() for _ in range(CONNECTIONS)))


# --- witnesses -------------------------------------------------------------------------------------------------------


async def witness_2(port: int, done: asyncio.Event) -> int:
    """Publish and read in version 2; returns the number of rounds."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
    await peer.hello(1_234_567)
    rounds = 0
    while not done.is_set():
        rounds += 1
        row = await asyncio.wait_for(peer.publish(WITNESS_2, b"round %d" % rounds), _PATIENCE_S)
        assert (row["status"], row["base_seq"]) == (0, rounds), row
        peer.ask(Fetch(TopicId(WITNESS_2), ReadBy.SEQ, max(1, rounds - 3), 1 << 16, 0), request_id=9)
        answer = await asyncio.wait_for(peer.answer(Data), _PATIENCE_S)
        found = [bytes(block[5:]) for _, block in answer.batches]
        assert found == [b"round %d" % number for number in range(max(1, rounds - 3), rounds + 1)], found
        await asyncio.sleep(0.01)
    peer.close()
    return rounds


async def witness_1(port: int, done: asyncio.Event) -> int:
    """Publish and read in version 1; returns the number of rounds."""
    client = await PythonClient.connect(("127.0.0.1", port))
    rounds = offset = 0
    while not done.is_set():
        rounds += 1
        client.send(client.ingest(record(b"round %d" % rounds), WITNESS_1))
        assert await client.acks(1) == [rounds]
        following, _, data = await client.fetch(WITNESS_1, offset)
        assert data == record(b"round %d" % rounds), data
        offset = following
        await asyncio.sleep(0.01)
    await client.close()
    return rounds


async def _warm_up(port: int) -> None:
    """Make the node load its lazy libraries: the first delete by tag loads tens of MiB."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
    await peer.hello(7_654_321)
    await peer.publish(3, b"to be deleted")
    peer.ask(RecordsDelete(TopicId(3), None, "tag"))
    await peer.answer()
    peer.close()


async def _fuzz(node: ChaosNode, version: int, seed: str, size: int, told: Callable[[int], None]) -> Outcome:
    done = asyncio.Event()
    witnesses = asyncio.gather(witness_1(node.port, done), witness_2(node.port, done))
    await _warm_up(node.port)
    warm, outcome = Outcome(), Outcome()
    sending = asyncio.ensure_future(send_all(node.port, version, f"{seed} warm", size // 10, warm, lambda _: None))
    await asyncio.wait((sending, witnesses), return_when=asyncio.FIRST_COMPLETED)
    before = node.resident_kib
    sending = asyncio.ensure_future(send_all(node.port, version, seed, size, outcome, told))
    await asyncio.wait((sending, witnesses), return_when=asyncio.FIRST_COMPLETED)
    done.set()
    outcome.rounds = min(await witnesses)
    await sending
    outcome.grown_kib = node.resident_kib - before
    return outcome


def fuzz(folder: Path, version: int, seed: str, size: int, told: Callable[[int], None] = lambda _: None) -> Outcome:
    """One run against a new node; raises `AssertionError` if a check fails."""
    with open_log(folder / "data") as log:
        for name in TOPICS:
            log.create_topic(name, **_SETTINGS.get(name, {}))
        assert [log.describe(name).topic_id for name in ("witness2", "witness1")] == [WITNESS_2, WITNESS_1]
    with ChaosNode(folder / "data") as node:
        outcome = asyncio.run(_fuzz(node, version, seed, size, told))
        assert node.process.poll() is None, node.said()
        code = node.terminate()
        said = node.said()
    assert code == 0, said
    assert "Traceback" not in said, said
    assert "exception" not in said.lower(), said
    assert outcome.grown_kib < MEMORY_GROWTH_KIB_MAX, f"{outcome.grown_kib} KiB more"
    assert outcome.rounds > 0
    with open_log(folder / "data") as log:
        assert not log.verify().findings
    return outcome
