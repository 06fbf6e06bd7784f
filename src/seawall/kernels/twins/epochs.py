"""Epochs read the obvious way: `struct` for a header, one batch after another, every byte tried as a beginning."""

from __future__ import annotations

import struct

import numpy as np

from seawall.kernels.epochs import BATCH_BAD, Offsets
from seawall.kernels.memory import Bytes
from seawall.kernels.twins.checksum import crc32c

_BATCH = struct.Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")
_EPOCH = struct.Struct("<4sIQ48s")
_MIB = 1024 * 1024


def batch_size(buffer: Bytes, at: int, end: int) -> int:
    """Bytes of the good batch that begins at `at` and ends by `end`; else BATCH_BAD."""
    given = buffer[at:end].tobytes()
    if len(given) < _BATCH.size:
        return BATCH_BAD
    magic, version, kind, command, header_crc, *fields = _BATCH.unpack_from(given)
    _, _, count, payload_length, block_crc, _, reserved, _, *fields = fields
    _, _, _, raw_length, _, _, _, ack_level, codec, flags = fields
    header = given[:8] + given[12:96]
    block = given[96 : 44 + payload_length]
    rules = (
        (magic, version, kind) == (b"LANC", 2, 4),
        _crc(header) == header_crc,
        payload_length >= 52,
        len(given) >= 44 + payload_length,
        reserved == 0,
        ack_level in (0, 1, 2, 0xFF),
        codec in (0, 1, 2),
        flags in (0, 2),
        raw_length <= 16 * _MIB,
        payload_length - 52 <= 64 * _MIB,
        raw_length == payload_length - 52 if codec == 0 else raw_length > 0,
        command != 0 or (count == 1 if flags == 2 else 5 * count <= raw_length),
    )
    return 44 + payload_length if all(rules) and _crc(block) == block_crc else BATCH_BAD


def verify_epoch(buffer: Bytes, start: int, end: int, first_position: int, batch_count: int, offsets: Offsets) -> int:
    """Count the good batches from `start` on; their starts, and the end of the last, go to `offsets`."""
    ends = [start]
    for position in range(first_position, first_position + batch_count):
        size = batch_size(buffer, ends[-1], end)
        if size == BATCH_BAD or int.from_bytes(buffer[ends[-1] + 56 : ends[-1] + 64].tobytes(), "little") != position:
            break
        ends.append(ends[-1] + size)
    offsets[: len(ends)] = ends
    return len(ends) - 1


def find_epoch(buffer: Bytes, start: int, end: int, salt: int) -> int:
    """The first byte from `start` on where a whole epoch header with this salt and a right checksum begins; else -1."""
    given = buffer[:end].tobytes()
    for at in range(start, end - _EPOCH.size + 1):
        magic, crc, found_salt, _ = _EPOCH.unpack_from(given, at)
        if magic == b"EPOC" and found_salt == salt and _crc(given[at + 8 : at + _EPOCH.size]) == crc:
            return at
    return -1


def _crc(data: bytes) -> int:
    message = np.frombuffer(data, np.uint8)
    return crc32c(message, 0, message.size, 0)
