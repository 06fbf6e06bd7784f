"""The batch header inside kernels: offsets of its fields, its checksum, and the fields that a server writes.

`wire/format/batches.py` has the table with the meaning of the fields. All other kernels use the constants of this
module.

    0  magic u32    4 version u8   5 kind u8   6 command u16   8 crc u32 of everything else
    12 client_seq   20 timestamp   28 record_count u32   32 payload_length u32   36 block_crc u32   40 topic_id u32
    44 reserved     48 client_id   56 position   64 base_seq   72 base_offset   80 raw_length u32   84 term u32
    88 session_epoch u32   92 order u8   93 ack_level u8   94 codec u8   95 flags u8
"""

from __future__ import annotations

from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, kernel, void
from seawall.kernels.runtime.memory import Bytes, store_u32, store_u64

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


@kernel(int64(bytes_in, int64))
def header_crc(buffer: Bytes, at: int) -> int:
    """Compute the checksum of a header."""
    return crc32c(buffer, at + CLIENT_SEQ_AT, at + HEADER_SIZE, crc32c(buffer, at, at + CRC_AT, 0))


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
