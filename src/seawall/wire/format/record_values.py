"""Encode and parse the values of the keyed and timestamped record types 10, 11 and 12.

| type | value                                        |
|------|----------------------------------------------|
| 10   | key length u16, key, value                   |
| 11   | timestamp ns u64, data                       |
| 12   | timestamp ns u64, key length u16, key, value |

A value is valid when it holds its fixed fields and the whole key; what follows the key, or the timestamp in type 11,
is the data, which may be empty. The server stores and serves these types without parsing them; only readers and writers
do, so an invalid value is a `CorruptionError` for the reader only.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from seawall.core.types import TimestampNs
from seawall.errors import CorruptionError, LimitError
from seawall.wire.format.fields import Buffer, pack
from seawall.wire.format.records import Record, RecordType, check_value_size

_KEYED: Final = Struct("<H")
_TIMESTAMPED: Final = Struct("<Q")
_TIMESTAMPED_KEYED: Final = Struct("<QH")
_KEY_SIZE_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class KeyValue:
    """Record type 10, or 12 with a timestamp."""

    key: bytes
    value: bytes
    timestamp_ns: TimestampNs | None = None

    def to_record(self) -> Record:
        """The record that carries it."""
        if len(self.key) > _KEY_SIZE_MAX:
            raise LimitError(f"key of {len(self.key)} bytes, at most {_KEY_SIZE_MAX}; an envelope takes longer ones")
        if self.timestamp_ns is None:
            record_type = RecordType.KEY_VALUE
            prefix = _KEYED.pack(len(self.key))
        else:
            record_type = RecordType.TIMESTAMPED_KEY_VALUE
            prefix = pack(_TIMESTAMPED_KEYED, "record type 12", self.timestamp_ns, len(self.key))
        return Record(record_type, _bounded(prefix + self.key + self.value))


@dataclass(frozen=True, slots=True)
class Timestamped:
    """Record type 11."""

    timestamp_ns: TimestampNs
    data: bytes

    def to_record(self) -> Record:
        """The record that carries it."""
        prefix = pack(_TIMESTAMPED, "record type 11", self.timestamp_ns)
        return Record(RecordType.TIMESTAMPED, _bounded(prefix + self.data))


def parse_key_value(value: Buffer) -> KeyValue:
    """The value of a record of type 10."""
    _require(_KEYED, value, "10")
    (key_length,) = _KEYED.unpack_from(value)
    key, rest = _split_key(value, _KEYED.size, key_length, "10")
    return KeyValue(key, rest)


def parse_timestamped(value: Buffer) -> Timestamped:
    """The value of a record of type 11."""
    _require(_TIMESTAMPED, value, "11")
    (timestamp_ns,) = _TIMESTAMPED.unpack_from(value)
    return Timestamped(timestamp_ns, bytes(value[_TIMESTAMPED.size :]))


def parse_timestamped_key_value(value: Buffer) -> KeyValue:
    """The value of a record of type 12."""
    _require(_TIMESTAMPED_KEYED, value, "12")
    timestamp_ns, key_length = _TIMESTAMPED_KEYED.unpack_from(value)
    key, rest = _split_key(value, _TIMESTAMPED_KEYED.size, key_length, "12")
    return KeyValue(key, rest, timestamp_ns)


def _require(layout: Struct, value: Buffer, type_name: str) -> None:
    if len(value) < layout.size:
        raise CorruptionError(f"record type {type_name}: value of {len(value)} bytes, needs at least {layout.size}")


def _split_key(value: Buffer, at: int, key_length: int, type_name: str) -> tuple[bytes, bytes]:
    if key_length > len(value) - at:
        raise CorruptionError(f"record type {type_name}: key of {key_length} bytes, {len(value) - at} are left")
    end = at + key_length
    return bytes(value[at:end]), bytes(value[end:])


def _bounded(value: bytes) -> bytes:
    check_value_size(len(value))
    return value
