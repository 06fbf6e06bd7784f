"""The commands of control batches, and the binary blocks of the frequent ones.

A control batch is a stored batch (`wire.format.batches`) whose header has a command other than 0, no records and no
numbers of a topic; its block describes the change. This module assigns the command numbers, and defines dataclass and
bytes of the frequent commands. Deletes of records are in `deletes`, the others are JSON (`documents`); `batches` has
the compound and joins header and block. None of them knows what a change does to a topic: `topics` does.

| command            | block                                                                                          |
|--------------------|------------------------------------------------------------------------------------------------|
| 1 REFERENCE        | stamped header of an append (96), segment first_seq u64, file position u64                     |
| 2 TOPIC_CREATE     | JSON: topic_id, name, epoch, config                                                            |
| 3 TOPIC_DELETE     | JSON: topic_id, name, epoch, before (the config that ends)                                     |
| 4 TOPIC_CONFIG     | JSON: topic_id, before, after                                                                  |
| 5 CEILING          | topic_id u32, 0 u32, ceiling u64, previous ceiling u64                                         |
| 6 DELETE_RECORDS   | the request and the seqs it removes: `deletes`                                                 |
| 7 FLOOR            | JSON: topic_id, reason (cap, ttl), evict_floor, previous, removed_bytes                        |
| 8 LOSS             | JSON: topic_id, first_seq, last_seq, reason, lost_bytes                                        |
| 9 CURSOR           | topic_id u32, owner length u16, 0 u16, epoch u64, next_seq u64, previous u64, offset u64, owner|
| 10 SEGMENT_ROLL    | topic_id u32, 0 u32, first_seq u64 of the new segment, previous first_seq u64                  |
| 11 CLIENT          | client_id u64, row (64), and the row it replaces (64) where there was one                      |
| 12 TERM            | JSON: term, previous, start_position                                                           |
| 13 CHECKPOINT      | absorbed_at u64, position u64, previous absorbed_at u64                                        |
| 14 COMPOUND        | count u32, 0 u32, then for each part: command u16, 0 u16, length u32, block                    |
| 15 ORDER_NOP       | a batch that was ordered and not stored: `order`                                               |
| 16 ORDER_SKIP      | client seqs that were given up: `order`                                                        |
| 17 ASIDE           | as COMPOUND; takes no position (`batches`)                                                     |
| 18 TRANSACTION     | owner, epoch and counts: `transactions`                                                        |
| 19 SESSIONS_RETIRED| sessions that are forgotten: `sessions`                                                        |
| 20 ROUTER          | JSON: name, source_id, dest_id, next_seq, before, after                                        |
| 21 ROUTER_STEP     | name length u16, 0 u16, 0 u32, next_seq u64, previous u64, forwarded u64, name                 |
| 22 DEAD_LETTERED   | how many jobs of a queue became dead letters: `queues`                                         |
| 23 LEASES          | leases of a queue that keeps them: `queues`                                                    |

Commands that change an object carry its old and its new state. The new one takes effect. The old one is for consumers
of the change feed; replay does not compare it, since a damaged log may have lost the change before.

A control has exactly one encoding: encoding a parsed control gives the same bytes. Constructing a control checks its
rules; one that breaks them cannot be written, and bytes that do are a `CorruptionError`. Command numbers never change,
and a number never gets a second meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from struct import Struct
from typing import ClassVar, Final, Self

from seawall import limits
from seawall.core.identifiers import check_router_name
from seawall.core.types import ClientId, Offset, Position, Seq, TopicEpoch, TopicId
from seawall.errors import CorruptionError, InvalidInputError
from seawall.storage.preface import DATA_START
from seawall.wire.format.batches import BatchHeader, BatchSource, parse_batch_header
from seawall.wire.format.codes import ALL_TOPICS, U64_MAX
from seawall.wire.format.fields import (
    Buffer,
    pack,
    read_text,
    require_at_least,
    require_exact,
    require_zero,
    write_text,
)

_LOCATION: Final = Struct("<QQ")
_TOPIC_NUMBERS: Final = Struct("<IIQQ")
_CURSOR: Final = Struct("<IHHQQQQ")
_ROUTER_STEP: Final = Struct("<HHIQQQ")
_CLIENT: Final = Struct("<Q")
_CHECKPOINT: Final = Struct("<QQQ")


@unique
class ControlCommand(IntEnum):
    """The command of a control batch: the kind of change."""

    REFERENCE = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    TOPIC_CONFIG = 4
    CEILING = 5
    DELETE_RECORDS = 6
    FLOOR = 7
    LOSS = 8
    CURSOR = 9
    SEGMENT_ROLL = 10
    CLIENT = 11
    TERM = 12
    CHECKPOINT = 13
    COMPOUND = 14
    ORDER_NOP = 15
    ORDER_SKIP = 16
    ASIDE = 17
    TRANSACTION = 18
    SESSIONS_RETIRED = 19
    ROUTER = 20
    ROUTER_STEP = 21
    DEAD_LETTERED = 22
    LEASES = 23


@dataclass(frozen=True, slots=True)
class Reference:
    """A large batch that is already in its segment; `header` is the one stored there.

    Segment 0 and position 0 stand for a batch that is only in memory: the log has nothing but its header.
    """

    COMMAND: ClassVar = ControlCommand.REFERENCE
    header: BatchHeader
    segment_first_seq: Seq
    file_position: int

    def __post_init__(self) -> None:
        header = self.header
        require_topic(header.topic_id)
        if header.is_control or not header.record_count:
            raise InvalidInputError(f"a reference is to an append with records, not to command {header.command}")
        is_in_segment = 1 <= self.segment_first_seq <= header.base_seq and self.file_position >= DATA_START
        if not is_in_segment and (self.segment_first_seq or self.file_position):
            raise InvalidInputError(
                f"seq {header.base_seq} cannot be at {self.file_position} of segment {self.segment_first_seq}"
            )

    @property
    def topic_id(self) -> TopicId:
        """Topic of the batch."""
        return self.header.topic_id

    def encode(self) -> bytes:
        """The block."""
        return self.header.header_bytes() + pack(_LOCATION, "location", self.segment_first_seq, self.file_position)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        if len(block) != limits.BATCH_HEADER_SIZE + _LOCATION.size:
            raise CorruptionError(f"REFERENCE: block of {len(block)} bytes")
        first_seq, at = _LOCATION.unpack_from(block, limits.BATCH_HEADER_SIZE)
        return cls(parse_batch_header(block, source=BatchSource.STORED), first_seq, at)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Seqs below `ceiling` may be assigned; no seq from there on was ever visible."""

    COMMAND: ClassVar = ControlCommand.CEILING
    topic_id: TopicId
    ceiling: Seq
    previous: Seq

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        require_unsigned(self.ceiling, self.previous)

    def encode(self) -> bytes:
        """The block."""
        return pack(_TOPIC_NUMBERS, "CEILING", self.topic_id, 0, self.ceiling, self.previous)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        topic_id, zero, ceiling, previous = _unpack(_TOPIC_NUMBERS, "CEILING", block)
        require_zero("CEILING", zero)
        return cls(TopicId(topic_id), Seq(ceiling), Seq(previous))


@dataclass(frozen=True, slots=True)
class SegmentRoll:
    """The next record of a topic begins a new segment; replay recomputes segment positions from this."""

    COMMAND: ClassVar = ControlCommand.SEGMENT_ROLL
    topic_id: TopicId
    first_seq: Seq
    previous: Seq

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        require_unsigned(self.first_seq, self.previous)
        if self.first_seq <= self.previous:
            raise InvalidInputError(f"segment {self.first_seq} cannot follow segment {self.previous}")

    def encode(self) -> bytes:
        """The block."""
        return pack(_TOPIC_NUMBERS, "SEGMENT_ROLL", self.topic_id, 0, self.first_seq, self.previous)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        topic_id, zero, first_seq, previous = _unpack(_TOPIC_NUMBERS, "SEGMENT_ROLL", block)
        require_zero("SEGMENT_ROLL", zero)
        return cls(TopicId(topic_id), Seq(first_seq), Seq(previous))


@dataclass(frozen=True, slots=True)
class CursorCommit:
    """An owner will read `next_seq` next. `previous` is 0 if it had no cursor.

    `offset` is what a version 1 consumer committed, stored to return it to that consumer; None for all others.
    """

    COMMAND: ClassVar = ControlCommand.CURSOR
    owner: str
    topic_id: TopicId
    epoch: TopicEpoch
    next_seq: Seq
    previous: Seq
    offset: Offset | None = None

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        require_unsigned(self.epoch, self.next_seq, self.previous)
        if not self.owner or not self.next_seq:
            raise InvalidInputError(f"a cursor needs an owner and a seq from 1: {self.owner!r}, {self.next_seq}")
        write_text(self.owner, limits.CURSOR_OWNER_SIZE_MAX, "cursor owner")
        if self.offset is not None and not 0 <= self.offset < U64_MAX:
            raise InvalidInputError(f"cursor offset {self.offset} is not from 0 to 2^64 - 2")

    def encode(self) -> bytes:
        """The block."""
        owner = self.owner.encode()
        offset = U64_MAX if self.offset is None else self.offset
        numbers = (self.topic_id, len(owner), 0, self.epoch, self.next_seq, self.previous, offset)
        return pack(_CURSOR, "CURSOR", *numbers) + owner

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_CURSOR.size, "CURSOR", block)
        topic_id, length, zero, epoch, next_seq, previous, offset = _CURSOR.unpack_from(block)
        require_zero("CURSOR", zero)
        if len(block) != _CURSOR.size + length:
            raise CorruptionError(f"CURSOR: block of {len(block)} bytes for an owner of {length}")
        owner = read_text(block[_CURSOR.size :], "CURSOR")
        return cls(owner, topic_id, epoch, next_seq, previous, None if offset == U64_MAX else Offset(offset))


@dataclass(frozen=True, slots=True)
class RouterStep:
    """A router has copied what its source has below `next_seq`; `forwarded` counts all records that it ever copied.

    The references to the copies, or the loss of what could not be copied, are in the same compound.
    """

    COMMAND: ClassVar = ControlCommand.ROUTER_STEP
    name: str
    next_seq: Seq
    previous: Seq
    forwarded: int

    def __post_init__(self) -> None:
        check_router_name(self.name)
        require_unsigned(self.next_seq, self.previous, self.forwarded)
        if self.next_seq <= self.previous:
            raise InvalidInputError(f"router {self.name!r} cannot step from {self.previous} to {self.next_seq}")

    @property
    def topic_id(self) -> TopicId:
        """No topic: the router names its own."""
        return TopicId(0)

    def encode(self) -> bytes:
        """The block."""
        name = self.name.encode()
        numbers = (len(name), 0, 0, self.next_seq, self.previous, self.forwarded)
        return pack(_ROUTER_STEP, "ROUTER_STEP", *numbers) + name

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_ROUTER_STEP.size, "ROUTER_STEP", block)
        length, *zeros, next_seq, previous, forwarded = _ROUTER_STEP.unpack_from(block)
        require_zero("ROUTER_STEP", *zeros)
        if len(block) != _ROUTER_STEP.size + length:
            raise CorruptionError(f"ROUTER_STEP: block of {len(block)} bytes for a name of {length}")
        return cls(read_text(block[_ROUTER_STEP.size :], "ROUTER_STEP"), next_seq, previous, forwarded)


@dataclass(frozen=True, slots=True)
class ClientRow:
    """The row of a publisher's session, and the row it replaces; the sequencer defines the bytes."""

    COMMAND: ClassVar = ControlCommand.CLIENT
    client_id: ClientId
    row: bytes
    previous: bytes | None = None

    def __post_init__(self) -> None:
        if not 0 < self.client_id <= U64_MAX:
            raise InvalidInputError(f"client id {self.client_id} is not from 1 to 2^64 - 1")
        if any(len(row) != limits.CLIENT_ROW_SIZE for row in (self.row, self.previous) if row is not None):
            raise InvalidInputError(f"a client row has {limits.CLIENT_ROW_SIZE} bytes")

    @property
    def topic_id(self) -> TopicId:
        """No topic: sessions span them."""
        return TopicId(0)

    def encode(self) -> bytes:
        """The block."""
        return b"".join((_CLIENT.pack(self.client_id), self.row, self.previous or b""))

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_CLIENT.size + limits.CLIENT_ROW_SIZE, "CLIENT", block)
        (client_id,) = _CLIENT.unpack_from(block)
        rows = bytes(block[_CLIENT.size :])
        return cls(client_id, rows[: limits.CLIENT_ROW_SIZE], rows[limits.CLIENT_ROW_SIZE :] or None)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Batches below `position`, which end at log address `absorbed_at`, are flushed to their segments."""

    COMMAND: ClassVar = ControlCommand.CHECKPOINT
    absorbed_at: int
    position: Position
    previous_at: int

    def __post_init__(self) -> None:
        require_unsigned(self.absorbed_at, self.position, self.previous_at)
        if self.absorbed_at < self.previous_at:
            raise InvalidInputError(f"checkpoint at {self.absorbed_at} goes back before {self.previous_at}")

    @property
    def topic_id(self) -> TopicId:
        """No topic: a checkpoint is of the whole log."""
        return TopicId(0)

    def encode(self) -> bytes:
        """The block."""
        return pack(_CHECKPOINT, "CHECKPOINT", self.absorbed_at, self.position, self.previous_at)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        absorbed_at, position, previous_at = _unpack(_CHECKPOINT, "CHECKPOINT", block)
        return cls(absorbed_at, Position(position), previous_at)


def require_topic(topic_id: int) -> None:
    """Refuse an invalid topic id: 0 means none, the largest u32 means all."""
    if not 0 < topic_id < ALL_TOPICS:
        raise InvalidInputError(f"topic id {topic_id} is not from 1 to {ALL_TOPICS - 1}")


def require_unsigned(*numbers: int) -> None:
    """Refuse numbers that do not fit a u64."""
    for number in numbers:
        if not 0 <= number <= U64_MAX:
            raise InvalidInputError(f"{number} does not fit 64 bits")


def _unpack(layout: Struct, what: str, block: Buffer) -> tuple[int, ...]:
    require_exact(layout, what, block)
    return layout.unpack(block)
