"""What the kernel of `lone_batch` means, by the twins it is made of."""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import Any, Final

import numpy as np

from seawall.kernels import lone_batch as places
from seawall.kernels.epochs import EPOCH_HEADER, EPOCH_MAGIC, WAL_ROW
from seawall.kernels.frontier import ADMISSION_ROW, LAST_TIMESTAMP, NEXT_POSITION, RUN_DONE, STATUS_OK, TOPIC_ROW
from seawall.kernels.memory import Array, Bytes
from seawall.kernels.tables import Values
from seawall.kernels.twins.checksum import crc32c_portable
from seawall.kernels.twins.frontier import admit_batch
from seawall.kernels.twins.staging import write_header

_EPOCH: Final = Struct("<QQQQQIIQ")
_START: Final = Struct("<II")
_NUMBER: Final = np.dtype(np.int64)
_TYPES: Final[tuple[np.dtype[Any], ...]] = (
    np.dtype(np.uint64),
    _NUMBER,
    np.dtype(np.uint8),
    TOPIC_ROW,
    _NUMBER,
    ADMISSION_ROW,
    WAL_ROW,
)


def _array_at(address: int, size: int, dtype: np.dtype[Any]) -> Array:
    memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype)


def seal_epoch(
    memory: Bytes, length: int, count: int, salt: int, epoch: int, synced_through: int, position: int, time_ns: int
) -> int:
    """The header of an epoch of so many batches."""
    body = _EPOCH.pack(salt % (1 << 64), epoch, length, synced_through, position, count, 0, time_ns)
    memory[8:EPOCH_HEADER] = memoryview(body)
    memory[:8] = memoryview(_START.pack(EPOCH_MAGIC, crc32c_portable(memory, 8, EPOCH_HEADER, 0)))
    return EPOCH_HEADER + length


def stage_lone_batch(memory: Bytes, desk: Values) -> int:
    """The batch by its own, then its row, then the header of the epoch."""
    told = desk.tolist()
    length: int
    length, record_count, topic_id, client_id, raw_length, choices = told[: places.SALT]
    salt, epoch, synced_through, address, term, wall_ns, row_at = told[places.SALT : places.POSITION]
    referred = told[places.KEYS : places.DESK_SIZE]
    pairs = zip(referred[::2], referred[1::2], _TYPES, strict=True)
    arrays = [_array_at(at, size, dtype) for at, size, dtype in pairs]
    keys, values, used, topics, numbers, rows, staged = arrays
    first_position = int(numbers[NEXT_POSITION])
    at, end = EPOCH_HEADER, EPOCH_HEADER + 96 + length
    write_header(memory, at, memory, at + 96, end, record_count, topic_id, client_id, 0, 0, raw_length, choices)
    code = admit_batch(memory, at, term, wall_ns, keys, values, used, topics, numbers, rows, 0)
    row = rows[0]
    if code != RUN_DONE or row["status"] != STATUS_OK:
        return places.STAGE_REFUSED
    given = (row["position"], row["base_seq"], row["base_offset"], row["timestamp_ns"])
    desk[places.POSITION : places.KEYS] = given
    staged[row_at] = (
        *(address + at, *given, client_id % (1 << 64), 0, 96 + length, record_count, raw_length, topic_id, term),
        *(0, crc32c_portable(memory, at + 96, end, 0), 0, choices >> 16 & 0xFF, choices >> 24 & 0xFF),
    )
    time_ns = int(numbers[LAST_TIMESTAMP])
    return seal_epoch(memory, 96 + length, 1, salt, epoch, synced_through, first_position, time_ns)
