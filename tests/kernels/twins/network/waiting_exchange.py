"""The kernels of `waiting_exchange`: headers and acks by `struct`."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from seawall.kernels.codec.frames import KIND_ACK, SPLIT_MORE, STATE_CONSUMED, STATE_FRAMES, Rows
from seawall.kernels.network import waiting_exchange as kernel
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import Values
from twins.codec.checksum import crc32c
from twins.codec.frames import split_frames

_START: Final = b"LANC\x02\x04\x00\x00"
_REST: Final = struct.Struct("<qqIIII4xq24xI4xII")
_ACK: Final = struct.Struct("<44x8xIIqqqqIIIBBH")


def seal_one_frame(frame: Bytes, arguments: Values) -> None:
    """Write magic and kind, the checksum, then all other fields."""
    inputs = arguments.tolist()
    size = inputs[kernel.BLOCK_SIZE]
    block = np.ascontiguousarray(frame[kernel.BLOCK_AT : kernel.BLOCK_AT + size])
    rest = _REST.pack(
        *(inputs[kernel.CLIENT_SEQ], inputs[kernel.WALL_NS], inputs[kernel.RECORD_COUNT], 52 + size),
        *(crc32c(block, 0, size, 0), inputs[kernel.TOPIC_ID], inputs[kernel.CLIENT_ID], size),
        *(inputs[kernel.SESSION_EPOCH], inputs[kernel.CHOICES]),
    )
    covered = np.frombuffer(_START + rest, np.uint8)
    crc = crc32c(covered, 0, len(covered), 0)
    frame[: kernel.BLOCK_AT] = np.frombuffer(_START + struct.pack("<I", crc) + rest, np.uint8)


def read_one_answer(arguments: Values, answer: Bytes, size: int, rows: Rows, state: Values) -> int:
    """STORED for one complete ACK frame with one entry, which reports this batch as stored at a known position."""
    if size != _ACK.size or split_frames(answer, 0, size, 1 << 16, rows, state) != SPLIT_MORE:
        return kernel.UNRESOLVED
    if (int(state[STATE_FRAMES]), int(state[STATE_CONSUMED]), int(answer[5])) != (1, size, KIND_ACK):
        return kernel.UNRESOLVED
    batches, window, seq, base_seq, position, time_ns, _topic, run, _count, status, _level, _reason = _ACK.unpack(
        answer[:size].tobytes()
    )
    if seq != arguments[kernel.CLIENT_SEQ] or run > 1 or status or position < 0:
        return kernel.UNRESOLVED
    arguments[kernel.BASE_SEQ : kernel.WAITED_NS] = base_seq, position, time_ns, batches, window
    return kernel.STORED
