"""The header of a batch by `struct`."""

from __future__ import annotations

import struct
from typing import Final

from seawall.kernels.runtime.memory import Bytes
from twins.codec.checksum import crc32c

_U32: Final = struct.Struct("<I")


def header_crc(buffer: Bytes, at: int) -> int:
    """The checksum of all bytes but the checksum itself."""
    return crc32c(buffer, at + 12, at + 96, crc32c(buffer, at, at + 8, 0))


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
