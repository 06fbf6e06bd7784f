"""Version 2 payloads of transactions: staging, commit, abort and status. Version 1 has no such frames.

| code | frame              | bytes  | payload                                                                         |
|------|--------------------|--------|---------------------------------------------------------------------------------|
| 66   | STAGING_FIND       | 4      | flags u32 (1 use a staging partition: for bulk writers)                         |
| 67   | TRANSACTION_COMMIT | 24 + … | epoch u64, owner length u16, topic count u16, part count u32, offset count u32, |
|      |                    |        | ack count u32, owner; topics, each: name length u16, name; parts, each: topic   |
|      |                    |        | u32, 0 u32, first seq u64, last seq u64; offsets, each: topic u32, owner length |
|      |                    |        | u16, 0 u16, next_seq u64, owner; acks, each: topic u32, job count u32, node     |
|      |                    |        | length u16, 0 u16, 0 u32, node, then for each job its seq u64 and lease id u64  |
| 68   | TRANSACTION_STATUS | 32 + … | epoch u64, position u64, timestamp_ns u64, flags u8 (1 there is one, 2 it was   |
|      |                    |        | committed before), 0 u8, owner length u16, span count u32, owner; spans, each:  |
|      |                    |        | name length u16, 0 u16, 0 u32, first seq u64, records u64, name                 |
| 69   | TRANSACTION_ABORT  | 8 + …  | count u32, 0 u32, then ranges of staged seqs: first u64, last u64               |
| 6A   | TRANSACTION_STATE  | …      | owner                                                                           |

The answer to 66 is 80, the topic to stage records in; batches are published there as to any topic. It is `_staging`, or
with flag 1 the next one of the staging partitions `_staging.1`, `_staging.2` and so on. A seq of a staging partition is
sent as the number of the partition times 2^48 plus the seq. The answer to 67 and 6A is 68, the answer to 69 is 65. The
topic of a part, an offset or an ack is its index among the topics, from 0. An ack finishes jobs that its node has
claimed.

A payload is valid if it has exactly this length, zeros in fields specified as 0, topic indexes in range, and no count
above the limits of a transaction; without its first flag 68 has nothing but the owner. Other payloads are refused with
error 04; the connection stays open.

This module must not know what is staged, nor which clients commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import ClassVar, Final, TypeAlias

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
from seawall.core.types import Position, Seq, TimestampNs
from seawall.errors import LimitError
from seawall.wire.format.codes import Command
from seawall.wire.format.fields import Buffer, malformed, pack, read_text, require_at_least, require_zero, write_text

_COMMIT: Final = Struct("<QHHIII")
_LENGTH: Final = Struct("<H")
_PART: Final = Struct("<IIQQ")
_OFFSET: Final = Struct("<IHHQ")
_ACK: Final = Struct("<IIHHI")
_JOB: Final = Struct("<QQ")
_STATUS: Final = Struct("<QQQBBHI")
_SPAN: Final = Struct("<HHIQQ")
_FIND: Final = Struct("<I")
_RANGES: Final = Struct("<II")
_RANGE: Final = Struct("<QQ")

assert (_COMMIT.size, _STATUS.size, _RANGES.size) == (24, 32, 8)

_USE_PARTITION: Final = 1
_EXISTS: Final = 1
_IS_REPEATED: Final = 2

#: Topics that a commit names: those that it writes, and those of its offsets.
_TOPICS_MAX: Final = limits.TRANSACTION_TOPICS_MAX + limits.TRANSACTION_CURSORS_MAX + limits.TRANSACTION_ACKS_MAX


@dataclass(frozen=True, slots=True)
class StagingFind:
    """Ask for the topic to stage records in, or for a staging partition; the server creates it if necessary."""

    COMMAND: ClassVar[Command] = Command.STAGING_FIND
    own_partition: bool = False

    def encode(self) -> bytes:
        """The payload."""
        return _FIND.pack(_USE_PARTITION if self.own_partition else 0)


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    """Commit a transaction: publish its staged records."""

    COMMAND: ClassVar[Command] = Command.TRANSACTION_COMMIT
    wanted: WantedTransaction

    def encode(self) -> bytes:
        """The payload."""
        wanted = self.wanted
        named: list[StagedPart | OffsetCommit | JobAck] = [*wanted.parts, *wanted.offsets, *wanted.acks]
        names = dict.fromkeys(each.topic for each in named)
        indexes = {name: index for index, name in enumerate(names)}
        counts = (len(names), len(wanted.parts), len(wanted.offsets), len(wanted.acks))
        _require_bounds(*counts)
        owner = write_text(wanted.owner, limits.TRANSACTION_OWNER_SIZE_MAX, "owner")
        pieces = [pack(_COMMIT, "TRANSACTION_COMMIT", wanted.epoch, len(owner), *counts), owner]
        for name in names:
            text = write_text(name, limits.TOPIC_NAME_SIZE_MAX, "topic")
            pieces += (_LENGTH.pack(len(text)), text)
        pieces += [pack(_PART, "part", indexes[part.topic], 0, *part.staged) for part in wanted.parts]
        for offset in wanted.offsets:
            text = write_text(offset.owner, limits.CURSOR_OWNER_SIZE_MAX, "owner")
            pieces += (pack(_OFFSET, "offset", indexes[offset.topic], len(text), 0, offset.next_seq), text)
        for ack in wanted.acks:
            text = write_text(ack.node, limits.JOB_NODE_SIZE_MAX, "node")
            pieces += (pack(_ACK, "ack", indexes[ack.topic], len(ack.seqs), len(text), 0, 0), text)
            pieces += [pack(_JOB, "job", *job) for job in zip(ack.seqs, ack.lease_ids, strict=True)]
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """The last transaction of an owner, or that there is none."""

    COMMAND: ClassVar[Command] = Command.TRANSACTION_STATUS
    owner: str
    committed: CommittedTransaction | None

    def encode(self) -> bytes:
        """The payload."""
        owner = write_text(self.owner, limits.TRANSACTION_OWNER_SIZE_MAX, "owner")
        committed = self.committed
        if committed is None:
            return pack(_STATUS, "TRANSACTION_STATUS", 0, 0, 0, 0, 0, len(owner), 0) + owner
        flags = _EXISTS | (_IS_REPEATED if committed.is_repeated else 0)
        counts = (len(owner), len(committed.spans))
        numbers = (committed.epoch, committed.position, committed.timestamp_ns, flags, 0, *counts)
        pieces = [pack(_STATUS, "TRANSACTION_STATUS", *numbers), owner]
        for span in committed.spans:
            text = write_text(span.topic, limits.TOPIC_NAME_SIZE_MAX, "topic")
            pieces += (pack(_SPAN, "span", len(text), 0, 0, span.first_seq, span.record_count), text)
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class TransactionAbort:
    """Delete staged records that will not be committed."""

    COMMAND: ClassVar[Command] = Command.TRANSACTION_ABORT
    ranges: tuple[StagedRange, ...]

    def encode(self) -> bytes:
        """The payload."""
        _require_bounds(0, len(self.ranges), 0)
        pieces = [_RANGES.pack(len(self.ranges), 0), *(pack(_RANGE, "range", *each) for each in self.ranges)]
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class TransactionState:
    """Ask for the last transaction of an owner."""

    COMMAND: ClassVar[Command] = Command.TRANSACTION_STATE
    owner: str

    def encode(self) -> bytes:
        """The payload."""
        return write_text(self.owner, limits.TRANSACTION_OWNER_SIZE_MAX, "owner")


TransactionRequest: TypeAlias = StagingFind | TransactionCommit | TransactionAbort | TransactionState


def parse_staging_find(payload: Buffer) -> StagingFind:
    """Parse a client's STAGING_FIND."""
    fields = _Fields(payload, "STAGING_FIND")
    (flags,) = fields.take(_FIND)
    fields.end()
    if flags & ~_USE_PARTITION:
        raise malformed(f"{fields.what}: flags {flags:#x}")
    return StagingFind(bool(flags & _USE_PARTITION))


def parse_transaction_commit(payload: Buffer) -> TransactionCommit:
    """Parse a client's TRANSACTION_COMMIT."""
    fields = _Fields(payload, "TRANSACTION_COMMIT")
    epoch, owner_length, topics, parts, offsets, acks = fields.take(_COMMIT)
    if problem := _bounds_problem(topics, parts, offsets, acks):
        raise malformed(f"{fields.what}: {problem}")
    owner = fields.text(owner_length, limits.TRANSACTION_OWNER_SIZE_MAX)
    names = [fields.text(fields.take(_LENGTH)[0], limits.TOPIC_NAME_SIZE_MAX) for _ in range(topics)]
    found_parts = []
    for _ in range(parts):
        topic, reserved, first_seq, last_seq = fields.take(_PART)
        require_zero(fields.what, reserved)
        found_parts.append(StagedPart(_name_at(names, topic), StagedRange(Seq(first_seq), Seq(last_seq))))
    found_offsets = []
    for _ in range(offsets):
        topic, length, reserved, next_seq = fields.take(_OFFSET)
        require_zero(fields.what, reserved)
        reader = fields.text(length, limits.CURSOR_OWNER_SIZE_MAX)
        found_offsets.append(OffsetCommit(reader, _name_at(names, topic), Seq(next_seq)))
    found_acks = tuple(_take_ack(fields, names) for _ in range(acks))
    fields.end()
    return TransactionCommit(WantedTransaction(owner, epoch, tuple(found_parts), tuple(found_offsets), found_acks))


def _take_ack(fields: _Fields, names: list[str]) -> JobAck:
    topic, count, length, zero, reserved = fields.take(_ACK)
    require_zero(fields.what, zero, reserved)
    node = fields.text(length, limits.JOB_NODE_SIZE_MAX)
    if not node or not 1 <= count <= limits.JOBS_MAX:
        raise malformed(f"{fields.what}: an ack of {count} jobs by {node!r}; 1 to {limits.JOBS_MAX}, by a named node")
    jobs = [fields.take(_JOB) for _ in range(count)]
    seqs, lease_ids = zip(*jobs, strict=True)
    if any(after <= before for before, after in pairwise(seqs)) or not seqs[0] or max(*seqs, *lease_ids) >> 63:
        raise malformed(f"{fields.what}: the seqs of an ack must rise from 1, and all numbers be below 2^63")
    return JobAck(_name_at(names, topic), node, seqs, lease_ids)


def parse_transaction_status(payload: Buffer) -> TransactionStatus:
    """Parse a server's TRANSACTION_STATUS."""
    fields = _Fields(payload, "TRANSACTION_STATUS")
    epoch, position, timestamp_ns, flags, reserved, owner_length, count = fields.take(_STATUS)
    require_zero(fields.what, reserved)
    is_empty = not (flags or epoch or position or timestamp_ns or count)
    if flags & ~(_EXISTS | _IS_REPEATED) or not (flags & _EXISTS or is_empty):
        raise malformed(f"{fields.what}: flags {flags:#04x} with {count} spans")
    if count > limits.TRANSACTION_TOPICS_MAX:
        raise malformed(f"{fields.what}: {count} spans, at most {limits.TRANSACTION_TOPICS_MAX}")
    owner = fields.text(owner_length, limits.TRANSACTION_OWNER_SIZE_MAX)
    spans = []
    for _ in range(count):
        length, zero, reserved, first_seq, records = fields.take(_SPAN)
        require_zero(fields.what, zero, reserved)
        spans.append(TopicSpan(fields.text(length, limits.TOPIC_NAME_SIZE_MAX), Seq(first_seq), records))
    fields.end()
    if not flags & _EXISTS:
        return TransactionStatus(owner, None)
    numbers = (owner, epoch, Position(position), TimestampNs(timestamp_ns))
    return TransactionStatus(
        owner, CommittedTransaction(*numbers, tuple(spans), is_repeated=bool(flags & _IS_REPEATED))
    )


def parse_transaction_abort(payload: Buffer) -> TransactionAbort:
    """Parse a client's TRANSACTION_ABORT."""
    fields = _Fields(payload, "TRANSACTION_ABORT")
    count, reserved = fields.take(_RANGES)
    require_zero(fields.what, reserved)
    if problem := _bounds_problem(0, count, 0):
        raise malformed(f"{fields.what}: {problem}")
    ranges = tuple(StagedRange(*map(Seq, fields.take(_RANGE))) for _ in range(count))
    fields.end()
    return TransactionAbort(ranges)


def parse_transaction_state(payload: Buffer) -> TransactionState:
    """Parse a client's TRANSACTION_STATE."""
    fields = _Fields(payload, "TRANSACTION_STATE")
    return TransactionState(fields.text(len(payload), limits.TRANSACTION_OWNER_SIZE_MAX))


class _Fields:
    """Reads the fields of a payload from start to end."""

    def __init__(self, payload: Buffer, what: str) -> None:
        self._payload = payload
        self._at = 0
        self.what = what

    def take(self, layout: Struct) -> tuple[int, ...]:
        """The next fields."""
        require_at_least(self._at + layout.size, self.what, self._payload)
        found = layout.unpack_from(self._payload, self._at)
        self._at += layout.size
        return found

    def text(self, length: int, size_max: int) -> str:
        """The next text, of `length` bytes."""
        if length > size_max:
            raise malformed(f"{self.what}: a text of {length} bytes, at most {size_max}")
        require_at_least(self._at + length, self.what, self._payload)
        found = self._payload[self._at : self._at + length]
        self._at += length
        return read_text(found, self.what)

    def end(self) -> None:
        """Refuse a payload with further bytes."""
        if self._at != len(self._payload):
            raise malformed(f"{self.what}: {len(self._payload) - self._at} bytes after its end")


def _name_at(names: list[str], index: int) -> str:
    if index >= len(names):
        raise malformed(f"TRANSACTION_COMMIT: topic {index} of {len(names)}")
    return names[index]


def _bounds_problem(topics: int, parts: int, offsets: int, acks: int = 0) -> str:
    for count, bound, what in (
        (topics, _TOPICS_MAX, "topics"),
        (parts, limits.TRANSACTION_BATCHES_MAX, "ranges"),
        (offsets, limits.TRANSACTION_CURSORS_MAX, "offsets"),
        (acks, limits.TRANSACTION_ACKS_MAX, "acks"),
    ):
        if count > bound:
            return f"{count} {what}, at most {bound}"
    return ""


def _require_bounds(topics: int, parts: int, offsets: int, acks: int = 0) -> None:
    if problem := _bounds_problem(topics, parts, offsets, acks):
        raise LimitError(f"a transaction of {problem}")
