"""Payloads of job queues: they round-trip, and malformed ones are refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.core.types import Seq, TopicId
from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.kernels.runtime import jit
from seawall.limits import JOB_NODE_SIZE_MAX, JOBS_MAX, PAYLOAD_SIZE_MIN
from seawall.wire.format.codes import U64_MAX, ClaimFlags, Command, ErrorCode
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.format.records import Record, encode_block
from seawall.wire.jobs.rows import JOB_ROW, ClaimedJobs
from seawall.wire.lwp1 import requests as lwp1_requests
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.jobs import (
    JobAck,
    JobChange,
    JobClaim,
    JobExtend,
    JobNack,
    JobOutcomeReply,
    JobPeek,
    JobPushed,
    JobPushUnique,
    JobRequest,
    Jobs,
    QueueCountsReply,
    QueueCountsRequest,
    QueuePurge,
    QueueRedrive,
    encode_jobs,
    parse_jobs,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
topics = u32.map(TopicId)
nodes = st.text(min_size=1, max_size=JOB_NODE_SIZE_MAX // 4)
counts = st.integers(1, 2**32 - 1)
u63 = st.integers(0, 2**63 - 1)
jobs = st.dictionaries(st.integers(1, 2**63 - 1), u63, min_size=1, max_size=9).map(
    lambda found: tuple(zip(*sorted(found.items()), strict=True))
)


def claimed_jobs(rows: list[tuple[int, ...]], values: list[bytes], ready: int, lease_ms: int) -> ClaimedJobs:
    block = encode_block([Record(1, value) for value in values]) if values else b""
    return ClaimedJobs(np.array(rows, JOB_ROW), memoryview(block), ready, lease_ms)


requests = st.one_of(
    st.builds(JobClaim, topics, nodes, counts, u32, u32, st.sampled_from(ClaimFlags)),
    st.builds(lambda topic, node, found: JobAck(topic, node, *found), topics, nodes, jobs),
    st.builds(lambda topic, node, found, ms: JobNack(topic, node, *found, ms), topics, nodes, jobs, u32),
    st.builds(lambda topic, node, found, ms: JobExtend(topic, node, *found, ms), topics, nodes, jobs, u32),
    st.builds(JobPeek, topics, counts),
    st.builds(QueueCountsRequest, topics),
    st.builds(QueuePurge, topics),
    st.builds(QueueRedrive, topics, u32),
    st.builds(JobPushUnique, topics, st.binary(min_size=1, max_size=50)),
)
replies = st.one_of(
    st.builds(
        lambda changed, skipped, *rest: JobOutcomeReply(JobOutcome(changed, tuple(skipped), *rest)),
        u32,
        st.lists(u64, max_size=9),
        *(u64, u64, u64),
    ),
    st.builds(QueueCountsReply, st.builds(QueueCounts, u64, u64, u64, u64, st.none() | st.integers(0, 2**64 - 2))),
    st.builds(JobPushed, st.integers(1, 2**64 - 1).map(Seq), st.booleans()),
)


@given(requests)
def test_requests_round_trip(request: JobRequest) -> None:
    assert lwp2.parse_request(request.COMMAND, request.encode()) == request


@given(replies)
def test_replies_round_trip(reply: JobOutcomeReply | QueueCountsReply | JobPushed) -> None:
    assert lwp2.parse_answer(reply.COMMAND, reply.encode()) == reply


@given(st.lists(st.tuples(u64, u64, u64, u64, u32, st.just(0), st.binary(max_size=9)), max_size=9), u64, u32)
def test_jobs_round_trip(found: list[tuple[int, ...]], ready: int, lease_ms: int) -> None:
    claimed = claimed_jobs([row[:-1] for row in found], [row[-1] for row in found], ready, lease_ms)
    parsed = lwp2.parse_answer(Command.JOBS, Jobs(claimed).encode())
    assert isinstance(parsed, Jobs)
    assert np.array_equal(parsed.claimed.rows, claimed.rows)
    assert parsed.claimed[1:] == claimed[1:]


def test_the_frame_of_jobs_is_that_of_every_control_frame() -> None:
    claimed = claimed_jobs([(3, 4, 5, 6, 7, 0)], [b"value"], 8, 9)
    decoder = FrameDecoder()
    decoder.feed(b"".join(encode_jobs(claimed, request_id=12)))
    (frame,) = decoder.frames()
    assert (frame.header.id, frame.header.command, frame.header.record_count) == (12, Command.JOBS, 1)
    assert bytes(frame.payload) == Jobs(claimed).encode()


@pytest.mark.skipif(jit.PYTHON_MODE, reason="16 MiB of checksum")
def test_the_largest_job_fits_one_frame() -> None:
    value = bytes(PAYLOAD_SIZE_MIN - 5)
    claimed = claimed_jobs([(1, 1, 1, 1, 1, 0)], [value], 0, 0)
    assert len(claimed.block) == PAYLOAD_SIZE_MIN
    decoder = FrameDecoder()
    decoder.feed(b"".join(encode_jobs(claimed, request_id=1)))
    assert bytes(parse_jobs(decoder.frames()[0].payload).claimed.block[5:]) == value


def test_payloads_have_the_documented_bytes() -> None:
    claim = JobClaim(TopicId(1), "me", 2, 3, 4, ClaimFlags.BOUND)
    assert claim.encode() == struct.pack("<6I", 1, 2, 3, 4, 1, 2) + b"me"
    keys = struct.pack("<4Q", 5, 6, 7, 8)
    assert JobAck(TopicId(1), "me", (5, 7), (6, 8)).encode() == struct.pack("<IHHI", 1, 2, 2, 0) + b"me" + keys
    assert JobNack(TopicId(1), "me", (5, 7), (6, 8), 9).encode() == struct.pack("<IHHI", 1, 2, 2, 9) + b"me" + keys
    assert JobExtend(TopicId(1), "me", (5, 7), (6, 8), 9).encode() == struct.pack("<IHHI", 1, 2, 2, 9) + b"me" + keys
    outcome = JobOutcome(1, (7,), 3, 4, 5)
    assert JobOutcomeReply(outcome).encode() == struct.pack("<IIQQQQ", 1, 1, 3, 4, 5, 7)
    assert JobPeek(TopicId(1), 2).encode() == struct.pack("<II", 1, 2)
    assert QueueCountsRequest(TopicId(1)).encode() == struct.pack("<II", 1, 0)
    assert QueueCountsReply(QueueCounts(1, 2, 3, 4, None)).encode() == struct.pack("<5Q", 1, 2, 3, 4, U64_MAX)
    assert QueuePurge(TopicId(1)).encode() == struct.pack("<II", 1, 0)
    assert QueueRedrive(TopicId(1), 2).encode() == struct.pack("<II", 1, 2)
    assert JobPushUnique(TopicId(1), b"block").encode() == struct.pack("<II", 1, 0) + b"block"
    assert JobPushed(Seq(3), True).encode() == struct.pack("<QII", 3, 1, 0)
    claimed = claimed_jobs([(3, 4, 5, 6, 7, 0)], [b"value"], 8, 9)
    row = struct.pack("<4QII", 3, 4, 5, 6, 7, 0)
    assert Jobs(claimed).encode() == struct.pack("<QII", 8, 9, 1) + row + bytes(claimed.block)


CHANGES = (Command.JOB_ACK, Command.JOB_NACK, Command.JOB_EXTEND)


def change(count: int = 1, node: bytes = b"me", number: int = 0, keys: tuple[int, ...] = (5, 6)) -> bytes:
    return struct.pack("<IHHI", 1, count, len(node), number) + node + struct.pack(f"<{len(keys)}Q", *keys)


def claim(count: int = 1, flags: int = 0, node: bytes = b"me", length: int | None = None) -> bytes:
    return struct.pack("<6I", 1, count, 0, 0, flags, len(node) if length is None else length) + node


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        (Command.JOB_CLAIM, claim()[:23]),
        (Command.JOB_CLAIM, claim(count=0)),
        (Command.JOB_CLAIM, claim(flags=2)),
        (Command.JOB_CLAIM, claim(node=b"")),
        (Command.JOB_CLAIM, claim(node=bytes(JOB_NODE_SIZE_MAX + 1))),
        (Command.JOB_CLAIM, claim(node=b"\xff")),
        (Command.JOB_CLAIM, claim(length=3)),
        (Command.JOB_CLAIM, claim(length=2**32 - 1)),
        (Command.JOB_CLAIM, claim() + b"\0"),
        *((command, change()[:11]) for command in CHANGES),
        *((command, change(count=0, keys=())) for command in CHANGES),
        *((command, change(count=2)) for command in CHANGES),
        *((command, change() + b"\0") for command in CHANGES),
        *((command, change(node=b"")) for command in CHANGES),
        *((command, change(node=bytes(JOB_NODE_SIZE_MAX + 1))) for command in CHANGES),
        *((command, change(node=b"\xff")) for command in CHANGES),
        *((command, change(keys=(0, 6))) for command in CHANGES),
        *((command, change(keys=(2**63, 6))) for command in CHANGES),
        *((command, change(keys=(5, 2**63))) for command in CHANGES),
        *((command, change(count=2, keys=(5, 6, 5, 7))) for command in CHANGES),
        *((command, change(count=2, keys=(5, 6, 4, 7))) for command in CHANGES),
        (Command.JOB_ACK, change(number=1)),
        (Command.JOB_PEEK, bytes(7)),
        (Command.JOB_PEEK, bytes(8)),
        (Command.QUEUE_COUNTS, bytes(9)),
        (Command.QUEUE_COUNTS, b"\0\0\0\0\1\0\0\0"),
        (Command.QUEUE_PURGE, bytes(7)),
        (Command.QUEUE_PURGE, b"\0\0\0\0\1\0\0\0"),
        (Command.QUEUE_REDRIVE, bytes(9)),
        (Command.JOB_PUSH_UNIQUE, bytes(8)),
        (Command.JOB_PUSH_UNIQUE, b"\0\0\0\0\1\0\0\0x"),
    ],
)
def test_malformed_requests_are_refused(command: Command, payload: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(command, payload)
    assert (refused.value.code, refused.value.closes) == (ErrorCode.INVALID_PAYLOAD, False)


@pytest.mark.parametrize("command", CHANGES)
def test_too_many_jobs_are_refused_by_the_limit(command: Command) -> None:
    keys = tuple(number for seq in range(1, JOBS_MAX + 2) for number in (seq, 9))
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(command, change(count=JOBS_MAX + 1, keys=keys))
    assert (refused.value.code, refused.value.closes) == (ErrorCode.LIMIT, False)
    most = lwp2.parse_request(command, change(count=JOBS_MAX, keys=keys[:-2]))
    assert isinstance(most, JobChange)
    assert (most.seqs, set(most.lease_ids)) == (tuple(range(1, JOBS_MAX + 1)), {9})


ROW = struct.pack("<4QII", 3, 4, 5, 6, 7, 0)


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        (Command.JOBS, bytes(15)),
        (Command.JOBS, struct.pack("<QII", 0, 0, 1) + ROW[:-1]),
        (Command.JOBS, struct.pack("<QII", 0, 0, 1) + ROW),
        (Command.JOBS, struct.pack("<QII", 0, 0, 1) + ROW + b"\1\5\0\0\0four"),
        (Command.JOBS, struct.pack("<QII", 0, 0, 1) + ROW + b"\0\0\0\0\0"),
        (Command.JOBS, struct.pack("<QII", 0, 0, 0) + b"\1\0\0\0\0"),
        (Command.JOBS, struct.pack("<QII", 0, 0, 1) + ROW[:-1] + b"\1" + b"\1\0\0\0\0"),
        (Command.JOBS, struct.pack("<QII", 0, 0, JOBS_MAX + 1) + ROW * (JOBS_MAX + 1)),
        (Command.JOB_OUTCOME, bytes(31)),
        (Command.JOB_OUTCOME, bytes(33)),
        (Command.JOB_OUTCOME, struct.pack("<IIQQQ", 0, 1, 0, 0, 0)),
        (Command.QUEUE_COUNTS_REPLY, bytes(39)),
        (Command.JOB_PUSHED, bytes(16)),
        (Command.JOB_PUSHED, struct.pack("<QII", 1, 2, 0)),
        (Command.JOB_PUSHED, struct.pack("<QII", 1, 0, 1)),
        (Command.JOB_PUSHED, struct.pack("<QI", 1, 0)),
    ],
)
def test_malformed_replies_are_refused(command: Command, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        lwp2.parse_answer(command, payload)


def test_what_cannot_be_sent_is_refused_before() -> None:
    for node in ("", "ä" * JOB_NODE_SIZE_MAX):
        with pytest.raises(LimitError, match="name of a worker"):
            JobClaim(TopicId(1), node, 1).encode()
    many = tuple(range(1, JOBS_MAX + 2))
    with pytest.raises(LimitError, match="1001 jobs"):
        JobAck(TopicId(1), "me", many, many).encode()
    with pytest.raises(InvalidInputError):
        JobNack(TopicId(1), "me", (1,), (1,), 2**32).encode()
    with pytest.raises(LimitError):
        JobPushUnique(TopicId(1), bytes(PAYLOAD_SIZE_MIN)).encode()


def test_version_1_refuses_queue_commands() -> None:
    for command in range(Command.JOB_CLAIM, Command.JOB_PUSHED + 1):
        with pytest.raises(ProtocolError):
            lwp1_requests.parse_request(command, claim())
