"""Batches of version 1 payloads: joined first, then encoded one at a time by `struct`."""

from __future__ import annotations

import struct

import numpy as np

from seawall.kernels.codec.frames import Rows
from seawall.kernels.codec.v1_payloads import JOINED_RECORDS_MAX, Integers
from seawall.kernels.runtime.memory import Bytes
from twins.codec.checksum import crc32c


def count_v1_records(buffer: Bytes, start: int, end: int) -> int:
    """Number of records in a payload if it is exactly a run of them, else 0."""
    payload = buffer[start:end].tobytes()
    count = 0
    while payload:
        if len(payload) < 5:
            return 0
        record_type, length = struct.unpack_from("<BI", payload)
        if len(payload) < 5 + length or (record_type == 0xFF and length):
            return 0
        payload = payload[5 + length :]
        count += 1
    return count


def make_batches(
    buffer: Bytes,
    rows: Rows,
    first: int,
    topic_id: int,
    client_id: int,
    client_seq: int,
    joined_size_max: int,
    out: Bytes,
    out_rows: Rows,
    frame_counts: Integers,
) -> int:
    """Make batches from a run of ingest frames. Returns the number of batches."""
    blocks: list[list[bytes]] = []
    counts: list[int] = []
    for at, _, _, _, _, length, _, wire_topic, _, kind, _, _ in rows[first:].tolist():
        if wire_topic != rows[first]["topic_id"] or kind not in (0, 4) or not length:
            break
        payload = buffer[at + 44 : at + 44 + length].tobytes()
        count = count_v1_records(buffer, at + 44, at + 44 + length)
        space = len(out) - sum(96 + len(b"".join(block)) for block in blocks)
        joins = bool(counts and counts[-1] and count) and (
            len(b"".join(blocks[-1])) + length <= joined_size_max
            and counts[-1] + count <= JOINED_RECORDS_MAX
            and length <= space
        )
        if joins:
            blocks[-1].append(payload)
            counts[-1] += count
        elif len(blocks) == len(out_rows) or space < 96 + length:
            break
        else:
            blocks.append([payload])
            counts.append(count)
    at = 0
    for index, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        batch = _batch(b"".join(block), count, topic_id, client_id, client_seq + index)
        out[at : at + len(batch)] = np.frombuffer(batch, np.uint8)
        for name, value in (
            *(("at", at), ("size", len(batch)), ("id", client_seq + index)),
            *(("topic_id", topic_id), ("record_count", count or 1)),
        ):
            out_rows[index][name] = value
        frame_counts[index] = len(block)
        at += len(batch)
    return len(blocks)


def _batch(block: bytes, count: int, topic_id: int, client_id: int, client_seq: int) -> bytes:
    head = struct.pack("<4sBBH", b"LANC", 2, 4, 0)
    tail = struct.pack("<QQIIII", client_seq, 0, count or 1, 52 + len(block), _crc(block), topic_id)
    tail += struct.pack("<IqQQQ", 0, client_id, 0, 0, 0)
    tail += struct.pack("<IIIBBBB", len(block), 0, 0, 0xFF, 2, 0, 0 if count else 2)
    return head + struct.pack("<I", _crc(head + tail)) + tail + block


def _crc(data: bytes) -> int:
    return crc32c(np.frombuffer(data, np.uint8), 0, len(data), 0)
