"""Split a receive buffer into protocol frames: all complete frames in one call, each checked before it is reported.

Every frame has a 44-byte header (integers little-endian); version 2 batches go on with a 52-byte prologue:

    0  magic u32 "LANC"     6  command u16 (v2)      20 timestamp u64        36 payload_crc u32
    4  version u8           8  header_crc u32        28 record_count u32     40 topic_id u32
    5  flags (v1), kind     12 id u64                32 payload_length u32   44 … 95 prologue of a batch

    version 1   header_crc = CRC-32 (IEEE) of bytes 0–7; payload_crc = CRC-32 of the payload
    version 2   header_crc = CRC-32C of bytes 0–7 and 12–43 (12–95 for a batch); payload_crc = CRC-32C of the payload,
                of what follows the prologue for a batch, or 0 for FETCH_DATA and DATA, whose batches carry their own

Checks run in one order: magic, version, header checksum, kind, length, payload checksum. The first that fails stops
the split at that frame with a SPLIT code; complete frames before it stand. A wrong magic or version is found on the
first bytes that show it, so a stranger who sends five bytes of another protocol is not waited for.

INV-SPLIT-BOUND: a frame's length is compared with its bound before anything waits for, or makes room for, its payload.
INV-SPLIT-ONCE: what the caller feeds in any chunking gives the same rows and the same stop code.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.checksum import crc32, crc32c
from seawall.kernels.jit import bytes_in, int64, int64_out, kernel, record_array, void
from seawall.kernels.memory import Bytes, as_int64, load_u16, load_u32, load_u64

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

#: Places in `state`. In: version the connection has agreed on, 0 before its first frame. Out: the next three. Between
#: calls: how many bytes of a batch that is not whole were summed, counted from its first byte, and their checksum.
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

_HEADER = 44
_PROLOGUE = 52
_BATCH_HEADER = 96
_FETCH_DATA_EXTRA = 144


@kernel(int64(bytes_in, int64, int64, int64))
def _look_ahead(buffer: Bytes, at: int, end: int, version: int) -> int:
    """Refuse magic and version on however many of their bytes are there."""
    for index in range(min(4, end - at)):
        if as_int64(buffer[at + index]) != (MAGIC >> (8 * index)) & 0xFF:
            return SPLIT_MAGIC
    if end - at > 4:
        given = as_int64(buffer[at + 4])
        if (given != 1 and given != 2) or (version != 0 and given != version):
            return SPLIT_VERSION
    return SPLIT_MORE


@kernel(int64(bytes_in, int64, int64, int64))
def _check_header(buffer: Bytes, at: int, end: int, payload_max: int) -> int:
    """Judge a whole 44-byte header (96 for a batch, else SPLIT_MORE); -1 if it is good."""
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
    elif kind == KIND_CONTROL and (command == COMMAND_FETCH_DATA or command == COMMAND_DATA):
        bound = payload_max + _FETCH_DATA_EXTRA
    if crc32c(buffer, at + 12, at + covered, crc32c(buffer, at, at + 8, 0)) != stored_crc:
        return SPLIT_HEADER_CRC
    if kind != KIND_BATCH and kind != KIND_ACK and kind != KIND_KEEPALIVE and kind != KIND_CONTROL:
        return SPLIT_KIND
    return SPLIT_TOO_LARGE if length > bound else -1


@kernel(int64(bytes_in, int64, int64, int64, int64))
def _payload_matches(buffer: Bytes, at: int, length: int, summed: int, crc: int) -> int:
    """Whether the checksum of a payload is right, of which the first bytes, if any, have been summed."""
    stored_crc = load_u32(buffer, at + 36)
    first = at + _HEADER
    if as_int64(buffer[at + 4]) == 1:
        return as_int64(crc32(buffer, first, first + length, 0) == stored_crc)
    kind = as_int64(buffer[at + 5])
    command = load_u16(buffer, at + 6)
    if kind == KIND_CONTROL and (command == COMMAND_FETCH_DATA or command == COMMAND_DATA) and stored_crc == 0:
        return 1
    if kind == KIND_BATCH:
        left = at + max(_BATCH_HEADER, summed)
        return as_int64(crc32c(buffer, left, first + length, crc) == stored_crc)
    return as_int64(crc32c(buffer, first, first + length, 0) == stored_crc)


@kernel(void(bytes_in, int64, int64, int64_out))
def sum_ahead(buffer: Bytes, start: int, end: int, state: State) -> None:
    """Sum what has come of a frame that is not whole, while it is near, so that `split_frames` need not.

    The frame begins at `start`, where the last split stopped with SPLIT_MORE, and only its own bytes lie up to `end`.
    Where it is moved to before it is whole does not matter. Other frames than batches are left as they are.
    """
    if end - start <= _BATCH_HEADER or as_int64(buffer[start + 4]) != 2 or as_int64(buffer[start + 5]) != KIND_BATCH:
        return
    summed = max(_BATCH_HEADER, as_int64(state[STATE_SUMMED]))
    state[STATE_CRC] = crc32c(buffer, start + summed, end, as_int64(state[STATE_CRC]))
    state[STATE_SUMMED] = end - start


@kernel(int64(bytes_in, int64, int64, int64, record_array(FRAME_ROW), int64_out))
def split_frames(buffer: Bytes, start: int, end: int, payload_max: int, rows: Rows, state: State) -> int:
    """Report every complete frame of `buffer[start:end]` in `rows`; return why it stopped.

    Afterwards `state` holds the version of the connection, the number of rows, the index of the first byte not
    consumed, and how many bytes from there the next frame needs in all as far as that is known. What `sum_ahead` has
    summed is of the frame at `start`, and counts for nothing once that is whole.
    """
    version = state[STATE_VERSION]
    summed = as_int64(state[STATE_SUMMED])
    crc = as_int64(state[STATE_CRC])
    count = 0
    at = start
    code = SPLIT_MORE
    needed = 0
    while at < end:
        code = _look_ahead(buffer, at, end, version)
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
        needed = _HEADER + length
        if end - at < needed:
            break
        if count == rows.size:
            code = SPLIT_FULL
            break
        matches = _payload_matches(buffer, at, length, summed, crc)
        summed = crc = 0
        if matches == 0:
            code = SPLIT_PAYLOAD_CRC
            break
        row = rows[count]
        row["at"] = at
        row["size"] = needed
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
