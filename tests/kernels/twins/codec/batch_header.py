"""The header of a batch by `struct`."""

from __future__ import annotations

import struct
from typing import Final

from seawall.kernels.runtime.memory import Bytes
from twins.codec.checksum import crc32c

_U32: Final = struct.Struct("<I")
_HEADER: Final = struct.Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")
_MIB: Final = 1024 * 1024


def header_crc(buffer: Bytes, at: int) -> int:
    """The checksum of all bytes but the checksum itself."""
    return crc32c(buffer, at + 12, at + 96, crc32c(buffer, at, at + 8, 0))


def stored_size(buffer: Bytes, at: int, end: int) -> int:
    """The size of the batch with a valid header at `at` if it ends by `end`, else 0."""
    if end - at < _HEADER.size:
        return 0
    magic, version, kind, command, crc, *fields = _HEADER.unpack(buffer[at : at + _HEADER.size].tobytes())
    _, _, count, payload_length, _, _, reserved, client_id, *fields = fields
    _, _, _, raw_length, _, _, _, ack_level, codec, flags = fields
    rules = (
        (magic, version, kind) == (b"LANC", 2, 4),
        header_crc(buffer, at) == crc,
        payload_length >= 52,
        end - at >= 44 + payload_length,
        reserved == 0,
        ack_level in (0, 1, 2, 0xFF),
        codec in (0, 1, 2),
        flags in (0, 2, 4, 6),
        flags < 4 or client_id >> 63 == 1,
        raw_length <= 16 * _MIB,
        payload_length - 52 <= 64 * _MIB,
        raw_length == payload_length - 52 if codec == 0 else raw_length > 0,
        command != 0 or (count == 1 if flags & 2 else 5 * count <= raw_length),
    )
    return 44 + payload_length if all(rules) else 0


def seal_header(buffer: Bytes, at: int) -> None:
    """Write the checksum."""
    buffer[at + 8 : at + 12] = memoryview(_U32.pack(header_crc(buffer, at)))


def stamp_header(
    buffer: Bytes, at: int, position: int, base_seq: int, base_offset: int, timestamp_ns: int, term: int
) -> None:
    """Write time, position, base seq, base offset and term, then the checksum."""
    buffer[at + 20 : at + 28] = memoryview(struct.pack("<Q", timestamp_ns))
    buffer[at + 56 : at + 88] = memoryview(_stamp(buffer, at, position, base_seq, base_offset, term))
    seal_header(buffer, at)


def _stamp(buffer: Bytes, at: int, position: int, base_seq: int, base_offset: int, term: int) -> bytes:
    raw_length = buffer[at + 80 : at + 84].tobytes()
    return struct.pack("<QQQ", position, base_seq, base_offset) + raw_length + _U32.pack(term)
