"""What the kernels of `lone_turn` mean: the checks of the ordinary way, and an ACK frame by `struct`."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from seawall.kernels import lone_arrival
from seawall.kernels import lone_turn as places
from seawall.kernels.arriving import TAKEN
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.frames import KIND_BATCH, SPLIT_MORE, STATE_CONSUMED, STATE_FRAMES, Rows
from seawall.kernels.memory import Bytes
from seawall.kernels.tables import Values
from seawall.kernels.twins.arriving import judge_batch
from seawall.kernels.twins.checksum import crc32c
from seawall.kernels.twins.frames import split_frames

_START: Final = b"LANC\x02\x08\x00\x00"
_PREFIX: Final = struct.Struct("<QII")
_ENTRY: Final = struct.Struct("<qqqqIIIBBH")
_REST: Final = struct.Struct("<QQIIII")


def check_lone_turn(
    turn: Values, source: Bytes, size: int, lowest: int, orders: Bytes, levels: Bytes, rows: Rows, state: Values
) -> int:
    """One whole batch that may be taken, of a topic with an order, to be answered at some level."""
    words = turn.tolist()
    if split_frames(source, 0, size, words[places.PAYLOAD_MAX], rows, state) != SPLIT_MORE:
        return lone_arrival.PASSES_ON
    if (int(state[STATE_FRAMES]), int(state[STATE_CONSUMED]), int(source[5])) != (1, size, KIND_BATCH):
        return lone_arrival.PASSES_ON
    session = words[places.CLIENT_ID], words[places.SESSION_EPOCH] & 0xFFFF_FFFF, words[places.CODECS]
    if judge_batch(source, 0, int(rows["size"][0]), *session, orders, np.zeros(0, np.int64)) != TAKEN:
        return lone_arrival.PASSES_ON
    topic_id = int.from_bytes(source[40:44].tobytes(), "little")
    level = int(levels[topic_id]) if source[93] == 0xFF else int(source[93])
    turn[places.LEVEL] = level
    order = int(orders[topic_id])
    return order if level in range(lowest, 3) and order else lone_arrival.PASSES_ON


def has_room(desk: Values, source: Bytes, size: int) -> int:
    """Everything that there is room for is at least what the batch needs."""
    room = desk.tolist()
    count, topic_id = struct.unpack_from("<I8xI", source.tobytes(), 28)
    needs = ((places.BATCHES_LEFT, 1), (places.RECORDS_LEFT, count), (places.BYTES_LEFT, EPOCH_HEADER + size))
    has_all = all(room[place] >= needed for place, needed in needs)
    is_now = room[lone_arrival.WALL_NS] < room[places.UNTIL_NS]
    return int(has_all and is_now and topic_id == room[places.TOPIC_ID])


def seal_lone_ack(turn: Values, desk: Values, source: Bytes, ack: Bytes) -> None:
    """Prefix, the entries of those before it, its own, and the header before them."""
    words, given = turn.tolist(), desk[lone_arrival.POSITION : lone_arrival.TERM].tolist()
    count, topic_id = struct.unpack_from("<I8xI", source.tobytes(), 28)
    (client_seq,) = struct.unpack_from("<q", source.tobytes(), 12)
    position, base_seq, timestamp_ns = given
    window = words[places.WINDOW_BATCHES], words[places.WINDOW_BYTES]
    numbers = (client_seq, base_seq, position, timestamp_ns, topic_id, 1, count, 0, words[places.LEVEL], 0)
    turn[places.HIGHEST] = max(words[places.HIGHEST], client_seq)
    turn[places.ENTRIES] = entries = words[places.ENTRIES] + 1
    before = ack[places.ACK_PREFIX :][: (entries - 1) * places.ACK_ENTRY].tobytes()
    payload = _PREFIX.pack(words[places.SESSION_EPOCH], *window) + before + _ENTRY.pack(*numbers)
    crc = crc32c(np.frombuffer(payload, np.uint8), 0, len(payload), 0)
    rest = _REST.pack(int(turn[places.HIGHEST]), 0, entries, len(payload), crc, 0)
    covered = np.frombuffer(_START + rest, np.uint8)
    header = _START + struct.pack("<I", crc32c(covered, 0, len(covered), 0)) + rest
    ack[: len(header + payload)] = np.frombuffer(header + payload, np.uint8)


def prepare_next(desk: Values, size: int) -> None:
    """Everything that an epoch moves."""
    for place, step in ((lone_arrival.EPOCH, 1), (lone_arrival.STAGED_ROW, 1), (lone_arrival.FOLLOWED, 1)):
        desk[place] += step
    for place in (lone_arrival.ADDRESS, places.FILE_AT):
        desk[place] += size
    desk[lone_arrival.SYNCED_THROUGH] = desk[lone_arrival.ADDRESS]
