"""Epochs read with `struct`, one batch after another; a search tries every byte as the start of a header."""

from __future__ import annotations

import struct

import numpy as np

from seawall.kernels.log import epochs as kernels
from seawall.kernels.log.epochs import BATCH_BAD, Walk, WalRows
from seawall.kernels.runtime.memory import Bytes
from twins.codec.batch_header import stored_size
from twins.codec.checksum import crc32c

_BATCH = struct.Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")
_EPOCH = struct.Struct("<4sIQ48s")
_HEADER = struct.Struct("<4sIQQQQQIHHQ")


def batch_size(buffer: Bytes, at: int, end: int) -> int:
    """The size of the valid batch that begins at `at` and ends by `end`; else BATCH_BAD."""
    size = stored_size(buffer, at, end)
    block_crc = int.from_bytes(buffer[at + 36 : at + 40].tobytes(), "little")
    return size if size and _crc(buffer[at + 96 : at + size].tobytes()) == block_crc else BATCH_BAD


def list_batch(buffer: Bytes, at: int, address: int, size: int, rows: WalRows, index: int) -> None:
    """Fill the row of a batch from its header at `at`."""
    _, _, _, command, _, client_seq, timestamp_ns, count, _, block_crc, topic_id, _, *fields = _BATCH.unpack_from(
        buffer[at : at + _BATCH.size].tobytes()
    )
    client_id, position, base_seq, base_offset, raw_length, term, session_epoch, _, _, codec, flags = fields
    rows[index] = (
        *(address, position, base_seq, base_offset, timestamp_ns, client_id, client_seq),
        *(size, count, raw_length, topic_id, term, session_epoch, block_crc),
        *(command, codec, flags),
    )


def seal_epoch(
    memory: Bytes, length: int, count: int, salt: int, epoch: int, synced_through: int, position: int, time_ns: int
) -> int:
    """Write the header of an epoch; returns the size of the epoch."""
    body = struct.pack("<QQQQQIIQ", salt % (1 << 64), epoch, length, synced_through, position, count, 0, time_ns)
    memory[: kernels.EPOCH_HEADER] = memoryview(struct.pack("<II", kernels.EPOCH_MAGIC, _crc(body)) + body)
    return kernels.EPOCH_HEADER + length


def verify_epoch(
    buffer: Bytes,
    start: int,
    end: int,
    shift: int,
    first_position: int,
    batch_count: int,
    rows: WalRows,
    first_row: int,
) -> int:
    """List the valid batches from `start` on in the rows from `first_row` on; returns how many."""
    at = start
    next_position = first_position
    for index in range(batch_count):
        size = batch_size(buffer, at, end)
        if size == BATCH_BAD:
            return index
        command, position = struct.unpack_from("<H48xQ", buffer[at : at + _BATCH.size].tobytes(), 6)
        if position != next_position:
            return index
        next_position += command != kernels.COMMAND_UNPOSITIONED
        list_batch(buffer, at, at + shift, size, rows, first_row + index)
        at += size
    return batch_count


def scan_epochs(buffer: Bytes, start: int, end: int, salt: int, walk: Walk, rows: WalRows) -> int:
    """List the batches of the complete epochs from `start` on that directly follow each other; returns their end."""
    at = start
    listed = int(walk[kernels.WALK_ROWS])
    walk[kernels.WALK_NEEDED] = _HEADER.size
    while end - at >= _HEADER.size:
        given = buffer[at : at + _HEADER.size].tobytes()
        magic, crc, found, epoch, length, synced_through, position, count, *fields = _HEADER.unpack(given)
        flags, asides, timestamp_ns = fields
        shift = int(walk[kernels.WALK_SHIFT])
        rules = (
            (magic, found, crc) == (b"EPOC", salt, _crc(given[8:])),
            epoch == walk[kernels.WALK_EPOCH] + 1,
            synced_through <= at + shift,
            walk[kernels.WALK_POSITION] <= position <= 1 << 62,
            length <= 1 << 62,
            timestamp_ns < 1 << 63,
            (length, count, asides) == (0, 0, 0) if flags == 1 else flags == 0 and 1 <= count <= length // 96,
            asides <= count,
            count <= len(rows) - listed,
        )
        walk[kernels.WALK_NEEDED] = _HEADER.size
        if not all(rules):
            break
        first, last = at + _HEADER.size, at + _HEADER.size + length
        if last > end:
            walk[kernels.WALK_NEEDED] = last - at
            break
        good = verify_epoch(buffer, first, last, shift, position, count, rows, listed)
        sizes = rows["size"][listed : listed + good].tolist()
        if good != count or first + sum(sizes) != last:
            break
        listed += count
        walk[kernels.WALK_EPOCH] = epoch
        walk[kernels.WALK_POSITION] = position + count - asides
        walk[kernels.WALK_SYNCED] = max(int(walk[kernels.WALK_SYNCED]), synced_through)
        walk[kernels.WALK_TIMESTAMP] = timestamp_ns
        walk[kernels.WALK_CLEAN] = flags
        at = last
    walk[kernels.WALK_ROWS] = listed
    return at


def find_epoch(buffer: Bytes, start: int, end: int, salt: int) -> int:
    """The index of the first complete epoch header from `start` on with this salt and a correct checksum; else -1."""
    given = buffer[:end].tobytes()
    for at in range(start, end - _EPOCH.size + 1):
        magic, crc, found_salt, _ = _EPOCH.unpack_from(given, at)
        if magic == b"EPOC" and found_salt == salt and _crc(given[at + 8 : at + _EPOCH.size]) == crc:
            return at
    return -1


def _crc(data: bytes) -> int:
    message = np.frombuffer(data, np.uint8)
    return crc32c(message, 0, message.size, 0)


def is_zero(buffer: Bytes, start: int, end: int) -> int:
    """1 if all bytes from `start` to `end` are zero."""
    return int(not any(buffer[start:end].tobytes()))
