"""The batch header inside kernels: offsets of its fields, when it is valid, and the fields that a server writes.

`wire/format/batches.py` has the table with the meaning of the fields. All other kernels use the constants of this
module.

    0  magic u32    4 version u8   5 kind u8   6 command u16   8 crc u32 of everything else
    12 client_seq   20 timestamp   28 record_count u32   32 payload_length u32   36 block_crc u32   40 topic_id u32
    44 reserved     48 client_id   56 position   64 base_seq   72 base_offset   80 raw_length u32   84 term u32
    88 session_epoch u32   92 order u8   93 ack_level u8   94 codec u8   95 flags u8
"""

from __future__ import annotations

from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.codec.frames import KIND_BATCH, MAGIC
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, kernel, void
from seawall.kernels.runtime.memory import Bytes, as_int64, load_i64, load_u16, load_u32, store_u32, store_u64

VERSION_AT = 4
KIND_AT = 5
COMMAND_AT = 6
CRC_AT = 8
CLIENT_SEQ_AT = 12
TIMESTAMP_AT = 20
RECORD_COUNT_AT = 28
LENGTH_AT = 32
BLOCK_CRC_AT = 36
TOPIC_AT = 40
RESERVED_AT = 44
CLIENT_ID_AT = 48
POSITION_AT = 56
BASE_SEQ_AT = 64
BASE_OFFSET_AT = 72
RAW_LENGTH_AT = 80
TERM_AT = 84
SESSION_EPOCH_AT = 88
ORDER_AT = 92
LEVEL_AT = 93
CODEC_AT = 94
FLAGS_AT = 95
#: Size of the header, and of its first part, which every frame has: `payload_length` counts from the end of that part.
HEADER_SIZE = 96
FRAME_HEADER_SIZE = 44

#: The same as `limits.BLOCK_SIZE_MAX` and `limits.PAYLOAD_SIZE_MAX`.
RAW_SIZE_MAX = 16 * 1024 * 1024
BLOCK_SIZE_MAX = 64 * 1024 * 1024

_VERSION = 2
_CODEC_MAX = 2
_LEVEL_MAX = 2
_AS_TOPIC = 0xFF
_OPAQUE = 2
_KEYED = 4
_RECORD_HEADER = 5


@kernel(int64(bytes_in, int64))
def header_crc(buffer: Bytes, at: int) -> int:
    """Compute the checksum of a header."""
    return crc32c(buffer, at + CLIENT_SEQ_AT, at + HEADER_SIZE, crc32c(buffer, at, at + CRC_AT, 0))


@kernel(int64(bytes_in, int64))
def _fields_agree(buffer: Bytes, at: int) -> int:
    """1 if the fields of a header have known values and are consistent, else 0."""
    level = as_int64(buffer[at + LEVEL_AT])
    codec = as_int64(buffer[at + CODEC_AT])
    flags = as_int64(buffer[at + FLAGS_AT])
    if load_u32(buffer, at + RESERVED_AT) != 0 or codec > _CODEC_MAX or flags & ~(_OPAQUE | _KEYED):
        return 0
    # The client id of an idempotency key has its top bit set, that of a session does not.
    if flags & _KEYED and load_i64(buffer, at + CLIENT_ID_AT) >= 0:
        return 0
    if level > _LEVEL_MAX and level != _AS_TOPIC:
        return 0
    raw_length = load_u32(buffer, at + RAW_LENGTH_AT)
    block_length = load_u32(buffer, at + LENGTH_AT) - (HEADER_SIZE - FRAME_HEADER_SIZE)
    if raw_length > RAW_SIZE_MAX or block_length < 0 or block_length > BLOCK_SIZE_MAX:
        return 0
    if codec == 0:
        if raw_length != block_length:
            return 0
    elif raw_length == 0:
        return 0
    if load_u16(buffer, at + COMMAND_AT) != 0:
        return 1  # the record count of a control batch is not checked
    count = load_u32(buffer, at + RECORD_COUNT_AT)
    if flags & _OPAQUE:
        return as_int64(count == 1)
    return as_int64(count * _RECORD_HEADER <= raw_length)


@kernel(int64(bytes_in, int64, int64))
def stored_size(buffer: Bytes, at: int, end: int) -> int:
    """The size of the batch with a valid header at `at` if it ends by `end`, else 0; the block is not read.

    A header is valid exactly if the wire codec accepts it as that of a stored batch.
    """
    if end - at < HEADER_SIZE or load_u32(buffer, at) != MAGIC:
        return 0
    if as_int64(buffer[at + VERSION_AT]) != _VERSION or as_int64(buffer[at + KIND_AT]) != KIND_BATCH:
        return 0
    if header_crc(buffer, at) != load_u32(buffer, at + CRC_AT):
        return 0
    size = FRAME_HEADER_SIZE + load_u32(buffer, at + LENGTH_AT)
    return size if size <= end - at and _fields_agree(buffer, at) != 0 else 0


@kernel(void(bytes_out, int64))
def seal_header(buffer: Bytes, at: int) -> None:
    """Write the checksum of a header whose other fields are complete."""
    store_u32(buffer, at + CRC_AT, header_crc(buffer, at))


@kernel(void(bytes_out, int64, int64, int64, int64, int64, int64))
def stamp_header(
    buffer: Bytes, at: int, position: int, base_seq: int, base_offset: int, timestamp_ns: int, term: int
) -> None:
    """Write the fields that the server sets, and the checksum of the header."""
    store_u64(buffer, at + TIMESTAMP_AT, timestamp_ns)
    store_u64(buffer, at + POSITION_AT, position)
    store_u64(buffer, at + BASE_SEQ_AT, base_seq)
    store_u64(buffer, at + BASE_OFFSET_AT, base_offset)
    store_u32(buffer, at + TERM_AT, term)
    seal_header(buffer, at)
