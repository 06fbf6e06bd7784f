"""Damage to frames, with checksums recomputed afterwards, so that the checks after the checksum have to refuse it.

Written with plain `struct`, without Seawall's codec.
"""

from __future__ import annotations

import struct
import zlib

from seawall.wire.format.frames import checksum

HEADER_SIZE = 44
BATCH_HEADER_SIZE = 96


def changed(data: bytes, at: int, value: bytes) -> bytes:
    """The same with other bytes at an offset."""
    return data[:at] + value + data[at + len(value) :]


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """The same with one bit flipped."""
    return changed(data, at % len(data), bytes([data[at] ^ (1 << bit)]))


def healed_1(data: bytes, *, lengths: bool = False) -> bytes:
    """A version 1 frame whose checksums hold, and on request its length."""
    if len(data) < HEADER_SIZE:
        return data
    head, payload = bytearray(data[:HEADER_SIZE]), data[HEADER_SIZE:]
    if lengths:
        struct.pack_into("<I", head, 32, len(payload))
    struct.pack_into("<I", head, 36, zlib.crc32(payload) if payload else 0)
    struct.pack_into("<I", head, 8, zlib.crc32(head[:8]))
    return bytes(head) + payload


def with_sum_behind(data: bytes, crc: int | None = None) -> bytes:
    """A version 2 batch whose checksum, or another, follows it instead."""
    crc = checksum(data[BATCH_HEADER_SIZE:]) if crc is None else crc
    head = bytearray(data[:BATCH_HEADER_SIZE])
    head[95] |= 0x08
    head[36:40] = bytes(4)
    struct.pack_into("<I", head, 8, checksum(bytes(head[12:]), checksum(bytes(head[:8]))))
    behind = b"LANC\x02\x40\x6d\0" + bytes(4) + data[12:20] + bytes(12) + struct.pack("<III", 4, 0, 0)
    return bytes(head) + data[BATCH_HEADER_SIZE:] + healed_2(behind + struct.pack("<I", crc))


def healed_2(data: bytes, *, lengths: bool = False) -> bytes:
    """A version 2 frame whose checksums hold, and on request its length."""
    if len(data) < HEADER_SIZE:
        return data
    size = BATCH_HEADER_SIZE if data[5] == 0x04 and len(data) >= BATCH_HEADER_SIZE else HEADER_SIZE
    head, payload = bytearray(data[:size]), data[size:]
    if lengths:
        struct.pack_into("<I", head, 32, len(data) - HEADER_SIZE)
    struct.pack_into("<I", head, 36, checksum(payload) if payload else 0)
    struct.pack_into("<I", head, 8, checksum(bytes(head[12:]), checksum(bytes(head[:8]))))
    return bytes(head) + payload
