"""Arbitrary bytes into every parser of `wire/`: each returns a result or raises a `SeawallError`.

`TARGETS` maps a parser to a function that takes any bytes and suppresses only `SeawallError`. The tests use a few
hundred seeded mutations; `make fuzz` uses many more.
"""

import random
import struct
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from fuzz_mutation import mutate

from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.core.sessions import SessionInfo
from seawall.core.transactions import (
    CommittedTransaction,
    OffsetCommit,
    StagedPart,
    StagedRange,
    TopicSpan,
    WantedTransaction,
)
from seawall.core.watches import TopicEvent, TopicEventKind, TopicPatterns, WatchPosition, WatchSpec
from seawall.errors import SeawallError
from seawall.tasks import MsgpackCodec, TaskCall
from seawall.tasks.job_format import JSON
from seawall.wire.format.batches import (
    BatchSource,
    batch_header,
    block_of,
    client_block_of,
    encode_batch,
    iter_batches,
    parse_batch_header,
    verify_block,
)
from seawall.wire.format.codes import (
    ALL_TOPICS,
    ClaimFlags,
    Codec,
    DataFlags,
    ErrorClass,
    GapReason,
    GapUnit,
    ReadBy,
    SessionStatus,
)
from seawall.wire.format.compression import compress, decompress, decompress_v1
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.format.envelope import Envelope, parse_envelope
from seawall.wire.format.frames import header_crc_v2, parse_frame_header
from seawall.wire.format.record_values import KeyValue, parse_key_value, parse_timestamped, parse_timestamped_key_value
from seawall.wire.format.records import (
    Record,
    check_client_block,
    decode_block,
    encode_block,
    records_for_v1,
    v1_record_count,
)
from seawall.wire.jobs.rows import JOB_ROW, ClaimedJobs
from seawall.wire.lwp1 import frames as lwp1
from seawall.wire.lwp1 import replies as lwp1_replies
from seawall.wire.lwp1 import requests as lwp1_requests
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2 import jobs as lwp2_jobs
from seawall.wire.lwp2 import keyed as lwp2_keyed
from seawall.wire.lwp2 import reading as lwp2_reading
from seawall.wire.lwp2 import routers as lwp2_routers
from seawall.wire.lwp2 import session as lwp2_session
from seawall.wire.lwp2 import sessions as lwp2_sessions
from seawall.wire.lwp2 import topics as lwp2_topics
from seawall.wire.lwp2 import transactions as lwp2_transactions
from seawall.wire.lwp2 import watches as lwp2_watches

Target = Callable[[bytes], None]
RAW_LENGTH = 64


def typed_errors_only(parse: Callable[[bytes], object]) -> Target:
    def run(data: bytes) -> None:
        try:
            parse(data)
        except SeawallError:
            return

    return run


def read_block(data: bytes) -> None:
    """Whatever parses as a block must encode to the same bytes, and keep its size in the version 1 view."""
    count = v1_record_count(data)
    if count:
        decode_block(data, count)
    records = decode_block(data)
    check_client_block(data, len(records))
    if records and encode_block(records) != data:
        raise AssertionError("a block changed in a round trip")
    if len(records_for_v1(data)) != len(data):
        raise AssertionError("the version 1 view has another size")


def read_values(data: bytes) -> None:
    for parse in (parse_key_value, parse_timestamped, parse_timestamped_key_value):
        typed_errors_only(parse)(data)


def read_envelope(data: bytes) -> None:
    if parse_envelope(data).encode() != data:
        raise AssertionError("an envelope changed in a round trip")


def with_checksum(data: bytes) -> bytes:
    """The bytes with a correct header checksum, so that mutations reach the checks after it."""
    if len(data) < 96:
        return data
    return b"".join((data[:8], struct.pack("<I", header_crc_v2(data[:96])), data[12:]))


def read_client_batch(data: bytes) -> None:
    data = with_checksum(data)
    header = parse_batch_header(data, source=BatchSource.CLIENT)
    block = client_block_of(header, data[96:])
    if not header.is_opaque:
        check_client_block(block, header.record_count)


def read_stored_batch(data: bytes) -> None:
    data = with_checksum(data)
    header = parse_batch_header(data, source=BatchSource.STORED)
    if header.header_bytes() != data[:96]:
        raise AssertionError("a header changed in a round trip")
    verify_block(header, data[96:])
    block_of(header, data[96:])


def read_run(data: bytes) -> None:
    for _ in iter_batches(data):
        pass


def read_v1_ingest(data: bytes) -> None:
    header = parse_frame_header(data)
    lwp1.frame_kind(header.kind, len(data) - 44)
    lwp1.parse_ingest(header, data[44:])


def read_v1_request(data: bytes) -> None:
    lwp1_requests.parse_request(data[0] if data else 0, data[1:])


def read_v2_request(data: bytes) -> None:
    lwp2.parse_request(data[0] if data else 0, data[1:])


def read_v2_answer(data: bytes) -> None:
    lwp2.parse_answer(data[0] if data else 0, data[1:])


def read_chunks(data: bytes) -> None:
    for _ in lwp2_reading.iter_chunks(data, 2):
        pass


def read_stream(data: bytes) -> None:
    """The first byte is the size of the pieces; any size must give the same frames."""
    size = data[0] + 1 if data else 1
    seen: list[list[bytes]] = []
    for pieces in ([data[1:]], [data[at : at + size] for at in range(1, len(data), size)]):
        decoder = FrameDecoder()
        frames: list[bytes] = []
        with suppress(SeawallError):
            for piece in pieces:
                decoder.feed(piece)
                frames.extend(bytes(frame.whole) for frame in decoder.frames())
            frames.extend(bytes(frame.whole) for frame in decoder.frames())
        seen.append(frames)
    if seen[0] != seen[1]:
        raise AssertionError("chunking changed the frames")


TARGETS: dict[str, Target] = {
    name: typed_errors_only(parse)
    for name, parse in {
        "frame_header": parse_frame_header,
        "task_json": JSON.decode,
        "task_msgpack": MsgpackCodec().decode,
        "stream": read_stream,
        "block": read_block,
        "record_values": read_values,
        "envelope": read_envelope,
        "client_batch": read_client_batch,
        "stored_batch": read_stored_batch,
        "batch_run": read_run,
        "lz4": lambda data: decompress(Codec.LZ4, data, RAW_LENGTH),
        "lz4_v1": decompress_v1,
        "zstd": lambda data: decompress(Codec.ZSTD, data, RAW_LENGTH),
        "v1_ingest": read_v1_ingest,
        "v1_request": read_v1_request,
        "v1_authenticate_reply": lwp1_replies.parse_authenticate_reply,
        "v1_fetch_reply": lwp1_replies.parse_fetch_reply,
        "v1_topic_reply": lwp1_replies.parse_topic_reply,
        "v1_topic_list_reply": lwp1_replies.parse_topic_list_reply,
        "v1_retention_reply": lwp1_replies.parse_retention_reply,
        "v1_cluster_status_reply": lwp1_replies.parse_cluster_status_reply,
        "v1_error_reply": lwp1_replies.parse_error_reply,
        "v2_request": read_v2_request,
        "v2_answer": read_v2_answer,
        "v2_ack": lambda data: lwp2_session.parse_ack(data, max(0, len(data) - 16) // 48),
        "v2_chunks": read_chunks,
    }.items()
}


def _batch(codec: Codec = Codec.NONE) -> bytes:
    plain = encode_block([Record(1, b"hello" * 8), Record(0x1_0001, b"\0\0data")])
    block = bytes(compress(codec, plain))
    header = batch_header(
        block,
        topic_id=1,
        client_id=7,
        client_seq=1,
        session_epoch=3,
        record_count=2,
        timestamp_ns=9,
        codec=codec,
        raw_length=len(plain),
    )
    return encode_batch(header, block)


def _commands(*payloads: lwp2.Request | lwp2.Answer | lwp1_requests.Request) -> list[bytes]:
    return [bytes([payload.COMMAND]) + payload.encode() for payload in payloads]


_FRAME = bytes.fromhex(
    "4C414E43010400003AF0D86C010000000000000000002A36FE9C9717010000000A0000009C17EDB601000000010500000068656C6C6F"
)
_PLAIN = (b"seawall " * 8)[:RAW_LENGTH]
_TOPIC = lwp1_replies.TopicReply(3, "events", 1_700_000_000, 1, lwp1_replies.Retention(3600, 0))
_WANTED = WantedTransaction(
    "job", 7, (StagedPart("a", StagedRange(1, 3)), StagedPart("b", StagedRange(9, 9))), (OffsetCommit("me", "a", 5),)
)
_DATA = lwp2_reading.DataPrefix(1, DataFlags.MORE, 1, 1, 3, 1, 3, 1).encode()
_BROKER = lwp1_replies.BrokerStatus(0, ("127.0.0.1:1992",), 3)
_STATUS = lwp1_replies.ClusterStatusReply(
    1, True, 1, 4, 3, 3, True, ((2, "healthy"), (3, "healthy")), brokers=(_BROKER,)
)

#: Valid inputs that mutations start from.
_CALL = TaskCall("send", ("ada", [1.5, None]), {"urgent": True, "more": {"a": -300}}, 17)

CORPUS: dict[str, list[bytes]] = {
    "frame_header": [_FRAME, _batch()],
    "task_json": [JSON.encode(_CALL)],
    "task_msgpack": [MsgpackCodec().encode(_CALL)],
    "stream": [b"\x07" + _batch() * 3, b"\x40" + _FRAME * 3, b"\0" + lwp2.encode_ping(9) * 2],
    "block": [encode_block([Record(1, b"hello"), Record(0xFF, b""), Record(0x1_0001, b"\0\0x")]), _FRAME[44:]],
    "record_values": [KeyValue(b"key", b"value", 5).to_record().value, KeyValue(b"k", b"v").to_record().value],
    "envelope": [Envelope(b"d", 1, b"k", b"n", b"t", b"{}", ((b"h", b"v"),)).encode(), Envelope(b"").encode()],
    "client_batch": [_batch(codec) for codec in Codec],
    "stored_batch": [_batch(codec) for codec in Codec],
    "batch_run": [_batch() + _batch(Codec.LZ4)],
    "lz4": [bytes(compress(Codec.LZ4, _PLAIN))],
    "lz4_v1": [bytes(compress(Codec.LZ4, _PLAIN))],
    "zstd": [bytes(compress(Codec.ZSTD, _PLAIN))],
    "v1_ingest": [_FRAME, _FRAME[:5] + b"\x05" + _FRAME[6:44] + bytes(compress(Codec.LZ4, _PLAIN))],
    "v1_request": _commands(
        lwp1_requests.CreateTopic("events"),
        lwp1_requests.SetRetention(1, 2, 3),
        lwp1_requests.CreateTopicWithRetention("events", 1, 2),
        lwp1_requests.Authenticate("token"),
        lwp1_requests.Fetch(1, 0, 65_536),
        lwp1_requests.Subscribe(1, 2, 3, 4),
        lwp1_requests.CommitOffset(1, 2, 3),
    ),
    "v1_authenticate_reply": [lwp1_replies.AuthenticateReply(True, "welcome").encode()],
    "v1_fetch_reply": [lwp1_replies.FetchReply(10, 1, b"hello").prefix() + b"hello"],
    "v1_topic_reply": [_TOPIC.encode()],
    "v1_topic_list_reply": [lwp1_replies.TopicListReply((_TOPIC, _TOPIC)).encode()],
    "v1_retention_reply": [lwp1_replies.RetentionReply(3, lwp1_replies.Retention(1, 2)).encode()],
    "v1_cluster_status_reply": [_STATUS.encode()],
    "v1_error_reply": [lwp1_replies.ErrorReply(16, "Topic not found", {"batch_id": 3}).encode(), b"NOT_LEADER: x"],
    "v2_request": _commands(
        lwp2_session.Hello(token="token", name="name"),
        lwp2_session.Goodbye(0, 1),
        lwp2.Fetch(1, ReadBy.SEQ, 1, 1, 1),
        lwp2.Subscribe(1, ReadBy.EARLIEST, 0, 1, 1, 1),
        lwp2.Credit(1, 2),
        lwp2.Commit(1, 2, 3, 4),
        lwp2.Bounds(1),
        lwp2_topics.TopicCreate("events", {"order": 5}),
        lwp2_topics.TopicConfigure(1, {"ttl_ms": 5}),
        lwp2_topics.TopicDescribe(1),
        lwp2_topics.TopicFind("events"),
        lwp2_topics.RecordsDelete(1, 5, "tag"),
        lwp2.Fetch(ALL_TOPICS, ReadBy.POSITION, 1, 1, 1, within=lwp2_reading.Within(3, 9)),
        lwp2_transactions.StagingFind(),
        lwp2_transactions.TransactionCommit(_WANTED),
        lwp2_transactions.TransactionAbort((StagedRange(1, 3), StagedRange(9, 9))),
        lwp2_transactions.TransactionState("job"),
        lwp2_keyed.PublishKeyed(1, 1, b"order-17", _FRAME[44:]),
        lwp2_sessions.SessionList(7, 100),
        lwp2_sessions.SessionRetire(7),
        lwp2_jobs.JobClaim(1, "worker", 10, 30_000, 500, ClaimFlags.BOUND),
        lwp2_jobs.JobAck(1, "worker", (3, 5), (7, 8)),
        lwp2_jobs.JobNack(1, "worker", (3, 5), (7, 8), 1_000),
        lwp2_jobs.JobExtend(1, "worker", (3, 5), (7, 8), 1_000),
        lwp2_jobs.JobPeek(1, 10),
        lwp2_jobs.QueueCountsRequest(1),
        lwp2_jobs.QueuePurge(1),
        lwp2_jobs.QueueRedrive(1, 0),
        lwp2_jobs.JobPushUnique(1, _FRAME[44:]),
        lwp2_routers.RouterPut("a->b", "a", "b", RouterSettings(tag="x")),
        lwp2_routers.RouterDescribe("a->b"),
        lwp2_routers.RouterList("a->b", 7),
        lwp2_routers.RouterDelete("a->b"),
        lwp2_watches.Watch(WatchSpec(TopicPatterns(["a", "b*"]), positions={"a": WatchPosition(1, 5)}), 1, 1, 1),
        lwp1_requests.GetTopic(3),
    ),
    "v2_answer": _commands(
        lwp2.Welcome(2, SessionStatus.NEW, 1 << 24, 3, 7, 1, 1, 256, 9, 10, 30, 1, 5, 2),
        lwp2.Subscribed(1, 2, 3, 4, 5),
        lwp2.CaughtUp(1, 2),
        lwp2.Gap(1, GapReason.CRASH, GapUnit.TOPIC_SEQ, 5, 9, 0, 3, 4),
        lwp2.Error(0x10, ErrorClass.CALLER, False, "no such topic"),
        lwp2.BoundsReply(1, 2, 3, 4, 5, 6, 7, 8),
        lwp2_transactions.TransactionStatus("job", CommittedTransaction("job", 7, 9, 5, (TopicSpan("a", 3, 2),))),
        lwp2_transactions.TransactionStatus("job", None),
        lwp2_keyed.PublishedKeyed(3, 5, 9, 7, True),
        lwp2_routers.RoutersReply((RouterInfo("r", "a", "b", RouterSettings(node="n"), 7, 9, "full"),)),
        lwp2_sessions.SessionsReply((SessionInfo(7, 1, 12, 1_700_000_000_000, False),)),
        lwp2_jobs.Jobs(ClaimedJobs(np.zeros(1, JOB_ROW), memoryview(b"\1\5\0\0\0value"), 3, 30_000)),
        lwp2_jobs.JobOutcomeReply(JobOutcome(2, (5, 9), 3, 4, 1_700_000_000_000)),
        lwp2_jobs.QueueCountsReply(QueueCounts(1, 2, 3, 4, None)),
        lwp2_jobs.JobPushed(7, True),
        lwp2_watches.Watched((TopicEvent(TopicEventKind.JOINED, 1, 2, 3, 4, "a"),), 7),
    ),
    "v2_ack": [struct.pack("<QII", 3, 256, 1) + struct.pack("<QQQQIIIBBH", 1, 1, 0, 9, 1, 1, 1, 0, 2, 0) * 2],
    "v2_chunks": [_DATA + _batch()],
}


def test_every_target_has_a_corpus() -> None:
    assert TARGETS.keys() == CORPUS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_give_only_typed_errors(name: str) -> None:
    """INV-TYPED-ERRORS."""
    random_source = random.Random(f"seawall {name}")
    target = TARGETS[name]
    for data in CORPUS[name]:
        target(data)
        target(b"")
    for _ in range(400):
        target(mutate(random_source, random_source.choice(CORPUS[name])))
