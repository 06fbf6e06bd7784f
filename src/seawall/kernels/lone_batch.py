"""One batch becomes an epoch of the log by itself, in one call: its header, its numbers, the epoch's header.

That is the commonest commit, and calling a kernel costs for every array it is given. So this one gets two: the memory
in which block and headers lie, and a *desk*, on which it finds what it is told and the addresses of all other arrays,
and on which it leaves what the batch was given. Whoever lays addresses on a desk keeps the arrays alive.

    memory   epoch header, 64 bytes │ batch header, 96 bytes │ the block, written by the caller
"""

from __future__ import annotations

import numpy as np
from numba import carray

from seawall.kernels.batch_header import BLOCK_CRC_AT, CODEC_AT, FLAGS_AT
from seawall.kernels.checksum import crc32c
from seawall.kernels.epochs import EPOCH_HEADER, EPOCH_MAGIC, WAL_ROW, WalRows
from seawall.kernels.frontier import (
    ADMISSION_ROW,
    LAST_TIMESTAMP,
    NEXT_POSITION,
    RUN_DONE,
    STATUS_OK,
    TOPIC_ROW,
    Rows,
    admit_batch,
)
from seawall.kernels.jit import bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.memory import Bytes, as_int64, load_u32, pointer_at, store_u32, store_u64
from seawall.kernels.staging import write_header
from seawall.kernels.tables import Values

#: What the call is told.
BLOCK_LENGTH = 0
RECORD_COUNT = 1
TOPIC_ID = 2
CLIENT_ID = 3
RAW_LENGTH = 4
CHOICES = 5
SALT = 6
EPOCH = 7
SYNCED_THROUGH = 8
ADDRESS = 9
TERM = 10
WALL_NS = 11
STAGED_ROW = 12
#: What the batch was given.
POSITION = 13
BASE_SEQ = 14
BASE_OFFSET = 15
TIMESTAMP = 16
#: Pairs of an address and a length: the frontier's table, its topics, numbers and rows, and the rows of the log that
#: describe batches.
KEYS = 17
VALUES = 19
USED = 21
TOPICS = 23
NUMBERS = 25
ROWS = 27
STAGED = 29
DESK_SIZE = 31

#: The answer if the batch could not be admitted, which the caller has ruled out.
STAGE_REFUSED = -(1 << 40)

#: Where the block lies in the memory.
BLOCK_AT = EPOCH_HEADER + 96

_rows = record_array(ADMISSION_ROW)
_wal_rows = record_array(WAL_ROW)


@kernel(void(_rows, int64_out, bytes_out, _wal_rows))
def _describe(rows: Rows, desk: Values, memory: Bytes, staged: WalRows) -> None:
    """The batch as a row of the log."""
    row = rows[0]
    described = staged[desk[STAGED_ROW]]
    described["at"] = desk[ADDRESS] + EPOCH_HEADER
    described["position"] = row["position"]
    described["base_seq"] = row["base_seq"]
    described["base_offset"] = row["base_offset"]
    described["timestamp_ns"] = row["timestamp_ns"]
    described["client_id"] = desk[CLIENT_ID]
    described["client_seq"] = 0
    described["size"] = row["size"]
    described["count"] = row["record_count"]
    described["raw_length"] = desk[RAW_LENGTH]
    described["topic_id"] = row["topic_id"]
    described["term"] = desk[TERM]
    described["session_epoch"] = 0
    described["block_crc"] = load_u32(memory, EPOCH_HEADER + BLOCK_CRC_AT)
    described["command"] = 0
    described["codec"] = as_int64(memory[EPOCH_HEADER + CODEC_AT])
    described["flags"] = as_int64(memory[EPOCH_HEADER + FLAGS_AT])


@kernel(int64(bytes_out, int64, int64, int64, int64, int64, int64, int64))
def seal_epoch(
    memory: Bytes, length: int, count: int, salt: int, epoch: int, synced_through: int, position: int, time_ns: int
) -> int:
    """The header of an epoch of so many batches, which lie behind it in the memory; bytes of the epoch."""
    store_u32(memory, 0, EPOCH_MAGIC)
    store_u64(memory, 8, salt)
    store_u64(memory, 16, epoch)
    store_u64(memory, 24, length)
    store_u64(memory, 32, synced_through)
    store_u64(memory, 40, position)
    store_u32(memory, 48, count)
    store_u32(memory, 52, 0)
    store_u64(memory, 56, time_ns)
    store_u32(memory, 4, crc32c(memory, 8, EPOCH_HEADER, 0))
    return EPOCH_HEADER + length


@kernel(int64(bytes_out, int64_out))
def stage_lone_batch(memory: Bytes, desk: Values) -> int:
    """Make the block at `BLOCK_AT` an epoch of one batch, which begins where the memory does; its size."""
    keys = carray(pointer_at(desk[KEYS]), desk[KEYS + 1], np.uint64)
    values = carray(pointer_at(desk[VALUES]), desk[VALUES + 1], np.int64)
    used = carray(pointer_at(desk[USED]), desk[USED + 1], np.uint8)
    topics = carray(pointer_at(desk[TOPICS]), desk[TOPICS + 1], TOPIC_ROW)
    numbers = carray(pointer_at(desk[NUMBERS]), desk[NUMBERS + 1], np.int64)
    rows = carray(pointer_at(desk[ROWS]), desk[ROWS + 1], ADMISSION_ROW)
    staged = carray(pointer_at(desk[STAGED]), desk[STAGED + 1], WAL_ROW)
    first_position = numbers[NEXT_POSITION]
    length: int = desk[BLOCK_LENGTH]
    write_header(
        memory,
        EPOCH_HEADER,
        memory,
        BLOCK_AT,
        BLOCK_AT + length,
        desk[RECORD_COUNT],
        desk[TOPIC_ID],
        desk[CLIENT_ID],
        0,
        0,
        desk[RAW_LENGTH],
        desk[CHOICES],
    )
    code = admit_batch(memory, EPOCH_HEADER, desk[TERM], desk[WALL_NS], keys, values, used, topics, numbers, rows, 0)
    if code != RUN_DONE or rows[0]["status"] != STATUS_OK:
        return STAGE_REFUSED
    _describe(rows, desk, memory, staged)
    desk[POSITION] = rows[0]["position"]
    desk[BASE_SEQ] = rows[0]["base_seq"]
    desk[BASE_OFFSET] = rows[0]["base_offset"]
    desk[TIMESTAMP] = rows[0]["timestamp_ns"]
    time_ns = numbers[LAST_TIMESTAMP]
    return seal_epoch(memory, 96 + length, 1, desk[SALT], desk[EPOCH], desk[SYNCED_THROUGH], first_position, time_ns)
