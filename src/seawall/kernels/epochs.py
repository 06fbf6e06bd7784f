"""The epochs of a write-ahead log: verify all batches of one, and find the next header behind damage.

An epoch is a header of 64 bytes and its batches, back to back. What the kernels need of the header:

    0  magic u32 "EPOC"     4  crc u32, CRC-32C of bytes 8–63     8  salt u64, the file's

and of a stored batch, 96 bytes of header and a block:

    0  magic u32 "LANC"     6  command u16              32 payload_length u32 (52 + block)     56 position u64
    4  version u8, 2        8  header_crc u32           36 block_crc u32                       80 raw_length u32
    5  kind u8, 4           28 record_count u32         44 reserved u32, 0                     93 ack, codec, flags

A batch is good here exactly if the codec of the wire takes it as a stored one: checksums, known values, and lengths
that agree with each other. So whoever gets a batch out of a verified epoch can parse it.

INV-EPOCH-BOUNDS: no byte outside `start` … `end` is read, whatever the bytes say.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall.kernels.checksum import crc32c
from seawall.kernels.jit import bytes_in, int64, int64_out, kernel, uint64
from seawall.kernels.memory import Bytes, as_int64, load_u16, load_u32, load_u64

Offsets = npt.NDArray[np.int64]

EPOCH_MAGIC = 0x434F5045
EPOCH_HEADER = 64
BATCH_HEADER = 96

#: What `batch_size` says of bytes that are no good batch.
BATCH_BAD = -1

_BATCH_MAGIC = 0x434E414C
_VERSION = 2
_KIND_BATCH = 4
_FRAME_HEADER = 44
_PROLOGUE = 52
_RECORD_HEADER = 5
_RAW_MAX = 16 * 1024 * 1024
_BLOCK_MAX = 64 * 1024 * 1024
_CODEC_MAX = 2
_ACK_MAX = 2
_AS_TOPIC = 0xFF
_OPAQUE = 2


@kernel(int64(bytes_in, int64))
def _fields_agree(buffer: Bytes, at: int) -> int:
    """Whether the fields of a whole batch header are known values and fit each other."""
    ack_level = as_int64(buffer[at + 93])
    codec = as_int64(buffer[at + 94])
    flags = as_int64(buffer[at + 95])
    if load_u32(buffer, at + 44) != 0 or codec > _CODEC_MAX or (flags != 0 and flags != _OPAQUE):
        return 0
    if ack_level > _ACK_MAX and ack_level != _AS_TOPIC:
        return 0
    raw_length = load_u32(buffer, at + 80)
    block_length = load_u32(buffer, at + 32) - _PROLOGUE
    if raw_length > _RAW_MAX or block_length > _BLOCK_MAX:
        return 0
    if codec == 0:
        if raw_length != block_length:
            return 0
    elif raw_length == 0:
        return 0
    if load_u16(buffer, at + 6) != 0:
        return 1
    count = load_u32(buffer, at + 28)
    if flags == _OPAQUE:
        return as_int64(count == 1)
    return as_int64(count * _RECORD_HEADER <= raw_length)


@kernel(int64(bytes_in, int64, int64))
def batch_size(buffer: Bytes, at: int, end: int) -> int:
    """Bytes of the good batch that begins at `at` and ends by `end`; else BATCH_BAD."""
    if end - at < BATCH_HEADER or load_u32(buffer, at) != _BATCH_MAGIC:
        return BATCH_BAD
    if as_int64(buffer[at + 4]) != _VERSION or as_int64(buffer[at + 5]) != _KIND_BATCH:
        return BATCH_BAD
    header_crc = crc32c(buffer, at + 12, at + BATCH_HEADER, crc32c(buffer, at, at + 8, 0))
    if header_crc != load_u32(buffer, at + 8):
        return BATCH_BAD
    payload_length = load_u32(buffer, at + 32)
    size = _FRAME_HEADER + payload_length
    if payload_length < _PROLOGUE or size > end - at or _fields_agree(buffer, at) == 0:
        return BATCH_BAD
    if crc32c(buffer, at + BATCH_HEADER, at + size, 0) != load_u32(buffer, at + 36):
        return BATCH_BAD
    return size


@kernel(int64(bytes_in, int64, int64, int64, int64, int64_out))
def verify_epoch(buffer: Bytes, start: int, end: int, first_position: int, batch_count: int, offsets: Offsets) -> int:
    """Count the good batches from `start` on, at most `batch_count`, whose positions are dense from `first_position`.

    `offsets` has room for one more than `batch_count`: it receives the start of each good batch and the end of the
    last. The epoch is valid if all are good and the last one ends at `end`.
    """
    at = start
    offsets[0] = start
    for index in range(batch_count):
        size = batch_size(buffer, at, end)
        if size == BATCH_BAD or load_u64(buffer, at + 56) != np.uint64(first_position + index):
            return index
        at += size
        offsets[index + 1] = at
    return batch_count


@kernel(int64(bytes_in, int64, int64, uint64))
def find_epoch(buffer: Bytes, start: int, end: int, salt: np.uint64) -> int:
    """The first byte from `start` on where a whole epoch header with this salt and a right checksum begins; else -1.

    Zeros, most of a preallocated file, are passed eight at a time: no header begins in one of them.
    """
    at = start
    last = end - EPOCH_HEADER
    while at <= last:
        if load_u64(buffer, at) == np.uint64(0):
            at += 8
            continue
        if (
            load_u32(buffer, at) == EPOCH_MAGIC
            and load_u64(buffer, at + 8) == salt
            and crc32c(buffer, at + 8, at + EPOCH_HEADER, 0) == load_u32(buffer, at + 4)
        ):
            return at
        at += 1
    return -1
