"""Transaction commands of version 2: payloads round-trip, malformed ones are refused without ending the connection."""

from __future__ import annotations

import struct

import pytest

from seawall import limits
from seawall.core.transactions import (
    CommittedTransaction,
    JobAck,
    OffsetCommit,
    StagedPart,
    StagedRange,
    TopicSpan,
    WantedTransaction,
)
from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.wire.format.codes import ALL_TOPICS, Command, ErrorCode, ReadBy
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.reading import Fetch, Within
from seawall.wire.lwp2.transactions import (
    StagingFind,
    TransactionAbort,
    TransactionCommit,
    TransactionRequest,
    TransactionState,
    TransactionStatus,
)

PARTS = (StagedPart("a", StagedRange(1, 3)), StagedPart("b", StagedRange(9, 9)), StagedPart("a", StagedRange(4, 4)))
OFFSETS = (OffsetCommit("mé", "c", 5), OffsetCommit("me", "a", 6))
#: An ack has the lease of each job; two workers may have jobs of one queue.
ACKS = (
    JobAck("q", "wörker", (1, 5, (1 << 63) - 1), (7, 0, (1 << 63) - 1)),
    JobAck("a", "w" * limits.JOB_NODE_SIZE_MAX, tuple(range(1, limits.JOBS_MAX + 1)), (9,) * limits.JOBS_MAX),
    JobAck("q", "w", (2,), (3,)),
)
WANTED = WantedTransaction("jöb", 7, PARTS, OFFSETS)

REQUESTS: list[TransactionRequest] = [
    StagingFind(),
    TransactionCommit(WANTED),
    TransactionCommit(WantedTransaction("job", 0, ())),
    TransactionCommit(WantedTransaction("jöb", 7, PARTS, OFFSETS, ACKS)),
    TransactionCommit(WantedTransaction("", 1, (), (), ACKS[:1])),
    TransactionAbort(()),
    TransactionAbort((StagedRange(1, 3), StagedRange(9, 9))),
    TransactionState("jöb"),
]
COMMITTED = CommittedTransaction("jöb", 7, 40, 99, (TopicSpan("a", 3, 4), TopicSpan("é", 1, 1)))


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_requests_round_trip(request_: TransactionRequest) -> None:
    assert lwp2.parse_request(request_.COMMAND, request_.encode()) == request_


def test_answers_round_trip() -> None:
    for status in (TransactionStatus("jöb", None), TransactionStatus("jöb", COMMITTED)):
        assert lwp2.parse_answer(Command.TRANSACTION_STATUS, status.encode()) == status
    repeated = CommittedTransaction("job", 7, 40, 99, (), is_repeated=True)
    found = lwp2.parse_answer(0x68, TransactionStatus("job", repeated).encode())
    assert isinstance(found, TransactionStatus)
    assert found.committed is not None
    assert found.committed.is_repeated


def test_payloads_have_the_documented_bytes() -> None:
    wanted = WantedTransaction("j", 7, (StagedPart("a", StagedRange(1, 3)),), (OffsetCommit("m", "b", 5),))
    fixed = struct.pack("<QHHIII", 7, 1, 2, 1, 1, 0) + b"j" + b"\1\0a" + b"\1\0b"
    assert TransactionCommit(wanted).encode() == fixed + struct.pack("<IIQQIHHQ", 0, 0, 1, 3, 1, 1, 0, 5) + b"m"
    acked = WantedTransaction("j", 7, (), (), (JobAck("q", "w", (4, 6), (8, 9)),))
    assert TransactionCommit(acked).encode() == (
        struct.pack("<QHHIII", 7, 1, 1, 0, 0, 1)
        + b"j\1\0q"
        + struct.pack("<IIHHI", 0, 2, 1, 0, 0)
        + b"w"
        + struct.pack("<QQQQ", 4, 8, 6, 9)
    )
    assert TransactionAbort((StagedRange(1, 3),)).encode() == struct.pack("<IIQQ", 1, 0, 1, 3)
    status = TransactionStatus("j", CommittedTransaction("j", 7, 40, 99, (TopicSpan("a", 3, 4),)))
    span = struct.pack("<HHIQQ", 1, 0, 0, 3, 4) + b"a"
    assert status.encode() == struct.pack("<QQQBBHI", 7, 40, 99, 1, 0, 1, 1) + b"j" + span
    assert [int(request.COMMAND) for request in REQUESTS] == [0x66, *[0x67] * 4, 0x69, 0x69, 0x6A]


def test_a_fetch_may_continue_within_a_position() -> None:
    fetch = Fetch(ALL_TOPICS, ReadBy.POSITION, 4, 1, 1, within=Within(3, 9))
    assert len(fetch.encode()) == 48
    assert lwp2.parse_request(0x50, fetch.encode()) == fetch
    assert not fetch.has_same_start(Fetch(ALL_TOPICS, ReadBy.POSITION, 4, 1, 1))
    with pytest.raises(InvalidInputError, match="only a read of all topics"):
        Fetch(1, ReadBy.POSITION, 4, 1, 1, within=Within(3, 9)).encode()


COMMIT = struct.Struct("<QHHIII")
STATUS = struct.Struct("<QQQBBHI")
ACK = struct.Struct("<IIHHI")
JOB = struct.Struct("<QQ")


def commit_of_an_ack(ack: bytes) -> bytes:
    return COMMIT.pack(1, 0, 1, 0, 0, 1) + b"\1\0q" + ack


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        (0x66, b"x"),
        (0x67, b""),
        (0x67, COMMIT.pack(1, 0, 0, 0, 0, 1)),
        (0x67, COMMIT.pack(1, 256, 0, 0, 0, 0) + bytes(256)),
        (0x67, COMMIT.pack(1, 0, 1, 0, 0, 0) + b"\0\1" + bytes(256)),
        (0x67, COMMIT.pack(1, 0, 0, limits.TRANSACTION_BATCHES_MAX + 1, 0, 0)),
        (0x67, COMMIT.pack(1, 0, 0, 0, limits.TRANSACTION_CURSORS_MAX + 1, 0)),
        (0x67, COMMIT.pack(1, 0, 2_000, 0, 0, 0)),
        (0x67, COMMIT.pack(1, 0, 0, 1, 0, 0) + struct.pack("<IIQQ", 0, 0, 1, 1)),
        (0x67, COMMIT.pack(1, 0, 1, 1, 0, 0) + b"\1\0a" + struct.pack("<IIQQ", 0, 1, 1, 1)),
        (0x67, COMMIT.pack(1, 0, 1, 0, 1, 0) + b"\1\0a" + struct.pack("<IHHQ", 0, 0, 1, 1)),
        (0x67, COMMIT.pack(1, 1, 0, 0, 0, 0) + b"\xff"),
        (0x67, COMMIT.pack(1, 0, 0, 0, 0, 0) + b"x"),
        (0x67, COMMIT.pack(1, 0, 0, 0, 0, limits.TRANSACTION_ACKS_MAX + 1)),
        (0x67, commit_of_an_ack(b"")),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 0, 0, 0) + JOB.pack(1, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 1, 1, 0) + b"w" + JOB.pack(1, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 1, 0, 1) + b"w" + JOB.pack(1, 1))),
        (0x67, commit_of_an_ack(ACK.pack(1, 1, 1, 0, 0) + b"w" + JOB.pack(1, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 1, 0, 0) + b"\xff" + JOB.pack(1, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 129, 0, 0) + b"w" * 129 + JOB.pack(1, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 0, 1, 0, 0) + b"w")),
        (0x67, commit_of_an_ack(ACK.pack(0, limits.JOBS_MAX + 1, 1, 0, 0) + b"w" + bytes(16_016))),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 1, 0, 0) + b"w" + JOB.pack(0, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 1, 0, 0) + b"w" + JOB.pack(1 << 63, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 1, 1, 0, 0) + b"w" + JOB.pack(1, 1 << 63))),
        (0x67, commit_of_an_ack(ACK.pack(0, 2, 1, 0, 0) + b"w" + JOB.pack(2, 1) + JOB.pack(2, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 2, 1, 0, 0) + b"w" + JOB.pack(2, 1) + JOB.pack(1, 1))),
        (0x67, commit_of_an_ack(ACK.pack(0, 2, 1, 0, 0) + b"w" + JOB.pack(1, 1))),
        (0x69, struct.pack("<II", 1, 0)),
        (0x69, struct.pack("<II", 0, 1)),
        (0x69, struct.pack("<II", 1 << 31, 0)),
        (0x6A, b"a" * 256),
    ],
)
def test_malformed_requests_are_refused(command: int, payload: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(command, payload)
    assert (refused.value.code, refused.value.closes) == (ErrorCode.INVALID_PAYLOAD, False)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        STATUS.pack(0, 0, 0, 4, 0, 0, 0),
        STATUS.pack(1, 0, 0, 0, 0, 0, 0),
        STATUS.pack(0, 0, 0, 2, 0, 0, 0),
        STATUS.pack(0, 0, 0, 1, 1, 0, 0),
        STATUS.pack(0, 0, 0, 1, 0, 0, limits.TRANSACTION_TOPICS_MAX + 1),
        STATUS.pack(0, 0, 0, 1, 0, 0, 1) + struct.pack("<HHIQQ", 0, 1, 0, 1, 1),
        STATUS.pack(0, 0, 0, 1, 0, 0, 0) + b"x",
    ],
)
def test_malformed_answers_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        lwp2.parse_answer(0x68, payload)


def test_a_transaction_beyond_its_limits_is_not_encoded() -> None:
    many = WantedTransaction("job", 1, (StagedPart("a", StagedRange(1, 1)),) * (limits.TRANSACTION_BATCHES_MAX + 1))
    with pytest.raises(LimitError, match="ranges"):
        TransactionCommit(many).encode()
    acks = WantedTransaction("job", 1, (), (), ACKS[2:] * (limits.TRANSACTION_ACKS_MAX + 1))
    with pytest.raises(LimitError, match="acks"):
        TransactionCommit(acks).encode()
    unnamed = WantedTransaction("job", 1, (), (), (JobAck("q", "w" * 129, (1,), (1,)),))
    with pytest.raises(LimitError, match="node"):
        TransactionCommit(unnamed).encode()
    with pytest.raises(LimitError, match="owner"):
        TransactionState("a" * 256).encode()
