"""What the kernels of `lone_exchange` mean: a header by `struct`, an ack by `struct`."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from seawall.kernels.codec.frames import KIND_ACK, SPLIT_MORE, STATE_CONSUMED, STATE_FRAMES, Rows
from seawall.kernels.network import waiting_exchange as places
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import Values
from twins.codec.checksum import crc32c
from twins.codec.frames import split_frames

_START: Final = b"LANC\x02\x04\x00\x00"
_REST: Final = struct.Struct("<qqIIII4xq24xI4xII")
_ACK: Final = struct.Struct("<44x8xIIqqqqIIIBBH")


def seal_one_frame(frame: Bytes, arguments: Values) -> None:
    """Magic and kind, the checksum, and everything else behind it."""
    told = arguments.tolist()
    size = told[places.BLOCK_SIZE]
    block = np.ascontiguousarray(frame[places.BLOCK_AT : places.BLOCK_AT + size])
    rest = _REST.pack(
        *(told[places.CLIENT_SEQ], told[places.WALL_NS], told[places.RECORD_COUNT], 52 + size),
        *(crc32c(block, 0, size, 0), told[places.TOPIC_ID], told[places.CLIENT_ID], size),
        *(told[places.SESSION_EPOCH], told[places.CHOICES]),
    )
    covered = np.frombuffer(_START + rest, np.uint8)
    crc = crc32c(covered, 0, len(covered), 0)
    frame[: places.BLOCK_AT] = np.frombuffer(_START + struct.pack("<I", crc) + rest, np.uint8)


def read_one_answer(arguments: Values, answer: Bytes, size: int, rows: Rows, state: Values) -> int:
    """One whole ACK frame with one entry, of the batch on the desk, which is stored at a known position."""
    if size != _ACK.size or split_frames(answer, 0, size, 1 << 16, rows, state) != SPLIT_MORE:
        return places.OTHERWISE
    if (int(state[STATE_FRAMES]), int(state[STATE_CONSUMED]), int(answer[5])) != (1, size, KIND_ACK):
        return places.OTHERWISE
    batches, window, seq, base_seq, position, time_ns, _topic, run, _count, status, _level, _reason = _ACK.unpack(
        answer[:size].tobytes()
    )
    if seq != arguments[places.CLIENT_SEQ] or run > 1 or status or position < 0:
        return places.OTHERWISE
    arguments[places.BASE_SEQ : places.WAITED_NS] = base_seq, position, time_ns, batches, window
    return places.STORED
