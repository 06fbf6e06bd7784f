"""Version 2 payloads of job queues. Version 1 has no such frames.

| code | frame              | bytes  | payload                                                                         |
|------|--------------------|--------|---------------------------------------------------------------------------------|
| 90   | JOB_CLAIM          | 24 + … | topic u32, count u32, lease_ms u32 (0: that of the topic), wait_ms u32,         |
|      |                    |        | flags u32 (1: the leases end with the connection), node length u32, node        |
| 91   | JOBS               | 16 + … | ready u64, lease_ms u32, count u32; then a row for each job, and one block with |
|      |                    |        | one record for each row (`wire/jobs/rows.py`)                                  |
| 92   | JOB_ACK            | 12 + … | topic u32, count u16, node length u16, 0 u32, node; then the jobs, each:        |
|      |                    |        | seq u64, lease_id u64                                                           |
| 93   | JOB_NACK           | 12 + … | the same with delay_ms u32 instead of 0                                         |
| 94   | JOB_EXTEND         | 12 + … | the same with lease_ms u32 instead of 0 (0: that of the topic)                  |
| 95   | JOB_OUTCOME        | 32 + … | changed u32, skipped count u32, ready u64, leased u64, deadline_ms u64; then    |
|      |                    |        | the skipped seqs, each u64                                                      |
| 96   | JOB_PEEK           | 8      | topic u32, count u32                                                            |
| 97   | QUEUE_COUNTS       | 8      | topic u32, 0 u32                                                                |
| 98   | QUEUE_COUNTS_REPLY | 40     | u64 each: ready, leased, delayed, dead_lettered, oldest_ms (the largest number: |
|      |                    |        | there is no job)                                                                |
| 99   | QUEUE_PURGE        | 8      | topic u32, 0 u32                                                                |
| 9A   | QUEUE_REDRIVE      | 8      | topic u32, count u32 (0: all)                                                   |
| 9B   | JOB_PUSH_UNIQUE    | 8 + …  | topic u32, 0 u32, then one plain block with one record, whose headers include   |
|      |                    |        | its unique key (`wire/jobs/options.py`)                                        |
| 9C   | JOB_PUSHED         | 16     | seq u64, flags u32 (1: the job is new), 0 u32                                   |

The answer to 90 and 96 is 91, to 92, 93 and 94 it is 95, to 97 it is 98, to 9B it is 9C. The answer to 99 and 9A is 65,
RECORDS_DELETED: how many jobs were deleted, or moved.

A payload is valid if it has exactly this length, zeros in fields specified as 0, no other flag, a count of at least 1
where 0 has no meaning, a node of 1 to `JOB_NODE_SIZE_MAX` bytes of UTF-8, rising seqs from 1, seqs and lease ids below
2^63, and in 91 as many records as rows. Other payloads are refused with error 04, more than `JOBS_MAX` jobs in 92, 93
or 94 with error 09; the connection stays open. Times and other counts above their limits are valid: the server uses
the limit instead.

This module must not know what a request does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import ClassVar, Final, TypeAlias

import numpy as np

from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.core.types import Seq, TopicId
from seawall.errors import LimitError
from seawall.kernels.codec.blocks import RECORDS_VERSION_2, scan_block
from seawall.limits import JOB_NODE_SIZE_MAX, JOBS_MAX, PAYLOAD_SIZE_MIN
from seawall.wire.format.codes import U64_MAX, ClaimFlags, Command, ErrorCode, Kind
from seawall.wire.format.fields import (
    Buffer,
    malformed,
    pack,
    read_flags,
    read_text,
    require_at_least,
    require_exact,
    require_zero,
    write_text,
)
from seawall.wire.format.frames import checksum, encode_header_v2
from seawall.wire.jobs.rows import JOB_ROW, ClaimedJobs

_CLAIM: Final = Struct("<6I")
_JOBS: Final = Struct("<QII")
_CHANGE: Final = Struct("<IHHI")
_OUTCOME: Final = Struct("<IIQQQ")
_TOPIC: Final = Struct("<II")
_COUNTS: Final = Struct("<5Q")
_PUSHED: Final = Struct("<QII")
_KEY_SIZE: Final = 16

assert (_CLAIM.size, _JOBS.size, _CHANGE.size, _OUTCOME.size) == (24, 16, 12, 32)

_IS_NEW: Final = 1
_NO_OFFSETS: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class JobClaim:
    """Lease jobs to a worker."""

    COMMAND: ClassVar[Command] = Command.JOB_CLAIM
    topic_id: TopicId
    node: str
    count: int
    lease_ms: int = 0
    wait_ms: int = 0
    flags: ClaimFlags = ClaimFlags.NONE

    def encode(self) -> bytes:
        """The payload."""
        node = _write_node(self.node)
        numbers = (self.topic_id, self.count, self.lease_ms, self.wait_ms, self.flags)
        return pack(_CLAIM, "JOB_CLAIM", *numbers, len(node)) + node


@dataclass(frozen=True, slots=True)
class Jobs:
    """Claimed jobs with their records, or the next ones of a queue without a lease."""

    COMMAND: ClassVar[Command] = Command.JOBS
    claimed: ClaimedJobs

    def encode(self) -> bytes:
        """The payload."""
        return self.prefix() + self.claimed.block

    def prefix(self) -> bytes:
        """The payload before the block."""
        rows = self.claimed.rows
        return pack(_JOBS, "JOBS", self.claimed.ready, self.claimed.lease_ms, rows.size) + rows.tobytes()


@dataclass(frozen=True, slots=True)
class JobChange:
    """Claimed jobs of a worker, in one of the commands below. The jobs have rising seqs."""

    topic_id: TopicId
    node: str
    seqs: tuple[int, ...]
    lease_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobAck(JobChange):
    """Delete jobs that are leased to the worker."""

    COMMAND: ClassVar[Command] = Command.JOB_ACK

    def encode(self) -> bytes:
        """The payload."""
        return _write_change("JOB_ACK", self, 0)


@dataclass(frozen=True, slots=True)
class JobNack(JobChange):
    """Return jobs, to be delivered again after a delay."""

    COMMAND: ClassVar[Command] = Command.JOB_NACK
    delay_ms: int = 0

    def encode(self) -> bytes:
        """The payload."""
        return _write_change("JOB_NACK", self, self.delay_ms)


@dataclass(frozen=True, slots=True)
class JobExtend(JobChange):
    """Let the leases of jobs end `lease_ms` from now."""

    COMMAND: ClassVar[Command] = Command.JOB_EXTEND
    lease_ms: int = 0

    def encode(self) -> bytes:
        """The payload."""
        return _write_change("JOB_EXTEND", self, self.lease_ms)


@dataclass(frozen=True, slots=True)
class JobOutcomeReply:
    """What an ack, a nack or an extension did."""

    COMMAND: ClassVar[Command] = Command.JOB_OUTCOME
    outcome: JobOutcome

    def encode(self) -> bytes:
        """The payload."""
        changed, skipped, *numbers = self.outcome
        return pack(_OUTCOME, "JOB_OUTCOME", changed, len(skipped), *numbers) + _write_numbers("skipped", skipped)


@dataclass(frozen=True, slots=True)
class JobPeek:
    """Ask for the jobs that would be claimed next."""

    COMMAND: ClassVar[Command] = Command.JOB_PEEK
    topic_id: TopicId
    count: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "JOB_PEEK", self.topic_id, self.count)


@dataclass(frozen=True, slots=True)
class QueueCountsRequest:
    """Ask for the jobs of a queue by their state."""

    COMMAND: ClassVar[Command] = Command.QUEUE_COUNTS
    topic_id: TopicId

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "QUEUE_COUNTS", self.topic_id, 0)


@dataclass(frozen=True, slots=True)
class QueueCountsReply:
    """The jobs of a queue by their state."""

    COMMAND: ClassVar[Command] = Command.QUEUE_COUNTS_REPLY
    counts: QueueCounts

    def encode(self) -> bytes:
        """The payload."""
        *numbers, oldest_ms = self.counts
        return pack(_COUNTS, "QUEUE_COUNTS_REPLY", *numbers, U64_MAX if oldest_ms is None else oldest_ms)


@dataclass(frozen=True, slots=True)
class QueuePurge:
    """Delete all jobs that are not leased."""

    COMMAND: ClassVar[Command] = Command.QUEUE_PURGE
    topic_id: TopicId

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "QUEUE_PURGE", self.topic_id, 0)


@dataclass(frozen=True, slots=True)
class QueueRedrive:
    """Move dead letters back to the queues that they came from: the oldest `count`, or all if it is 0."""

    COMMAND: ClassVar[Command] = Command.QUEUE_REDRIVE
    topic_id: TopicId
    count: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "QUEUE_REDRIVE", self.topic_id, self.count)


@dataclass(frozen=True, slots=True)
class JobPushUnique:
    """Append the job of a block, unless one with the same unique key is ready, leased or delayed."""

    COMMAND: ClassVar[Command] = Command.JOB_PUSH_UNIQUE
    topic_id: TopicId
    block: Buffer = field(repr=False)

    def encode(self) -> bytes:
        """The payload."""
        size = _TOPIC.size + len(self.block)
        if size > PAYLOAD_SIZE_MIN:
            raise LimitError(f"a job of {size} bytes: one request has at most {PAYLOAD_SIZE_MIN}")
        return pack(_TOPIC, "JOB_PUSH_UNIQUE", self.topic_id, 0) + self.block


@dataclass(frozen=True, slots=True)
class JobPushed:
    """The job with the unique key, and whether it is new."""

    COMMAND: ClassVar[Command] = Command.JOB_PUSHED
    seq: Seq
    is_new: bool

    def encode(self) -> bytes:
        """The payload."""
        return pack(_PUSHED, "JOB_PUSHED", self.seq, _IS_NEW if self.is_new else 0, 0)


JobRequest: TypeAlias = (
    JobClaim | JobAck | JobNack | JobExtend | JobPeek | QueueCountsRequest | QueuePurge | QueueRedrive | JobPushUnique
)
JobAnswer: TypeAlias = Jobs | JobOutcomeReply | QueueCountsReply | JobPushed


def encode_jobs(claimed: ClaimedJobs, *, request_id: int) -> tuple[bytes, memoryview]:
    """The frame of JOBS in two pieces: the block is not copied."""
    prefix = Jobs(claimed).prefix()
    header = encode_header_v2(
        Kind.CONTROL,
        Command.JOBS,
        request_id=request_id,
        record_count=claimed.rows.size,
        payload_length=len(prefix) + len(claimed.block),
        payload_crc=checksum(claimed.block, checksum(prefix)),
    )
    return header + prefix, claimed.block


def parse_job_claim(payload: Buffer) -> JobClaim:
    """Parse a client's JOB_CLAIM."""
    what = "JOB_CLAIM"
    require_at_least(_CLAIM.size, what, payload)
    topic_id, count, lease_ms, wait_ms, flags, node_length = _CLAIM.unpack_from(payload)
    _require_count(what, count)
    _require_length(what, payload, _CLAIM.size + node_length)
    node = _read_node(payload[_CLAIM.size :])
    return JobClaim(topic_id, node, count, lease_ms, wait_ms, read_flags(ClaimFlags, flags, what))


def parse_jobs(payload: Buffer) -> Jobs:
    """Parse a server's JOBS; its rows and its block are views of the payload."""
    what = "JOBS"
    require_at_least(_JOBS.size, what, payload)
    ready, lease_ms, count = _JOBS.unpack_from(payload)
    if count > JOBS_MAX:
        raise malformed(f"{what}: {count} jobs, at most {JOBS_MAX}")
    end = _JOBS.size + count * JOB_ROW.itemsize
    require_at_least(end, what, payload)
    rows = np.frombuffer(payload, JOB_ROW, count, _JOBS.size)
    require_zero(what, int(rows["zero"].any()))
    block = memoryview(payload)[end:]
    found = scan_block(np.frombuffer(block, np.uint8), 0, len(block), RECORDS_VERSION_2, JOBS_MAX, _NO_OFFSETS)
    if found != count:
        raise malformed(f"{what}: {count} rows, but the block does not have as many records ({found})")
    return Jobs(ClaimedJobs(rows, block, ready, lease_ms))


def parse_job_ack(payload: Buffer) -> JobAck:
    """Parse a client's JOB_ACK."""
    what = "JOB_ACK"
    topic_id, node, seqs, lease_ids, reserved = _read_change(what, payload)
    require_zero(what, reserved)
    return JobAck(topic_id, node, seqs, lease_ids)


def parse_job_nack(payload: Buffer) -> JobNack:
    """Parse a client's JOB_NACK."""
    return JobNack(*_read_change("JOB_NACK", payload))


def parse_job_extend(payload: Buffer) -> JobExtend:
    """Parse a client's JOB_EXTEND."""
    return JobExtend(*_read_change("JOB_EXTEND", payload))


def parse_job_outcome(payload: Buffer) -> JobOutcomeReply:
    """Parse a server's JOB_OUTCOME."""
    what = "JOB_OUTCOME"
    require_at_least(_OUTCOME.size, what, payload)
    changed, count, ready, leased, deadline_ms = _OUTCOME.unpack_from(payload)
    _require_length(what, payload, _OUTCOME.size + count * 8)
    return JobOutcomeReply(JobOutcome(changed, _read_numbers(payload[_OUTCOME.size :]), ready, leased, deadline_ms))


def parse_job_peek(payload: Buffer) -> JobPeek:
    """Parse a client's JOB_PEEK."""
    require_exact(_TOPIC, "JOB_PEEK", payload)
    topic_id, count = _TOPIC.unpack(payload)
    _require_count("JOB_PEEK", count)
    return JobPeek(topic_id, count)


def parse_queue_counts(payload: Buffer) -> QueueCountsRequest:
    """Parse a client's QUEUE_COUNTS."""
    return QueueCountsRequest(_read_topic("QUEUE_COUNTS", payload))


def parse_queue_counts_reply(payload: Buffer) -> QueueCountsReply:
    """Parse a server's QUEUE_COUNTS_REPLY."""
    require_exact(_COUNTS, "QUEUE_COUNTS_REPLY", payload)
    ready, leased, delayed, dead_lettered, oldest_ms = _COUNTS.unpack(payload)
    oldest = None if oldest_ms == U64_MAX else oldest_ms
    return QueueCountsReply(QueueCounts(ready, leased, delayed, dead_lettered, oldest))


def parse_queue_purge(payload: Buffer) -> QueuePurge:
    """Parse a client's QUEUE_PURGE."""
    return QueuePurge(_read_topic("QUEUE_PURGE", payload))


def parse_queue_redrive(payload: Buffer) -> QueueRedrive:
    """Parse a client's QUEUE_REDRIVE."""
    require_exact(_TOPIC, "QUEUE_REDRIVE", payload)
    return QueueRedrive(*_TOPIC.unpack(payload))


def parse_job_push_unique(payload: Buffer) -> JobPushUnique:
    """Parse a client's JOB_PUSH_UNIQUE; its block is a view of the payload. This module does not parse the record."""
    what = "JOB_PUSH_UNIQUE"
    require_at_least(_TOPIC.size + 1, what, payload)
    topic_id, reserved = _TOPIC.unpack_from(payload)
    require_zero(what, reserved)
    return JobPushUnique(topic_id, memoryview(payload)[_TOPIC.size :])


def parse_job_pushed(payload: Buffer) -> JobPushed:
    """Parse a server's JOB_PUSHED."""
    what = "JOB_PUSHED"
    require_exact(_PUSHED, what, payload)
    seq, flags, reserved = _PUSHED.unpack(payload)
    require_zero(what, reserved)
    if not seq or flags & ~_IS_NEW:
        raise malformed(f"{what}: seq {seq} with flags {flags:#x}; seqs begin at 1")
    return JobPushed(seq, bool(flags & _IS_NEW))


def _write_node(node: str) -> bytes:
    data = write_text(node, JOB_NODE_SIZE_MAX, "name of a worker")
    if not data:
        raise LimitError(f"the name of a worker is empty: 1 to {JOB_NODE_SIZE_MAX} bytes are allowed")
    return data


def _read_node(data: Buffer) -> str:
    if not 1 <= len(data) <= JOB_NODE_SIZE_MAX:
        raise malformed(f"name of a worker: {len(data)} bytes, 1 to {JOB_NODE_SIZE_MAX} are allowed")
    return read_text(data, "name of a worker")


def _write_change(what: str, jobs: JobChange, number: int) -> bytes:
    node, count = _write_node(jobs.node), len(jobs.seqs)
    if not 1 <= count <= JOBS_MAX:
        raise LimitError(f"{what}: {count} jobs, 1 to {JOBS_MAX} are allowed")
    keys = [0] * (2 * count)
    keys[::2], keys[1::2] = jobs.seqs, jobs.lease_ids
    return pack(_CHANGE, what, jobs.topic_id, count, len(node), number) + node + _write_numbers(what, keys)


def _read_change(what: str, payload: Buffer) -> tuple[TopicId, str, tuple[int, ...], tuple[int, ...], int]:
    require_at_least(_CHANGE.size, what, payload)
    topic_id, count, node_length, number = _CHANGE.unpack_from(payload)
    if count > JOBS_MAX:
        raise malformed(f"{what}: {count} jobs, at most {JOBS_MAX}", ErrorCode.LIMIT)
    _require_count(what, count)
    end = _CHANGE.size + node_length
    _require_length(what, payload, end + count * _KEY_SIZE)
    node = _read_node(payload[_CHANGE.size : end])
    keys = _read_numbers(payload[end:])
    seqs = keys[::2]
    if any(first >= second for first, second in pairwise((0, *seqs))) or max(keys) >> 63:
        raise malformed(f"{what}: the seqs of jobs begin at 1 and rise; seqs and lease ids are below 2^63")
    return topic_id, node, seqs, keys[1::2], number


def _read_topic(what: str, payload: Buffer) -> TopicId:
    require_exact(_TOPIC, what, payload)
    topic_id, reserved = _TOPIC.unpack(payload)
    require_zero(what, reserved)
    return TopicId(topic_id)


def _require_count(what: str, count: int) -> None:
    if not count:
        raise malformed(f"{what}: no jobs, at least 1")


def _require_length(what: str, payload: Buffer, size: int) -> None:
    if len(payload) != size:
        raise malformed(f"{what}: payload has {len(payload)} bytes, must have {size}")


def _write_numbers(what: str, numbers: tuple[int, ...] | list[int]) -> bytes:
    return pack(Struct(f"<{len(numbers)}Q"), what, *numbers)


def _read_numbers(data: Buffer) -> tuple[int, ...]:
    return Struct(f"<{len(data) // 8}Q").unpack(data)
