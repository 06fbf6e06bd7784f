"""Frames, parsed one at a time from a copy of the bytes: the header by `struct`, the checks in the documented order."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from seawall.kernels.codec.frames import (
    FLAG_TRAILING_CHECKSUM,
    SPLIT_FULL,
    SPLIT_HEADER_CRC,
    SPLIT_KIND,
    SPLIT_MAGIC,
    SPLIT_MORE,
    SPLIT_NO_SUM,
    SPLIT_PAYLOAD_CRC,
    SPLIT_SHORT_BATCH,
    SPLIT_TOO_LARGE,
    SPLIT_VERSION,
    STATE_CONSUMED,
    STATE_CRC,
    STATE_FRAMES,
    STATE_NEEDED,
    STATE_SUMMED,
    STATE_VERSION,
    SUM_FRAME_SIZE,
    Rows,
    State,
)
from seawall.kernels.runtime.memory import Bytes
from twins.codec.checksum import crc32, crc32c

_HEADER = struct.Struct("<4sBBHIQQIIII")
_PROLOGUE_SIZE = 52
_FETCH_DATA_EXTRA = 144
_BATCH, _ACK, _KEEPALIVE, _CONTROL = 0x04, 0x08, 0x20, 0x40
_CARRIES_BATCHES = (0x51, 0x54)
_JOBS = 0x91
_SUM = 0x6D
_SUM_START = b"LANC\x02\x40\x6d\x00"
_REST = struct.Struct("<QQIIII")
_FLAGS_AT = 95


class _StopError(Exception):
    """The split stops: the SPLIT code, and the size of the frame as far as it is known."""

    def __init__(self, code: int, needed: int) -> None:
        super().__init__(code, needed)
        self.code = code
        self.needed = needed


@dataclass(frozen=True, slots=True)
class _Header:
    magic: bytes
    version: int
    kind: int
    command: int
    header_crc: int
    id: int
    timestamp_ns: int
    record_count: int
    payload_length: int
    payload_crc: int
    topic_id: int

    flags: int = 0

    @property
    def size(self) -> int:
        return _HEADER.size + self.payload_length

    @property
    def whole_size(self) -> int:
        has_sum_frame = self.is_batch and self.flags & FLAG_TRAILING_CHECKSUM
        return self.size + SUM_FRAME_SIZE if has_sum_frame else self.size

    @property
    def carries_batches(self) -> bool:
        return self._is_control(*_CARRIES_BATCHES)

    def _is_control(self, *commands: int) -> bool:
        return self.version == 2 and self.kind == _CONTROL and self.command in commands

    @property
    def is_batch(self) -> bool:
        return self.version == 2 and self.kind == _BATCH

    @property
    def is_sum(self) -> bool:
        return self._is_control(_SUM)

    def payload_bound(self, payload_max: int) -> int:
        if self.is_batch:
            return payload_max + _PROLOGUE_SIZE
        return payload_max + (_FETCH_DATA_EXTRA if self._is_control(*_CARRIES_BATCHES, _JOBS) else 0)


def _crc(version: int, *parts: bytes) -> int:
    message = np.frombuffer(b"".join(parts), np.uint8)
    return (crc32 if version == 1 else crc32c)(message, 0, message.size, 0)


def _header_of(frame: bytes) -> _Header:
    return _Header(*_HEADER.unpack_from(frame), *frame[_FLAGS_AT : _FLAGS_AT + 1])


def _parse_header(rest: bytes, version: int, payload_max: int) -> _Header:
    """The header at the beginning of `rest`, if it is complete and valid."""
    if not rest.startswith(b"LANC"[: len(rest)]):
        raise _StopError(SPLIT_MAGIC, _HEADER.size)
    if len(rest) > 4 and (rest[4] not in (1, 2) or version not in (0, rest[4])):
        raise _StopError(SPLIT_VERSION, _HEADER.size)
    if len(rest) < _HEADER.size:
        raise _StopError(SPLIT_MORE, _HEADER.size)
    header = _header_of(rest)
    covered = 8 if header.version == 1 else _HEADER.size
    if header.is_batch:
        covered = _HEADER.size + _PROLOGUE_SIZE
        if header.payload_length < _PROLOGUE_SIZE:
            raise _StopError(SPLIT_SHORT_BATCH, _HEADER.size)
        if len(rest) < covered:
            raise _StopError(SPLIT_MORE, covered)
    if _crc(header.version, rest[:8], rest[12:covered]) != header.header_crc:
        raise _StopError(SPLIT_HEADER_CRC, _HEADER.size)
    if header.version == 2 and header.kind not in (_BATCH, _ACK, _KEEPALIVE, _CONTROL):
        raise _StopError(SPLIT_KIND, _HEADER.size)
    if header.payload_length > header.payload_bound(payload_max):
        raise _StopError(SPLIT_TOO_LARGE, _HEADER.size)
    return header


def _sum_frame(frame_id: int, crc: int, timestamp_ns: int = 0, record_count: int = 0, topic_id: int = 0) -> bytes:
    payload = struct.pack("<I", crc)
    rest = _REST.pack(frame_id, timestamp_ns, record_count, len(payload), _crc(2, payload), topic_id)
    return _SUM_START + struct.pack("<I", _crc(2, _SUM_START, rest)) + rest + payload


def write_sum(target: Bytes, at: int, frame_id: int, crc: int) -> None:
    """Write a control frame with the checksum of the batch of that id."""
    target[at : at + SUM_FRAME_SIZE] = np.frombuffer(_sum_frame(frame_id, crc), np.uint8)


def _with_sum(frame: bytes, header: _Header, sum_frame: bytes) -> bytes:
    """The header of a batch with the checksum of its SUM frame filled in."""
    given = _header_of(sum_frame)
    (crc,) = struct.unpack_from("<I", sum_frame, _HEADER.size)
    expected = _sum_frame(header.id, crc, given.timestamp_ns, given.record_count, given.topic_id)
    if header.payload_crc or sum_frame != expected:
        raise _StopError(SPLIT_NO_SUM, header.whole_size)
    end = _HEADER.size + _PROLOGUE_SIZE
    if _crc(2, frame[end:]) != crc:
        raise _StopError(SPLIT_PAYLOAD_CRC, header.whole_size)
    rest = frame[12:36] + struct.pack("<I", crc) + frame[40:_FLAGS_AT] + bytes([header.flags ^ FLAG_TRAILING_CHECKSUM])
    return frame[:8] + struct.pack("<I", _crc(2, frame[:8], rest)) + rest


def _check_payload(header: _Header, payload: bytes) -> None:
    if header.carries_batches and header.payload_crc == 0:
        return
    checked = payload[_PROLOGUE_SIZE:] if header.is_batch else payload
    if _crc(header.version, checked) != header.payload_crc:
        raise _StopError(SPLIT_PAYLOAD_CRC, header.size)


def split_frames(buffer: Bytes, start: int, end: int, payload_max: int, rows: Rows, state: State) -> int:
    """Report every complete frame of `buffer[start:end]` in `rows`. Returns a SPLIT code."""
    received = buffer[start:end].tobytes()
    version, count, at = int(state[STATE_VERSION]), 0, 0
    code = needed = 0
    try:
        while at < len(received):
            rest = received[at:]
            header = _parse_header(rest, version, payload_max)
            version = header.version
            size = header.whole_size
            if len(rest) < size:
                raise _StopError(SPLIT_MORE, size)
            if count == rows.size and not header.is_sum:
                raise _StopError(SPLIT_FULL, size)
            if size > header.size:
                completed = _with_sum(rest[: header.size], header, rest[header.size : size])
                buffer[start + at : start + at + len(completed)] = np.frombuffer(completed, np.uint8)
                header = _header_of(completed)
            else:
                _check_payload(header, rest[_HEADER.size : size])
            if not header.is_sum:
                _report(rows, count, start + at, header)
                count += 1
            at += size
    except _StopError as stop:
        code, needed = stop.code, stop.needed
    state[STATE_VERSION], state[STATE_FRAMES] = version, count
    state[STATE_CONSUMED], state[STATE_NEEDED] = start + at, needed
    if at or code in (SPLIT_PAYLOAD_CRC, SPLIT_NO_SUM):
        state[STATE_SUMMED] = state[STATE_CRC] = 0
    return code


def sum_arrived(buffer: Bytes, start: int, end: int, state: State) -> None:
    """The checksum of all arrived bytes of a batch, whatever was summed before."""
    frame = buffer[start:end].tobytes()
    prologue_end = _HEADER.size + _PROLOGUE_SIZE
    if len(frame) > prologue_end and (frame[4], frame[5]) == (2, _BATCH):
        frame = frame[: _HEADER.size + int.from_bytes(frame[32:36], "little")]
        state[STATE_SUMMED], state[STATE_CRC] = len(frame), _crc(2, frame[prologue_end:])


def _report(rows: Rows, index: int, at: int, header: _Header) -> None:
    rows["at"][index] = at
    rows["size"][index] = header.size
    for name in rows.dtype.names or ():
        if name not in ("at", "size"):
            rows[name][index] = getattr(header, name)
