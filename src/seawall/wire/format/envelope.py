"""Encode and parse envelopes (extended record type 0001): data with optional timestamp, key, node, tag, meta, headers.

The same form carries HTTP events, keyed records with headers, and table rows.

| at | size         | field     | present when | bytes                                                        |
|----|--------------|-----------|--------------|--------------------------------------------------------------|
| 0  | 2            | flags     | always       | the six bits below, rest 0                                   |
| …  | 8            | timestamp | flag 01      | u64 below 2^63, nanoseconds, the client's clock              |
| …  | 4 + length   | key       | flag 02      | length u32, bytes                                            |
| …  | 4 + length   | node      | flag 04      | length u32, bytes                                            |
| …  | 4 + length   | tag       | flag 08      | length u32, bytes                                            |
| …  | 4 + length   | meta      | flag 10      | length u32, bytes                                            |
| …  | 2 + …        | headers   | flag 20      | count u16, then count × (length u16, name, length u32, value)|
| …  | the rest     | data      | always       | may be empty                                                 |

An envelope is valid when no other flag is set, every field ends inside the value, and it has at most 1,024 headers.
The flags distinguish an absent field (None) from an empty one (b"" or no headers). Header names may repeat and keep
their order. The codec treats all fields as bytes; callers decode text. The server does not parse envelopes: it stores a
record with an invalid envelope, and readers of columns see its whole value as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from struct import Struct
from typing import Final, TypeAlias

from seawall.core.types import TimestampNs
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.limits import ENVELOPE_HEADERS_MAX, EXTENDED_VALUE_SIZE_MAX, TIMESTAMP_NS_MAX
from seawall.wire.format.fields import Buffer
from seawall.wire.format.records import Record, RecordType

#: (name, value) in the order given by the writer.
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class EnvelopeFlags(IntFlag):
    """Which optional fields an envelope has."""

    TIMESTAMP = 0x01
    KEY = 0x02
    NODE = 0x04
    TAG = 0x08
    META = 0x10
    HEADERS = 0x20


_ALL_FLAGS: Final = 0x3F
_U16: Final = Struct("<H")
_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_NAME_SIZE_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Envelope:
    """Data with its optional fields; None means absent."""

    data: bytes
    timestamp_ns: TimestampNs | None = None
    key: bytes | None = None
    node: bytes | None = None
    tag: bytes | None = None
    meta: bytes | None = None
    headers: Headers | None = None

    def encode(self) -> bytes:
        """Encode it as the value of its record."""
        flags = 0
        pieces = [b""]
        if self.timestamp_ns is not None:
            flags |= EnvelopeFlags.TIMESTAMP
            if not 0 <= self.timestamp_ns <= TIMESTAMP_NS_MAX:
                raise InvalidInputError(f"envelope timestamp {self.timestamp_ns}, 0 to {TIMESTAMP_NS_MAX} is allowed")
            pieces.append(_U64.pack(self.timestamp_ns))
        for flag, field in self._sized_fields():
            if field is not None:
                flags |= flag
                pieces += (_U32.pack(len(field)), field)
        if self.headers is not None:
            flags |= EnvelopeFlags.HEADERS
            pieces += _encode_headers(self.headers)
        pieces[0] = _U16.pack(flags)
        pieces.append(self.data)
        size = sum(map(len, pieces))
        if size > EXTENDED_VALUE_SIZE_MAX:
            raise LimitError(f"envelope of {size} bytes, at most {EXTENDED_VALUE_SIZE_MAX}; split the data")
        return b"".join(pieces)

    def to_record(self) -> Record:
        """The record that carries it."""
        return Record(RecordType.ENVELOPE, self.encode())

    def _sized_fields(self) -> tuple[tuple[EnvelopeFlags, bytes | None], ...]:
        return (
            (EnvelopeFlags.KEY, self.key),
            (EnvelopeFlags.NODE, self.node),
            (EnvelopeFlags.TAG, self.tag),
            (EnvelopeFlags.META, self.meta),
        )


def parse_envelope(value: Buffer) -> Envelope:
    """Parse the value of an extended record 0001; `CorruptionError` for anything that the table does not allow."""
    cursor = _Cursor(memoryview(value))
    flags = cursor.number(_U16, "flags")
    if flags & ~_ALL_FLAGS:
        raise CorruptionError(f"envelope: flags {flags:#06x} have bits outside {_ALL_FLAGS:#06x}")
    timestamp_ns = cursor.number(_U64, "timestamp") if flags & EnvelopeFlags.TIMESTAMP else None
    if timestamp_ns is not None and timestamp_ns > TIMESTAMP_NS_MAX:
        raise CorruptionError(f"envelope: timestamp {timestamp_ns}, at most {TIMESTAMP_NS_MAX}")
    key = cursor.sized(_U32, "key") if flags & EnvelopeFlags.KEY else None
    node = cursor.sized(_U32, "node") if flags & EnvelopeFlags.NODE else None
    tag = cursor.sized(_U32, "tag") if flags & EnvelopeFlags.TAG else None
    meta = cursor.sized(_U32, "meta") if flags & EnvelopeFlags.META else None
    headers = _parse_headers(cursor) if flags & EnvelopeFlags.HEADERS else None
    return Envelope(
        data=cursor.rest(),
        timestamp_ns=None if timestamp_ns is None else TimestampNs(timestamp_ns),
        key=key,
        node=node,
        tag=tag,
        meta=meta,
        headers=headers,
    )


class _Cursor:
    """Reads fields one after another; `CorruptionError` if a field exceeds the value."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def number(self, layout: Struct, what: str) -> int:
        at = self._advance(layout.size, what)
        number: int = layout.unpack_from(self._view, at)[0]
        return number

    def sized(self, length_layout: Struct, what: str) -> bytes:
        length = self.number(length_layout, what)
        at = self._advance(length, what)
        return bytes(self._view[at : at + length])

    def rest(self) -> bytes:
        return bytes(self._view[self._at :])

    def _advance(self, size: int, what: str) -> int:
        at = self._at
        left = len(self._view) - at
        if size > left:
            raise CorruptionError(f"envelope: {what} needs {size} bytes, {left} are left")
        self._at = at + size
        return at


def _parse_headers(cursor: _Cursor) -> Headers:
    count = cursor.number(_U16, "header count")
    if count > ENVELOPE_HEADERS_MAX:
        raise CorruptionError(f"envelope: {count} headers, at most {ENVELOPE_HEADERS_MAX}")
    return tuple((cursor.sized(_U16, "header name"), cursor.sized(_U32, "header value")) for _ in range(count))


def _encode_headers(headers: Headers) -> list[bytes]:
    if len(headers) > ENVELOPE_HEADERS_MAX:
        raise LimitError(f"envelope of {len(headers)} headers, at most {ENVELOPE_HEADERS_MAX}")
    pieces = [_U16.pack(len(headers))]
    for name, value in headers:
        if len(name) > _NAME_SIZE_MAX:
            raise LimitError(f"envelope header name of {len(name)} bytes, at most {_NAME_SIZE_MAX}")
        pieces += (_U16.pack(len(name)), name, _U32.pack(len(value)), value)
    return pieces
