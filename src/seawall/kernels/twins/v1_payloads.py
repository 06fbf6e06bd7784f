"""Payloads of version 1, taken apart by `struct` from copies of the bytes."""

from __future__ import annotations

import struct

import numpy as np

from seawall.kernels.frames import Rows
from seawall.kernels.memory import Bytes
from seawall.kernels.v1_payloads import PAYLOADS_RECORDS, PAYLOADS_SIZE, Integers


def count_v1_records(buffer: Bytes, start: int, end: int) -> int:
    """Records of a payload if it is exactly a run of them, else 0."""
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


def gather_payloads(buffer: Bytes, rows: Rows, first: int, records_max: int, block: Bytes, state: Integers) -> int:
    """Put the payloads of a run of frames into a block."""
    payloads: list[bytes] = []
    records = 0
    for row in rows[first:]:
        start = int(row["at"]) + 44
        count = count_v1_records(buffer, start, start + int(row["payload_length"]))
        payload = buffer[start : start + int(row["payload_length"])].tobytes()
        if row["topic_id"] != rows[first]["topic_id"] or row["kind"] not in (0, 4) or not count:
            break
        if sum(map(len, payloads)) + len(payload) > len(block) or records + count > records_max:
            break
        payloads.append(payload)
        records += count
    joined = b"".join(payloads)
    block[: len(joined)] = np.frombuffer(joined, np.uint8)
    state[PAYLOADS_SIZE], state[PAYLOADS_RECORDS] = len(joined), records
    return len(payloads)


def count_opaque_payloads(buffer: Bytes, rows: Rows, first: int, size_max: int) -> int:
    """How many frames in a row bring opaque payloads to one topic."""
    taken = size = 0
    for at, _, _, _, _, length, _, topic_id, _, kind, _, _ in rows[first:].tolist():
        size += length
        is_opaque = length and not count_v1_records(buffer, at + 44, at + 44 + length)
        if topic_id != rows[first]["topic_id"] or kind not in (0, 4) or not is_opaque or size > size_max:
            break
        taken += 1
    return taken
