"""Version 2 payloads of fetches, gaps, cursors and topic bounds.

| frame            | bytes     | payload                                                                               |
|------------------|-----------|---------------------------------------------------------------------------------------|
| FETCH            | 32 or 48  | topic u32, by u8, flags u8, wait_ms u16, start u64, max_bytes u32, max_records u32,   |
|                  |           | min_bytes u32, 0 u32; to continue within a position: topic u32, 0 u32, seq u64        |
| FETCH_DATA, DATA | 48 + …    | topic u32, flags u8, 0 u8, chunk count u16, first_seq u64, next_seq u64,              |
|                  |           | next_position u64, end_seq u64 (exclusive), floor_seq u64; then whole stored batches  |
| GAP              | 48        | topic u32, reason u8, unit u8, 0 u16, from u64, to u64 (inclusive), client_id u64,    |
|                  |           | position u64, at_ns u64                                                               |
| COMMIT, COMMITTED| 32        | topic u32, 0 u32, consumer u64, topic_epoch u64, seq u64 (next to read)               |
| BOUNDS           | 8         | topic u32, 0 u32                                                                      |
| BOUNDS_REPLY     | 64        | u64 each: floor_seq, end_seq, ordered_end_seq, first_position, end_position,          |
|                  |           | floor_offset, end_offset, topic_epoch                                                 |

A payload is valid if it has exactly this length, zeros in fields specified as 0, known flags and codes, and if:
- wait_ms is at most 30,000;
- a read of all topics starts by position, time, earliest or latest, not by a number that only one topic has;
- a committed start names a consumer (in FETCH, `start` is the consumer);
- first_seq is not above next_seq, nor `from` above `to`;
- only a read of all topics by position continues within a position: it skips topics with lower ids, and lower seqs of
  the given topic.
Other payloads are refused with error 04; the connection stays open.

Chunks are batches as stored on disk. Each has its own checksums, so the frame has none for them. A damaged chunk raises
`ChecksumError` or `CorruptionError`, as it would when read from the disk.

This module must not know topics or cursors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, NamedTuple

from seawall.core.types import ClientId, Offset, Position, Seq, TimestampNs, TopicEpoch, TopicId
from seawall.errors import InvalidInputError
from seawall.limits import FETCH_DATA_HEADER_SIZE, FETCH_WAIT_MS_MAX
from seawall.wire.format.batches import BatchHeader, iter_batches
from seawall.wire.format.codes import ALL_TOPICS, Command, DataFlags, GapReason, GapUnit, ReadBy, ReadFlags
from seawall.wire.format.fields import (
    Buffer,
    malformed,
    pack,
    read_enum,
    read_flags,
    require_at_least,
    require_exact,
    require_zero,
)

_FETCH: Final = Struct("<IBBHQIIII")
_WITHIN: Final = Struct("<IIQ")
_DATA: Final = Struct("<IBBHQQQQQ")
_GAP: Final = Struct("<IBBHQQQQQ")
_COMMIT: Final = Struct("<IIQQQ")
_BOUNDS: Final = Struct("<II")
_BOUNDS_REPLY: Final = Struct("<8Q")

assert _DATA.size == FETCH_DATA_HEADER_SIZE
assert (_FETCH.size, _WITHIN.size, _GAP.size) == (32, 16, 48)
assert (_COMMIT.size, _BOUNDS.size, _BOUNDS_REPLY.size) == (32, 8, 64)

#: Starts that have a meaning in one topic only.
_ONE_TOPIC_ONLY: Final = frozenset({ReadBy.SEQ, ReadBy.OFFSET, ReadBy.COMMITTED})


class Within(NamedTuple):
    """Where to continue in a position that several batches share: topics with lower ids were read completely, and this
    topic up to the seq."""

    topic_id: TopicId
    seq: Seq


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request batches once; `by` is the unit of `start`, which is the consumer if that is COMMITTED."""

    COMMAND: ClassVar[Command] = Command.FETCH
    topic_id: TopicId
    by: ReadBy
    start: int
    max_bytes: int
    max_records: int
    min_bytes: int = 0
    wait_ms: int = 0
    flags: ReadFlags = ReadFlags.NONE
    within: Within | None = None

    def has_same_start(self, other: Fetch) -> bool:
        """True if its response starts at the same point as the other's, and has the same form."""
        ours, theirs = ((each.topic_id, each.by, each.start, each.flags, each.within) for each in (self, other))
        return ours == theirs

    def encode(self) -> bytes:
        """The payload."""
        if problem := _fetch_problem(self):
            raise InvalidInputError(f"FETCH: {problem}")
        tail = b"" if self.within is None else pack(_WITHIN, "FETCH", self.within.topic_id, 0, self.within.seq)
        fixed = pack(
            _FETCH,
            "FETCH",
            self.topic_id,
            self.by,
            self.flags,
            self.wait_ms,
            self.start,
            self.max_bytes,
            self.max_records,
            self.min_bytes,
            0,
        )
        return fixed + tail


class DataPrefix(NamedTuple):
    """The fixed fields of FETCH_DATA and DATA before their chunks."""

    topic_id: TopicId
    flags: DataFlags
    chunk_count: int
    first_seq: Seq
    next_seq: Seq
    next_position: Position
    end_seq: Seq
    floor_seq: Seq

    def encode(self) -> bytes:
        """The 48 bytes before the chunks, which follow in buffers of their own or by `sendfile`."""
        if self.first_seq > self.next_seq:
            raise InvalidInputError(f"data: first_seq {self.first_seq} is above next_seq {self.next_seq}")
        return pack(
            _DATA,
            "data",
            self.topic_id,
            self.flags,
            0,
            self.chunk_count,
            self.first_seq,
            self.next_seq,
            self.next_position,
            self.end_seq,
            self.floor_seq,
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """A range that is lost for good, both ends included; reading continues at `last` + 1."""

    COMMAND: ClassVar[Command] = Command.GAP
    topic_id: TopicId
    reason: GapReason
    unit: GapUnit
    first: int
    last: int
    client_id: ClientId
    position: Position
    at_ns: TimestampNs

    def encode(self) -> bytes:
        """The payload."""
        if self.first > self.last:
            raise InvalidInputError(f"GAP: from {self.first} is above to {self.last}")
        return pack(
            _GAP,
            "GAP",
            self.topic_id,
            self.reason,
            self.unit,
            0,
            self.first,
            self.last,
            self.client_id,
            self.position,
            self.at_ns,
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """Store a cursor: the next seq that a consumer will read."""

    COMMAND: ClassVar[Command] = Command.COMMIT
    topic_id: TopicId
    consumer: int
    topic_epoch: TopicEpoch
    seq: Seq

    def encode(self) -> bytes:
        """The payload."""
        return pack(_COMMIT, "COMMIT", self.topic_id, 0, self.consumer, self.topic_epoch, self.seq)


@dataclass(frozen=True, slots=True)
class Committed:
    """The cursor that is now stored durably."""

    COMMAND: ClassVar[Command] = Command.COMMITTED
    topic_id: TopicId
    consumer: int
    topic_epoch: TopicEpoch
    seq: Seq

    def encode(self) -> bytes:
        """The payload."""
        return pack(_COMMIT, "COMMITTED", self.topic_id, 0, self.consumer, self.topic_epoch, self.seq)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Ask for the start and the end of a topic."""

    COMMAND: ClassVar[Command] = Command.BOUNDS
    topic_id: TopicId

    def encode(self) -> bytes:
        """The payload."""
        return pack(_BOUNDS, "BOUNDS", self.topic_id, 0)


@dataclass(frozen=True, slots=True)
class BoundsReply:
    """The start and the end of a topic, as seqs, positions and offsets."""

    COMMAND: ClassVar[Command] = Command.BOUNDS_REPLY
    floor_seq: Seq
    end_seq: Seq
    ordered_end_seq: Seq
    first_position: Position
    end_position: Position
    floor_offset: Offset
    end_offset: Offset
    topic_epoch: TopicEpoch

    def encode(self) -> bytes:
        """The payload."""
        return pack(
            _BOUNDS_REPLY,
            "BOUNDS_REPLY",
            self.floor_seq,
            self.end_seq,
            self.ordered_end_seq,
            self.first_position,
            self.end_position,
            self.floor_offset,
            self.end_offset,
            self.topic_epoch,
        )


def parse_fetch(payload: Buffer) -> Fetch:
    """Parse FETCH."""
    fixed, tail = payload[: _FETCH.size], payload[_FETCH.size :]
    require_exact(_FETCH, "FETCH", fixed)
    topic_id, by, flags, wait_ms, start, max_bytes, max_records, min_bytes, reserved = _FETCH.unpack(fixed)
    require_zero("FETCH", reserved)
    within = None
    if len(tail):
        require_exact(_WITHIN, "FETCH", tail)
        within_topic, reserved, seq = _WITHIN.unpack(tail)
        require_zero("FETCH", reserved)
        within = Within(within_topic, seq)
    fetch = Fetch(
        topic_id,
        read_enum(ReadBy, by, "FETCH by"),
        start,
        max_bytes,
        max_records,
        min_bytes,
        wait_ms,
        read_flags(ReadFlags, flags, "FETCH"),
        within,
    )
    if problem := _fetch_problem(fetch):
        raise malformed(f"FETCH: {problem}")
    return fetch


def parse_data_prefix(payload: Buffer) -> DataPrefix:
    """Parse the fixed fields of FETCH_DATA or DATA."""
    require_at_least(_DATA.size, "data", payload)
    topic_id, flags, reserved, chunk_count, first_seq, next_seq, *rest = _DATA.unpack_from(payload)
    require_zero("data", reserved)
    if first_seq > next_seq:
        raise malformed(f"data: first_seq {first_seq} is above next_seq {next_seq}")
    return DataPrefix(topic_id, read_flags(DataFlags, flags, "data"), chunk_count, first_seq, next_seq, *rest)


def iter_chunks(payload: Buffer, record_count: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each batch of FETCH_DATA or DATA with its stored block; both checksums of each are verified.

    After the last one the number of chunks and records is checked against the frame.
    """
    prefix = parse_data_prefix(payload)
    chunks = records = 0
    for header, block in iter_batches(memoryview(payload)[_DATA.size :]):
        chunks += 1
        records += header.record_count
        yield header, block
    if (chunks, records) != (prefix.chunk_count, record_count):
        raise malformed(
            f"data: {chunks} chunks with {records} records, the frame says {prefix.chunk_count} with {record_count}"
        )


def parse_gap(payload: Buffer) -> Gap:
    """Parse GAP; gaps are sent in order with the data."""
    require_exact(_GAP, "GAP", payload)
    topic_id, reason, unit, reserved, first, last, *rest = _GAP.unpack(payload)
    require_zero("GAP", reserved)
    if first > last:
        raise malformed(f"GAP: from {first} is above to {last}")
    return Gap(
        topic_id, read_enum(GapReason, reason, "GAP reason"), read_enum(GapUnit, unit, "GAP unit"), first, last, *rest
    )


def parse_commit(payload: Buffer) -> Commit:
    """Parse COMMIT."""
    return Commit(*_parse_cursor(payload, "COMMIT"))


def parse_committed(payload: Buffer) -> Committed:
    """Parse the answer to COMMIT."""
    return Committed(*_parse_cursor(payload, "COMMITTED"))


def parse_bounds(payload: Buffer) -> Bounds:
    """Parse BOUNDS."""
    require_exact(_BOUNDS, "BOUNDS", payload)
    topic_id, reserved = _BOUNDS.unpack(payload)
    require_zero("BOUNDS", reserved)
    return Bounds(topic_id)


def parse_bounds_reply(payload: Buffer) -> BoundsReply:
    """Parse the answer to BOUNDS."""
    require_exact(_BOUNDS_REPLY, "BOUNDS_REPLY", payload)
    return BoundsReply(*_BOUNDS_REPLY.unpack(payload))


def _parse_cursor(payload: Buffer, what: str) -> tuple[TopicId, int, TopicEpoch, Seq]:
    require_exact(_COMMIT, what, payload)
    topic_id, reserved, consumer, topic_epoch, seq = _COMMIT.unpack(payload)
    require_zero(what, reserved)
    return topic_id, consumer, topic_epoch, seq


def _fetch_problem(fetch: Fetch) -> str | None:
    """What is wrong with a fetch, or None; for encoding and parsing."""
    if fetch.wait_ms > FETCH_WAIT_MS_MAX:
        return f"wait_ms {fetch.wait_ms}, at most {FETCH_WAIT_MS_MAX}"
    if fetch.within is not None and (fetch.topic_id, fetch.by) != (ALL_TOPICS, ReadBy.POSITION):
        return "only a read of all topics by position continues within a position"
    return start_problem(fetch.topic_id, fetch.by, fetch.start)


def start_problem(topic_id: int, by: ReadBy, consumer: int) -> str | None:
    """What is wrong with the start of a read or a subscription, or None."""
    if topic_id == ALL_TOPICS and by in _ONE_TOPIC_ONLY:
        return f"all topics at once cannot be read by {by.name}"
    if by is ReadBy.COMMITTED and not consumer:
        return "a committed start needs a consumer"
    return None
