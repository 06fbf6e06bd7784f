"""Batches of a segment, unpacked one at a time with `struct` from copies of the bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from seawall.kernels.codec.batch_header import BLOCK_SIZE_MAX
from seawall.kernels.log.segments import (
    SCAN_BLOCK,
    SCAN_FULL,
    SCAN_HEADER,
    SCAN_MORE,
    STATE_CONSUMED,
    STATE_COUNT,
    STATE_NEEDED,
    STATE_OFFSET,
    STATE_POSITION,
    STATE_SEQ,
    STATE_TIMESTAMP,
    VERDICT_BLOCK,
    VERDICT_GOOD,
    VERDICT_HEADER,
    Entries,
    State,
)
from seawall.kernels.runtime.memory import Bytes
from twins.codec.checksum import crc32c

_HEADER = struct.Struct("<4sBBHIQQIIIIIQQQQ")
_HEADER_SIZE = 96


@dataclass(frozen=True, slots=True)
class _Batch:
    base_seq: int
    timestamp_ns: int
    base_offset: int
    position: int
    count: int
    length: int
    block_crc: int

    def continues(self, state: State) -> bool:
        numbers = (self.base_seq, self.position, self.base_offset, self.timestamp_ns)
        bounds = (STATE_SEQ, STATE_POSITION, STATE_OFFSET, STATE_TIMESTAMP)
        return all(state[bound] <= number < 2**63 for bound, number in zip(bounds, numbers, strict=True))

    def block_matches(self, stored: bytes) -> bool:
        return _crc(stored[_HEADER_SIZE : self.length]) == self.block_crc


def _crc(message: bytes) -> int:
    return crc32c(np.frombuffer(message, np.uint8), 0, len(message), 0)


def _parse(stored: bytes, topic_id: int) -> _Batch | None:
    """The batch at the start of `stored`, or None if its header is not valid."""
    if len(stored) < _HEADER_SIZE:
        return None
    magic, version, kind, command, header_crc, _, timestamp_ns, count, length, block_crc, topic, *rest = (
        _HEADER.unpack_from(stored)
    )
    _, _, position, base_seq, base_offset = rest
    is_named = (magic, version, kind, command, topic) == (b"LANC", 2, 4, 0, topic_id)
    if not is_named or count == 0 or not 52 <= length <= 52 + BLOCK_SIZE_MAX:
        return None
    if _crc(stored[:8] + stored[12:_HEADER_SIZE]) != header_crc:
        return None
    return _Batch(base_seq, timestamp_ns, base_offset, position, count, 44 + length, block_crc)


def scan_batches(buffer: Bytes, start: int, end: int, shift: int, topic_id: int, entries: Entries, state: State) -> int:
    """List the valid adjacent batches from `start` on; returns why it stopped."""
    stored = buffer[start:end].tobytes()
    at, count, code, needed = 0, 0, SCAN_MORE, 0
    while at < len(stored):
        code, needed = SCAN_MORE, _HEADER_SIZE
        rest = stored[at:]
        if len(rest) < _HEADER_SIZE:
            break
        batch = _parse(rest, topic_id)
        if batch is None or not batch.continues(state):
            code = SCAN_HEADER
            break
        needed = batch.length
        if len(rest) < batch.length:
            break
        if count == entries.size:
            code = SCAN_FULL
            break
        if not batch.block_matches(rest):
            code = SCAN_BLOCK
            break
        for name in entries.dtype.names or ():
            entries[name][count] = start + at + shift if name == "at" else getattr(batch, name)
        state[STATE_SEQ], state[STATE_POSITION] = batch.base_seq + batch.count, batch.position
        state[STATE_OFFSET], state[STATE_TIMESTAMP] = batch.base_offset, batch.timestamp_ns
        count, at, needed = count + 1, at + batch.length, 0
    state[STATE_COUNT], state[STATE_CONSUMED], state[STATE_NEEDED] = count, start + at, needed
    return code


def find_header(buffer: Bytes, start: int, end: int, topic_id: int, state: State) -> int:
    """The index of the first valid header from `start` on that continues `state`; -1 if there is none."""
    stored = buffer[start:end].tobytes()
    at = stored.find(b"LANC")
    while at >= 0:
        batch = _parse(stored[at:], topic_id)
        if batch is not None and batch.continues(state):
            return start + at
        at = stored.find(b"LANC", at + 1)
    return -1


def verify_entries(buffer: Bytes, end: int, shift: int, entries: Entries, topic_id: int, verdicts: Bytes) -> int:
    """Verify every entry against its batch in `buffer[0:end]`; returns how many are not VERDICT_GOOD."""
    stored = buffer[:end].tobytes()
    for index in range(entries.size):
        verdicts[index] = _verdict(stored, shift, entries[index], topic_id)
    return int(np.count_nonzero(verdicts[: entries.size]))


def _verdict(stored: bytes, shift: int, entry: np.void, topic_id: int) -> int:
    at = int(entry["at"]) - shift
    if not 0 <= at <= len(stored):
        return VERDICT_HEADER
    batch = _parse(stored[at:], topic_id)
    fields = ("base_seq", "timestamp_ns", "base_offset", "position", "count", "length")
    if batch is None or any(getattr(batch, name) != int(entry[name]) for name in fields):
        return VERDICT_HEADER
    if at + batch.length > len(stored):
        return VERDICT_HEADER
    return VERDICT_GOOD if batch.block_matches(stored[at:]) else VERDICT_BLOCK
