"""Version 2 payloads for publishing records under an idempotency key. Version 1 has no such frames.

| code | frame           | bytes  | payload                                                                            |
|------|-----------------|--------|------------------------------------------------------------------------------------|
| 6B   | PUBLISH_KEYED   | 16 + … | topic u32, record count u32, key length u32, 0 u32, key, then one plain block      |
| 6C   | PUBLISHED_KEYED | 40     | first seq u64, last seq u64, position u64, timestamp_ns u64, flags u32             |
|      |                 |        | (1 it was stored before), 0 u32                                                    |

The answer to 6B is 6C: the seqs of the records, or of those that were first stored under the key. A position that is no
longer remembered is `POSITION_UNKNOWN`. A key is any bytes, possibly empty, and at most `IDEMPOTENCY_KEY_SIZE_MAX`
(else error 09); key and block share the payload of one frame.

A payload is valid if it has at least its fixed fields and the stated key, zeros in fields specified as 0, a record
count from 1 to the maximum of a batch, a block, ascending seqs from 1, and no other flag. Other payloads are refused
with error 04; the connection stays open. This module does not parse the records.

This module must not know how or for how long a key is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final

from seawall.core.types import Position, Seq, TimestampNs, TopicId
from seawall.errors import LimitError
from seawall.limits import BATCH_RECORDS_MAX, IDEMPOTENCY_KEY_SIZE_MAX, PAYLOAD_SIZE_MIN
from seawall.wire.format.codes import Command, ErrorCode
from seawall.wire.format.fields import (
    Buffer,
    malformed,
    pack,
    require_at_least,
    require_exact,
    require_zero,
    write_text,
)

_PUBLISH: Final = Struct("<IIII")
_PUBLISHED: Final = Struct("<QQQQII")

assert (_PUBLISH.size, _PUBLISHED.size) == (16, 40)

_IS_REPEATED: Final = 1


@dataclass(frozen=True, slots=True)
class PublishKeyed:
    """Store the records of a block as one batch, unless records were stored under the key before."""

    COMMAND: ClassVar[Command] = Command.PUBLISH_KEYED
    topic_id: TopicId
    record_count: int
    key: bytes
    block: Buffer = field(repr=False)

    def encode(self) -> bytes:
        """The payload."""
        size = _PUBLISH.size + len(self.key) + len(self.block)
        if size > PAYLOAD_SIZE_MIN:
            raise LimitError(
                f"{self.record_count} records take {size} bytes with their key: one request has at most "
                f"{PAYLOAD_SIZE_MIN}, and the records of one key are stored in one batch"
            )
        fixed = pack(_PUBLISH, "PUBLISH_KEYED", self.topic_id, self.record_count, len(self.key), 0)
        return b"".join((fixed, self.key, self.block))


@dataclass(frozen=True, slots=True)
class PublishedKeyed:
    """The seqs of a key's records, and whether they had been stored before."""

    COMMAND: ClassVar[Command] = Command.PUBLISHED_KEYED
    first_seq: Seq
    last_seq: Seq
    position: Position
    timestamp_ns: TimestampNs
    is_repeated: bool = False

    def encode(self) -> bytes:
        """The payload."""
        flags = _IS_REPEATED if self.is_repeated else 0
        numbers = (self.first_seq, self.last_seq, self.position, self.timestamp_ns)
        return pack(_PUBLISHED, "PUBLISHED_KEYED", *numbers, flags, 0)


def key_bytes(key: str | bytes) -> bytes:
    """Encode an idempotency key, and check its size."""
    data = key if isinstance(key, bytes) else write_text(key, IDEMPOTENCY_KEY_SIZE_MAX, "idempotency key")
    if len(data) > IDEMPOTENCY_KEY_SIZE_MAX:
        raise LimitError(f"idempotency key: {len(data)} bytes, at most {IDEMPOTENCY_KEY_SIZE_MAX}")
    return data


def parse_publish_keyed(payload: Buffer) -> PublishKeyed:
    """Parse a client's PUBLISH_KEYED; its block is a view of the payload."""
    what = "PUBLISH_KEYED"
    require_at_least(_PUBLISH.size, what, payload)
    topic_id, record_count, key_length, reserved = _PUBLISH.unpack_from(payload)
    require_zero(what, reserved)
    if not 1 <= record_count <= BATCH_RECORDS_MAX:
        raise malformed(f"{what}: {record_count} records, a batch has 1 to {BATCH_RECORDS_MAX}")
    if key_length > IDEMPOTENCY_KEY_SIZE_MAX:
        raise malformed(f"{what}: key of {key_length} bytes, at most {IDEMPOTENCY_KEY_SIZE_MAX}", ErrorCode.LIMIT)
    end = _PUBLISH.size + key_length
    require_at_least(end + 1, what, payload)
    view = memoryview(payload)
    return PublishKeyed(topic_id, record_count, bytes(view[_PUBLISH.size : end]), view[end:])


def parse_published_keyed(payload: Buffer) -> PublishedKeyed:
    """Parse a server's PUBLISHED_KEYED."""
    what = "PUBLISHED_KEYED"
    require_exact(_PUBLISHED, what, payload)
    first_seq, last_seq, position, timestamp_ns, flags, reserved = _PUBLISHED.unpack(payload)
    require_zero(what, reserved)
    if flags & ~_IS_REPEATED:
        raise malformed(f"{what}: flags {flags:#04x} have bits outside {_IS_REPEATED:#04x}")
    if not 1 <= first_seq <= last_seq:
        raise malformed(f"{what}: records from seq {first_seq} to {last_seq}")
    return PublishedKeyed(first_seq, last_seq, position, timestamp_ns, bool(flags & _IS_REPEATED))
