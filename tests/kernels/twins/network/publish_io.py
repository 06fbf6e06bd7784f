"""The kernels of `publish_io`: frame by frame, with acks built by `struct`."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from seawall.kernels.admission.arriving import ACCEPTED, NO_TOPIC
from seawall.kernels.codec.batch_header import CLIENT_SEQ_AT, LEVEL_AT, RECORD_COUNT_AT, TOPIC_AT
from seawall.kernels.codec.frames import (
    KIND_BATCH,
    SPLIT_MORE,
    STATE_CONSUMED,
    STATE_FRAMES,
    STATE_NEEDED,
    STATE_VERSION,
    Rows,
)
from seawall.kernels.log.cycle_records import LARGE_SIZE
from seawall.kernels.network import publish_io as kernel
from seawall.kernels.runtime.memory import Array, Bytes
from seawall.kernels.runtime.tables import Values
from twins.admission.arriving import validate_batch
from twins.codec.checksum import crc32, crc32c
from twins.codec.frames import split_frames
from twins.codec.v1_payloads import make_batches

_START: Final = b"LANC\x02\x08\x00\x00"
_V1_START: Final = b"LANC\x01\x08\x00\x00"
_PREFIX: Final = struct.Struct("<QII")
_ENTRY: Final = struct.Struct("<qqqqIIIBBH")
_REST: Final = struct.Struct("<QQIIII")


def _u32(buffer: Bytes, at: int) -> int:
    return int.from_bytes(buffer[at : at + 4].tobytes(), "little")


def _client_seq(buffer: Bytes, at: int) -> int:
    return int.from_bytes(buffer[at + CLIENT_SEQ_AT :][:8].tobytes(), "little", signed=True)


def _is_handled(connection: Any, buffer: Bytes, frame: Any, orders: Bytes) -> bool:
    at, size = int(frame["at"]), int(frame["size"])
    if size >= LARGE_SIZE or frame["kind"] != KIND_BATCH or _client_seq(buffer, at) != connection["highest"] + 1:
        return False
    session = int(connection["client_id"]), int(connection["session_epoch"]) & 0xFFFF_FFFF
    verdict = validate_batch(buffer, at, size, *session, 0, orders, np.zeros(0, np.int64))
    return verdict == ACCEPTED and bool(orders[_u32(buffer, at + TOPIC_AT)])


def accept_batches(
    connections: Array,
    index: int,
    buffer: Bytes,
    at: int,
    end: int,
    received: Array,
    count: int,
    orders: Bytes,
    levels: Bytes,
    rows: Rows,
    state: Values,
) -> int:
    """Accept frame by frame, up to the first that is not handled here."""
    connection = connections[index]
    state[:] = 0
    state[STATE_VERSION] = 2
    code = split_frames(buffer, at, end, int(connection["payload_max"]), rows, state)
    connection["rest_at"], connection["rest_end"], connection["end"] = int(state[STATE_CONSUMED]), end, end
    for frame in rows[: int(state[STATE_FRAMES])]:
        if not _is_handled(connection, buffer, frame, orders):
            connection["state"], connection["rest_at"] = kernel.RETURNED, int(frame["at"])
            return count
        level, topic_id = int(buffer[int(frame["at"]) + LEVEL_AT]), int(frame["topic_id"])
        row = received[count]
        row["connection"], row["at"], row["size"] = index, int(frame["at"]), int(frame["size"])
        row["is_strong"] = orders[topic_id] == 5
        row["level"] = int(levels[topic_id]) if level == 0xFF else level
        row["frames_at"], row["frames"], row["is_staged"] = int(frame["at"]), 1, 0
        connection["highest"] += 1
        count += 1
    if code != SPLIT_MORE or state[STATE_NEEDED] > LARGE_SIZE:
        connection["state"] = kernel.RETURNED
    return count


def accept_v1_frames(
    connections: Array,
    index: int,
    buffer: Bytes,
    at: int,
    end: int,
    received: Array,
    count: int,
    orders: Bytes,
    rows: Rows,
    made_rows: Rows,
    frame_counts: Values,
    state: Values,
) -> int:
    """Convert all frames to batches, up to the first that cannot be one."""
    connection = connections[index]
    state[:] = 0
    state[STATE_VERSION] = 1
    code = split_frames(buffer, at, end, int(connection["payload_max"]), rows, state)
    frames, topic_id = rows[: int(state[STATE_FRAMES])], int(connection["topic_id"])
    connection["rest_at"], connection["rest_end"], connection["end"] = int(state[STATE_CONSUMED]), end, end
    has_ended = code != SPLIT_MORE or state[STATE_NEEDED] > LARGE_SIZE
    order = int(orders[topic_id]) if topic_id < len(orders) else NO_TOPIC
    is_handled = order not in (0, NO_TOPIC) and len(frames) and frames[0]["topic_id"] == connection["wire_topic"]
    made = frames_used = 0
    if is_handled:
        out = buffer[end:][: kernel.V1_RECEIVE_SIZE - LARGE_SIZE]
        numbers = (0, topic_id, int(connection["client_id"]), int(connection["highest"]) + 1, LARGE_SIZE - 97)
        made_rows = made_rows[: max(0, len(received) - count)]
        made = make_batches(buffer, frames, *numbers, out, made_rows, frame_counts)
    for batch, frame_count in zip(made_rows[:made], frame_counts.tolist(), strict=False):
        if batch["size"] >= LARGE_SIZE:
            break
        row = received[count]
        row["connection"], row["at"], row["size"] = index, end + int(batch["at"]), int(batch["size"])
        row["is_strong"], row["level"], row["is_staged"] = order == 5, 2, 0
        row["frames_at"], row["frames"] = int(frames[frames_used]["at"]), frame_count
        connection["highest"] += 1
        connection["end"] = int(row["at"]) + int(row["size"])
        count, frames_used = count + 1, frames_used + frame_count
    if frames_used < len(frames):
        connection["rest_at"] = int(frames[frames_used]["at"])
    if has_ended or frames_used < len(frames):
        connection["state"] = kernel.RETURNED
    return count


def write_v1_acks(buffer: Bytes, received: Array, first: int, end: int, acks: Bytes, at: int) -> int:
    """Write one header per frame, with the id of the frame."""
    frames = []
    for row in received[first:end]:
        frame_at = int(row["frames_at"])
        for _ in range(int(row["frames"])):
            start = np.frombuffer(_V1_START, np.uint8)
            crc = struct.pack("<I", crc32(start, 0, len(start), 0))
            frames.append(_V1_START + crc + buffer[frame_at + 12 : frame_at + 20].tobytes() + bytes(24))
            frame_at += 44 + _u32(buffer, frame_at + 32)
    written = b"".join(frames)
    acks[at : at + len(written)] = np.frombuffer(written, np.uint8)
    return at + len(written)


def write_ack(
    connections: Array, index: int, buffer: Bytes, received: Array, first: int, end: int, acks: Bytes, at: int
) -> int:
    """Write the header and the entries, merged where allowed."""
    connection = connections[index]
    entries: list[tuple[int, ...]] = []
    can_join = False
    for row in received[first:end]:
        source, level = int(row["at"]), int(row["level"])
        topic_id, count = _u32(buffer, source + TOPIC_AT), _u32(buffer, source + RECORD_COUNT_AT)
        if not level:
            can_join = False
            continue
        run = 1
        if can_join and connection["has_runs"] and entries[-1][4] == topic_id and entries[-1][8] == level:
            run += entries.pop()[5]
        numbers = (int(row[name]) for name in ("base_seq", "position", "timestamp_ns"))
        entries.append((_client_seq(buffer, source), *numbers, topic_id, run, count, 0, level, 0))
        can_join = True
    if not entries:
        return at
    through = _client_seq(buffer, int(received[end - 1]["at"]))
    window = int(connection["window_batches"]), int(connection["window_bytes"])
    payload = _PREFIX.pack(int(connection["session_epoch"]), *window) + b"".join(_ENTRY.pack(*each) for each in entries)
    crc = crc32c(np.frombuffer(payload, np.uint8), 0, len(payload), 0)
    rest = _REST.pack(through, 0, len(entries), len(payload), crc, 0)
    covered = np.frombuffer(_START + rest, np.uint8)
    frame = _START + struct.pack("<I", crc32c(covered, 0, len(covered), 0)) + rest + payload
    acks[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
    return at + len(frame)
