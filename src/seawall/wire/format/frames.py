"""Encode and parse the 44-byte frame header of both protocol versions, and compute its checksums.

A frame is a header and `payload_length` bytes. Frames follow each other directly, in any chunking. `decoder.py` splits
received bytes into frames; `lwp1`, `lwp2` and `batches.py` interpret payloads. This module must not know any payload.

| at | size | field          | version 1                            | version 2                                       |
|----|------|----------------|--------------------------------------|-------------------------------------------------|
| 0  | 4    | magic          | `LANC`                               | `LANC`                                          |
| 4  | 1    | version        | 1                                    | 2                                               |
| 5  | 1    | kind           | flags (`V1Flags`), several at once   | exactly one `Kind`                              |
| 6  | 2    | command        | reserved: sent 0, ignored            | command of its kind                             |
| 8  | 4    | header_crc     | CRC-32 IEEE of bytes 0–7             | CRC-32C of 0–7 then 12–43; BATCH 0–7 then 12–95 |
| 12 | 8    | id             | batch_id, command code in control    | request id, client_seq, acked-through           |
| 20 | 8    | timestamp_ns   | sender's clock, advisory             | sender's clock; stored batch: server's          |
| 28 | 4    | record_count   | never validated                      | exact                                           |
| 32 | 4    | payload_length | at most 16 MiB                       | see `payload_size_max`                          |
| 36 | 4    | payload_crc    | CRC-32 IEEE of the payload, 0 if none| CRC-32C; BATCH: block only; data frames: 0      |
| 40 | 4    | topic_id       | ingest target, else 0                | or 0                                            |

Receivers check in this order: magic, version, header CRC, kind, length, payload CRC, meaning. In version 1 no checksum
covers bytes 12 to 43, as published.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

import crc32c

from seawall import limits
from seawall.core.types import TimestampNs, TopicId
from seawall.errors import LimitError, ProtocolError
from seawall.wire.format.codes import MAGIC, VERSION_1, VERSION_2, Command, ErrorCode, Kind
from seawall.wire.format.fields import Buffer, pack

#: magic, version, kind, command, header_crc, id, timestamp_ns, record_count, payload_length, payload_crc, topic_id
_HEADER = Struct("<4sBBHIQQIIII")
_HEADER_START = Struct("<4sBBH")
_HEADER_REST = Struct("<QQIIII")
_CRC = Struct("<I")

assert _HEADER.size == limits.FRAME_HEADER_SIZE
assert _HEADER_START.size + _CRC.size + _HEADER_REST.size == limits.FRAME_HEADER_SIZE


class FrameHeader(NamedTuple):
    """The fields of a header, without magic and checksum, which are not needed once the frame is accepted.

    `kind` is byte 5 as sent: a `Kind` in version 2, `V1Flags` in version 1. `command` is 0 in version 1, where the
    command of a control frame is its `id`.
    """

    version: int
    kind: int
    command: int
    id: int
    timestamp_ns: TimestampNs
    record_count: int
    payload_length: int
    payload_crc: int
    topic_id: TopicId

    @property
    def frame_size(self) -> int:
        """Bytes of the whole frame."""
        return limits.FRAME_HEADER_SIZE + self.payload_length


def checksum(data: Buffer, start: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`, continued from `start`: the checksum of version 2 and of all stored data."""
    value: int = crc32c.crc32c(data, start)
    return value


def header_crc_v1(header: Buffer) -> int:
    """The required value of bytes 8–11 of a version 1 header."""
    return zlib.crc32(header[:8])


def header_crc_v2(header: Buffer) -> int:
    """The required value of bytes 8–11 of a version 2 header; `header` has exactly 44 bytes, or 96 for a BATCH."""
    return checksum(header[12:], checksum(header[:8]))


def parse_frame_header(view: Buffer) -> FrameHeader:
    """Parse the header at the start of `view`; check its magic and version.

    It does not check checksum and length: the checksum of a BATCH needs bytes that may not have arrived yet, and only
    the connection knows the bound of the length.
    """
    if len(view) < limits.FRAME_HEADER_SIZE:
        raise ProtocolError(
            f"frame header: {len(view)} bytes, needs {limits.FRAME_HEADER_SIZE}",
            code=ErrorCode.INVALID_PAYLOAD,
            closes=True,
            answered=False,
        )
    magic, version, kind, command, _crc, *rest = _HEADER.unpack_from(view)
    if magic != MAGIC:
        # Another protocol or noise: the peer would not understand an answer.
        raise ProtocolError(f"frame header: magic {magic!r}", code=ErrorCode.BAD_MAGIC, closes=True, answered=False)
    if version not in {VERSION_1, VERSION_2}:
        raise ProtocolError(
            f"frame header: version {version}, supported are {VERSION_1} and {VERSION_2}",
            code=ErrorCode.UNSUPPORTED_VERSION,
            closes=True,
        )
    return FrameHeader(version, kind, command if version == VERSION_2 else 0, *rest)


def payload_size_max(version: int, kind: int, command: int, agreed: int = limits.PAYLOAD_SIZE_MIN) -> int:
    """The largest payload of such a frame; `agreed` is the payload bound that both peers of version 2 accept.

    BATCH may exceed it by the prologue, data frames and JOBS by their prefix and one batch header, so that a block of
    the agreed size always fits one frame.
    """
    if version == VERSION_1:
        return limits.V1_PAYLOAD_SIZE_MAX
    if kind == Kind.BATCH:
        return agreed + limits.BATCH_PROLOGUE_SIZE
    if kind == Kind.CONTROL and command in {Command.FETCH_DATA, Command.DATA, Command.JOBS}:
        return agreed + limits.FETCH_DATA_EXTRA_SIZE
    return agreed


def encode_header_v1(
    flags: int,
    *,
    batch_id: int = 0,
    timestamp_ns: int = 0,
    record_count: int = 0,
    payload_length: int = 0,
    payload_crc: int = 0,
    topic_id: int = 0,
) -> bytes:
    """Encode a version 1 header; the payload follows in its own buffer."""
    if payload_length > limits.V1_PAYLOAD_SIZE_MAX:
        raise LimitError(f"version 1 frame: payload of {payload_length} bytes, at most {limits.V1_PAYLOAD_SIZE_MAX}")
    start = pack(_HEADER_START, "version 1 header", MAGIC, VERSION_1, flags, 0)
    rest = pack(
        _HEADER_REST,
        "version 1 header",
        batch_id,
        timestamp_ns,
        record_count,
        payload_length,
        payload_crc,
        topic_id,
    )
    return start + _CRC.pack(zlib.crc32(start)) + rest


def encode_header_v2(
    kind: int,
    command: int,
    *,
    request_id: int = 0,
    timestamp_ns: int = 0,
    record_count: int = 0,
    payload_length: int = 0,
    payload_crc: int = 0,
    topic_id: int = 0,
) -> bytes:
    """Encode a version 2 header of any kind but BATCH, whose checksum also covers its prologue (`batches.py`)."""
    size_max = payload_size_max(VERSION_2, kind, command, limits.PAYLOAD_SIZE_MAX)
    if payload_length > size_max:
        raise LimitError(f"version 2 frame: payload of {payload_length} bytes, at most {size_max}")
    start = pack(_HEADER_START, "version 2 header", MAGIC, VERSION_2, kind, command)
    rest = pack(
        _HEADER_REST,
        "version 2 header",
        request_id,
        timestamp_ns,
        record_count,
        payload_length,
        payload_crc,
        topic_id,
    )
    return start + _CRC.pack(checksum(rest, checksum(start))) + rest
