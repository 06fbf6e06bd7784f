"""Admission of one batch at a time: unpacks the header with `struct`, packs it again, recomputes its checksum."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np

from seawall.kernels.admission.frontier import (
    LAST_TIMESTAMP,
    NEXT_POSITION,
    PROGRESS_CONSUMED,
    PROGRESS_ROWS,
    REASON_READ_ONLY,
    REASON_TOPIC_DELETED,
    REASON_TOPIC_NOT_FOUND,
    RUN_CUT,
    RUN_DONE,
    RUN_FULL,
    RUN_NEEDS_CEILING,
    STATUS_OK,
    STATUS_REJECTED,
    TOPIC_DELETED,
    TOPIC_FULL,
    FrontierArrays,
    Rows,
)
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import Values
from twins.codec.checksum import crc32c

_HEADER = struct.Struct("<8sIQQIIIIIQQQQII8s")
_UNKNOWN = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a batch header."""

    front: bytes
    header_crc: int
    client_seq: int
    timestamp_ns: int
    record_count: int
    payload_length: int
    block_crc: int
    topic_id: int
    reserved: int
    client_id: int
    position: int
    base_seq: int
    base_offset: int
    raw_length: int
    term: int
    back: bytes

    @property
    def is_control(self) -> bool:
        """True if the command is not 0."""
        return self.front[6:] != bytes(2)

    @property
    def session_epoch(self) -> int:
        """The low 32 bits of the session epoch."""
        return int.from_bytes(self.back[:4], "little")

    @property
    def size(self) -> int:
        """The size of the batch in bytes, header included."""
        return 44 + self.payload_length

    def pack(self) -> bytes:
        """The 96 bytes with a correct checksum."""
        values = [getattr(self, name) for name in self.__slots__]
        packed = _HEADER.pack(*values)
        covered = np.frombuffer(packed[:8] + packed[12:], np.uint8)
        return packed[:8] + crc32c(covered, 0, covered.size, 0).to_bytes(4, "little") + packed[12:]


def header_at(buffer: Bytes, at: int) -> Header:
    """The header of the batch at an offset."""
    return Header(*_HEADER.unpack(buffer[at : at + _HEADER.size].tobytes()))


def next_timestamp(last_ns: int, wall_ns: int) -> int:
    """One more than the last, or the start of the wall clock's millisecond."""
    return max(last_ns + 1, wall_ns // 1_000_000 * 1_000_000)


def batch_end(buffer: Bytes, at: int, end: int) -> int:
    """The end of the batch, or -1 if it is not complete before `end`."""
    if end - at < _HEADER.size:
        return -1
    size = header_at(buffer, at).size
    return at + size if _HEADER.size <= size <= end - at else -1


def settle_row(rows: Rows, index: int, status: int, reason: int) -> None:
    """Fill a row with a status and without numbers."""
    for name, value in (("position", _UNKNOWN), ("base_seq", 0), ("base_offset", 0), ("timestamp_ns", 0)):
        rows[index][name] = value
    rows[index]["status"], rows[index]["reason"] = status, reason


def describe_row(buffer: Bytes, at: int, rows: Rows, index: int) -> None:
    """Fill the fields of a row that identify its batch."""
    header = header_at(buffer, at)
    row = rows[index]
    row["at"], row["size"], row["topic_id"] = at, header.size, header.topic_id
    row["record_count"], row["reserved"] = header.record_count, 0


def admit_batch(
    buffer: Bytes,
    at: int,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    rows: Rows,
    index: int,
) -> int:
    """Refuse the batch, or stamp it and advance the counters."""
    keys, values, used, topics, numbers = frontier
    describe_row(buffer, at, rows, index)
    header = header_at(buffer, at)
    clock = timestamp = next_timestamp(int(numbers[LAST_TIMESTAMP]), wall_ns)
    base_seq = base_offset = 0
    if not header.is_control:
        found = [int(values[entry]) for entry in np.flatnonzero(used) if int(keys[entry]) == header.topic_id]
        reason = REASON_TOPIC_NOT_FOUND
        if found:
            flags = int(topics[found[0]]["flags"])
            reason = REASON_TOPIC_DELETED if flags & TOPIC_DELETED else REASON_READ_ONLY if flags & TOPIC_FULL else 0
        if reason:
            settle_row(rows, index, STATUS_REJECTED, reason)
            return RUN_DONE
        topic = topics[found[0]]
        base_seq, base_offset = int(topic["next_seq"]), int(topic["next_offset"])
        if base_seq + header.record_count > int(topic["ceiling"]):
            topic["wanted"] = base_seq + header.record_count
            return RUN_NEEDS_CEILING
        timestamp = max(timestamp, int(topic["last_timestamp_ns"]))
        topic["last_timestamp_ns"] = timestamp
        for name, more in (
            ("next_seq", header.record_count),
            ("next_offset", header.raw_length),
            ("record_total", header.record_count),
            ("byte_total", header.size),
        ):
            topic[name] = int(topic[name]) + more
    position = int(numbers[NEXT_POSITION])
    numbers[NEXT_POSITION], numbers[LAST_TIMESTAMP] = position + 1, clock
    stamped = replace(
        header, timestamp_ns=timestamp, position=position, base_seq=base_seq, base_offset=base_offset, term=term
    )
    buffer[at : at + _HEADER.size] = np.frombuffer(stamped.pack(), np.uint8)
    row = rows[index]
    row["position"], row["base_seq"], row["base_offset"], row["timestamp_ns"] = (
        *(position, base_seq, base_offset),
        timestamp,
    )
    row["status"], row["reason"] = STATUS_OK, 0
    return RUN_DONE


def next_batch_end(buffer: Bytes, at: int, end: int, rows_left: int) -> int:
    """The end of the next batch, or minus the reason to stop before it."""
    after = batch_end(buffer, at, end)
    return -RUN_CUT if after < 0 else -RUN_FULL if rows_left == 0 else after


def admit_run(
    buffer: Bytes,
    start: int,
    end: int,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    rows: Rows,
    progress: Values,
) -> int:
    """`admit_batch` for each batch, until one stops the run."""
    at, count, code = start, 0, RUN_DONE
    while at < end and code == RUN_DONE:
        after = next_batch_end(buffer, at, end, len(rows) - count)
        code = -after if after < 0 else admit_batch(buffer, at, term, wall_ns, frontier, rows, count)
        if code == RUN_DONE:
            at, count = after, count + 1
    progress[PROGRESS_ROWS], progress[PROGRESS_CONSUMED] = count, at
    return code
