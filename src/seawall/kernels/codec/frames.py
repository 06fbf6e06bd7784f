"""Split a receive buffer into protocol frames: all complete frames in one call, each checked before it is reported.

Every frame has a 44-byte header (integers little-endian); a version 2 batch continues with a 52-byte prologue:

    0  magic u32 "LANC"     6  command u16 (v2)      20 timestamp u64        36 payload_crc u32
    4  version u8           8  header_crc u32        28 record_count u32     40 topic_id u32
    5  flags (v1), kind     12 id u64                32 payload_length u32   44 … 95 prologue of a batch

    version 1   header_crc = CRC-32 (IEEE) of bytes 0–7; payload_crc = CRC-32 of the payload
    version 2   header_crc = CRC-32C of bytes 0–7 and 12–43 (12–95 for a batch); payload_crc = CRC-32C of the payload,
                of the bytes after the prologue for a batch, or 0 for FETCH_DATA and DATA, whose batches have their own

The checksum of a batch may follow the batch, so its sender passes over the bytes only once: the flags (byte 95) say so,
payload_crc is 0, and a SUM frame with the same id follows, whose payload is the checksum. The batch is complete only
together with its SUM frame. The split then writes the checksum into the header of the batch and clears the flag, so it
reports a batch like any other. It does not report the SUM frame, so splitting the same bytes again gives the same rows.

Checks run in a fixed order: magic, version, header checksum, kind, length, payload checksum. The first failure stops
the split at that frame with a SPLIT code; the complete frames before it are still reported. A wrong magic or version is
detected at the first wrong byte, so five bytes of another protocol fail without waiting for a whole header.

INV-SPLIT-ONCE: the same bytes in any chunks give the same frames and the same error.

The length of a frame is compared with its bound before anything waits for its payload or reserves memory for it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.checksum import crc32, crc32c
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, as_int64, load_i64, load_u16, load_u32, load_u64, store_u32, store_u64

#: One row for each complete frame; `at` is the index of its first byte, `size` its whole length.
FRAME_ROW = np.dtype(
    [
        ("at", np.int64),
        ("size", np.int64),
        ("id", np.uint64),
        ("timestamp_ns", np.uint64),
        ("record_count", np.uint32),
        ("payload_length", np.uint32),
        ("payload_crc", np.uint32),
        ("topic_id", np.uint32),
        ("version", np.uint8),
        ("kind", np.uint8),
        ("command", np.uint16),
        ("header_crc", np.uint32),
    ]
)
assert FRAME_ROW.itemsize == 56

Rows: TypeAlias = npt.NDArray[np.void]
State = npt.NDArray[np.int64]

#: Why a split stopped. SPLIT_MORE: the rest is an incomplete frame. SPLIT_FULL: the row table is full, call again.
SPLIT_MORE = 0
SPLIT_FULL = 1
SPLIT_MAGIC = 2
SPLIT_VERSION = 3
SPLIT_HEADER_CRC = 4
SPLIT_KIND = 5
SPLIT_TOO_LARGE = 6
SPLIT_SHORT_BATCH = 7
SPLIT_PAYLOAD_CRC = 8
SPLIT_NO_SUM = 9

#: Indexes in `state`. In: the version of the connection, 0 before its first frame. Out: the next three. Between calls:
#: how many bytes of an incomplete batch are summed, counted from its first byte, and their checksum.
STATE_VERSION = 0
STATE_FRAMES = 1
STATE_CONSUMED = 2
STATE_NEEDED = 3
STATE_SUMMED = 4
STATE_CRC = 5
STATE_SIZE = 6

MAGIC = 0x434E414C
KIND_BATCH = 0x04
KIND_ACK = 0x08
KIND_KEEPALIVE = 0x20
KIND_CONTROL = 0x40
COMMAND_FETCH_DATA = 0x51
COMMAND_DATA = 0x54
COMMAND_SUM = 0x6D
COMMAND_JOBS = 0x91
#: Flag of a batch that a SUM frame follows, and the size of that frame.
FLAG_TRAILING_CHECKSUM = 0x08
SUM_FRAME_SIZE = 48

_HEADER = 44
_PROLOGUE = 52
_BATCH_HEADER = 96
_FETCH_DATA_EXTRA = 144
_FLAGS_AT = 95
_SUM_START = MAGIC | 2 << 32 | KIND_CONTROL << 40 | COMMAND_SUM << 48


@kernel(int64(bytes_in, int64, int64, int64))
def _check_start(buffer: Bytes, at: int, end: int, version: int) -> int:
    """Check the bytes of magic and version that have arrived."""
    for index in range(min(4, end - at)):
        if as_int64(buffer[at + index]) != (MAGIC >> (8 * index)) & 0xFF:
            return SPLIT_MAGIC
    if end - at > 4:
        given = as_int64(buffer[at + 4])
        if (given != 1 and given != 2) or (version != 0 and given != version):
            return SPLIT_VERSION
    return SPLIT_MORE


@kernel(int64(bytes_in, int64, int64))
def _header_crc(buffer: Bytes, at: int, covered: int) -> int:
    """The checksum of a version 2 header whose size is `covered`."""
    return crc32c(buffer, at + 12, at + covered, crc32c(buffer, at, at + 8, 0))


@kernel(int64(bytes_in, int64, int64, int64))
def _check_header(buffer: Bytes, at: int, end: int, payload_max: int) -> int:
    """Check a complete 44-byte header (96 for a batch, else SPLIT_MORE). Returns a SPLIT code, or -1 if valid."""
    kind = as_int64(buffer[at + 5])
    length = load_u32(buffer, at + 32)
    stored_crc = load_u32(buffer, at + 8)
    if as_int64(buffer[at + 4]) == 1:
        if crc32(buffer, at, at + 8, 0) != stored_crc:
            return SPLIT_HEADER_CRC
        return SPLIT_TOO_LARGE if length > payload_max else -1
    covered = _HEADER
    bound = payload_max
    command = load_u16(buffer, at + 6)
    if kind == KIND_BATCH:
        if length < _PROLOGUE:
            return SPLIT_SHORT_BATCH
        if end - at < _BATCH_HEADER:
            return SPLIT_MORE
        covered = _BATCH_HEADER
        bound = payload_max + _PROLOGUE
    elif kind == KIND_CONTROL and (command == COMMAND_FETCH_DATA or command == COMMAND_DATA or command == COMMAND_JOBS):
        bound = payload_max + _FETCH_DATA_EXTRA
    if _header_crc(buffer, at, covered) != stored_crc:
        return SPLIT_HEADER_CRC
    if kind != KIND_BATCH and kind != KIND_ACK and kind != KIND_KEEPALIVE and kind != KIND_CONTROL:
        return SPLIT_KIND
    return SPLIT_TOO_LARGE if length > bound else -1


@kernel(int64(bytes_in, int64, int64, int64, int64))
def _payload_matches(buffer: Bytes, at: int, length: int, summed: int, crc: int) -> int:
    """1 if the checksum of a payload matches, else 0. The first `summed` bytes of a batch have the checksum `crc`."""
    stored_crc = load_u32(buffer, at + 36)
    first = at + _HEADER
    if as_int64(buffer[at + 4]) == 1:
        return as_int64(crc32(buffer, first, first + length, 0) == stored_crc)
    kind = as_int64(buffer[at + 5])
    command = load_u16(buffer, at + 6)
    if kind == KIND_CONTROL and (command == COMMAND_FETCH_DATA or command == COMMAND_DATA) and stored_crc == 0:
        return 1
    if kind == KIND_BATCH:
        unsummed = at + max(_BATCH_HEADER, summed)
        return as_int64(crc32c(buffer, unsummed, first + length, crc) == stored_crc)
    return as_int64(crc32c(buffer, first, first + length, 0) == stored_crc)


@kernel(void(bytes_out, int64, int64, int64))
def write_sum(target: Bytes, at: int, frame_id: int, crc: int) -> None:
    """Write the SUM frame of a batch to `target` at `at`."""
    store_u64(target, at, _SUM_START)
    store_u64(target, at + 12, frame_id)
    store_u64(target, at + 20, 0)
    store_u32(target, at + 28, 0)
    store_u32(target, at + 32, SUM_FRAME_SIZE - _HEADER)
    store_u32(target, at + 40, 0)
    store_u32(target, at + _HEADER, crc)
    store_u32(target, at + 36, crc32c(target, at + _HEADER, at + SUM_FRAME_SIZE, 0))
    store_u32(target, at + 8, _header_crc(target, at, _HEADER))


@kernel(int64(bytes_in, int64))
def _sum_frame_size(buffer: Bytes, at: int) -> int:
    """Size of the SUM frame that follows a frame with a valid header; 0 if none follows."""
    is_batch = as_int64(buffer[at + 4]) == 2 and as_int64(buffer[at + 5]) == KIND_BATCH
    return SUM_FRAME_SIZE if is_batch and as_int64(buffer[at + _FLAGS_AT]) & FLAG_TRAILING_CHECKSUM else 0


@kernel(int64(bytes_out, int64, int64, int64, int64))
def _apply_sum(buffer: Bytes, at: int, size: int, summed: int, crc: int) -> int:
    """Verify the SUM frame after a batch, and copy its checksum to the batch. Returns SPLIT_MORE, or an error."""
    sum_at = at + size
    is_sum = load_i64(buffer, sum_at) == _SUM_START and load_i64(buffer, sum_at + 12) == load_i64(buffer, at + 12)
    is_sum &= load_u32(buffer, sum_at + 32) == SUM_FRAME_SIZE - _HEADER and load_u32(buffer, at + 36) == 0
    is_sum &= load_u32(buffer, sum_at + 8) == _header_crc(buffer, sum_at, _HEADER)
    is_sum &= load_u32(buffer, sum_at + 36) == crc32c(buffer, sum_at + _HEADER, sum_at + SUM_FRAME_SIZE, 0)
    if not is_sum:
        return SPLIT_NO_SUM
    found = crc32c(buffer, at + max(_BATCH_HEADER, summed), sum_at, crc)
    if found != load_u32(buffer, sum_at + _HEADER):
        return SPLIT_PAYLOAD_CRC
    buffer[at + _FLAGS_AT] ^= FLAG_TRAILING_CHECKSUM
    store_u32(buffer, at + 36, found)
    store_u32(buffer, at + 8, _header_crc(buffer, at, _BATCH_HEADER))
    return SPLIT_MORE


@kernel(void(bytes_in, int64, int64, int64_out))
def sum_arrived(buffer: Bytes, start: int, end: int, state: State) -> None:
    """Add the arrived bytes of an incomplete batch to its checksum while they are cached, for `split_frames` to use.

    The frame begins at `start`, where the last split stopped with SPLIT_MORE; up to `end` there are only its own bytes
    and those of its SUM frame. The frame may be moved before it is complete. Frames that are not batches are ignored.
    """
    if end - start <= _BATCH_HEADER or as_int64(buffer[start + 4]) != 2 or as_int64(buffer[start + 5]) != KIND_BATCH:
        return
    summed = max(_BATCH_HEADER, as_int64(state[STATE_SUMMED]))
    end = min(end, start + _HEADER + load_u32(buffer, start + 32))
    state[STATE_CRC] = crc32c(buffer, start + summed, end, as_int64(state[STATE_CRC]))
    state[STATE_SUMMED] = end - start


@kernel(int64(bytes_out, int64, int64, int64, record_array(FRAME_ROW), int64_out))
def split_frames(buffer: Bytes, start: int, end: int, payload_max: int, rows: Rows, state: State) -> int:
    """Report every complete frame of `buffer[start:end]` in `rows`. Returns the reason for stopping, a SPLIT code.

    Sets `state` to the version of the connection, the number of rows, the index of the first unconsumed byte, and the
    total size of the frame that starts there, as far as it is known. The bytes summed by `sum_arrived` belong to the
    frame at `start`; the sum is reset once that frame is complete.
    """
    version = state[STATE_VERSION]
    summed = as_int64(state[STATE_SUMMED])
    crc = as_int64(state[STATE_CRC])
    count = 0
    at = start
    code = SPLIT_MORE
    needed = 0
    while at < end:
        code = _check_start(buffer, at, end, version)
        needed = _HEADER
        if code != SPLIT_MORE or end - at < _HEADER:
            break
        verdict = _check_header(buffer, at, end, payload_max)
        if verdict != -1:
            needed = _BATCH_HEADER if verdict == SPLIT_MORE else needed
            code = verdict
            break
        version = as_int64(buffer[at + 4])
        length = load_u32(buffer, at + 32)
        size = _HEADER + length
        needed = size + _sum_frame_size(buffer, at)
        if end - at < needed:
            break
        is_sum = load_i64(buffer, at) == _SUM_START
        if count == rows.size and not is_sum:
            code = SPLIT_FULL
            break
        if needed > size:
            code = _apply_sum(buffer, at, size, summed, crc)
        elif _payload_matches(buffer, at, length, summed, crc) == 0:
            code = SPLIT_PAYLOAD_CRC
        summed = crc = 0
        if code != SPLIT_MORE:
            break
        if is_sum:
            at += needed
            needed = 0
            continue
        row = rows[count]
        row["at"] = at
        row["size"] = size
        row["id"] = load_u64(buffer, at + 12)
        row["timestamp_ns"] = load_u64(buffer, at + 20)
        row["record_count"] = load_u32(buffer, at + 28)
        row["payload_length"] = length
        row["payload_crc"] = load_u32(buffer, at + 36)
        row["topic_id"] = load_u32(buffer, at + 40)
        row["version"] = version
        row["kind"] = buffer[at + 5]
        row["command"] = load_u16(buffer, at + 6)
        row["header_crc"] = load_u32(buffer, at + 8)
        count += 1
        at += needed
        needed = 0
    state[STATE_VERSION] = version
    state[STATE_FRAMES] = count
    state[STATE_CONSUMED] = at
    state[STATE_NEEDED] = needed
    state[STATE_SUMMED] = summed
    state[STATE_CRC] = crc
    return code
