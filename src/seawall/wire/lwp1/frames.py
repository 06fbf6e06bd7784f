"""Encode and classify version 1 frames, and parse ingest batches.

The server sends exactly one of the flags 08, 10, 20 and 40, and unused fields as 0. A client may set several flags; the
kind of its frame is the first of: control, keepalive, ack, backpressure, then ingest if it is flagged as a batch or has
a payload. Other frames are ignored. Frames:

| frame        | flags    | id         | payload                                                             |
|--------------|----------|------------|---------------------------------------------------------------------|
| ingest       | 04, 05   | batch_id   | opaque bytes, at least one; under 05 one raw LZ4 block of them      |
| ack          | 08       | echoed     | –                                                                   |
| backpressure | 10       | echoed     | – ; instead of the ack of a batch refused for load                  |
| keepalive    | 20       | 0          | –                                                                   |
| control      | 40       | command    | `requests.py`, `replies.py`                                         |

An empty ingest, a bad LZ4 block and the flags 02 (encrypted) and 80 are refused with error 04; the connection stays
open. The LZ4 flag on anything but ingest has no meaning. `v1_record_count` of `format/records.py` decides whether an
ingest payload is a run of records; any other payload is stored and served byte for byte.

This module must not know topics, queues or the order of answers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.core.types import TimestampNs, TopicId
from seawall.errors import CorruptionError, InvalidInputError
from seawall.wire.format.codes import V1Flags, V1Kind
from seawall.wire.format.compression import decompress_v1
from seawall.wire.format.fields import Buffer, malformed
from seawall.wire.format.frames import FrameHeader, encode_header_v1
from seawall.wire.lwp1.replies import FetchReply, Reply
from seawall.wire.lwp1.requests import Request

#: As plain integers: every frame is checked against them, and operations on `IntFlag` members are slow.
_REFUSED_FLAGS: Final = int(V1Flags.ENCRYPTED | V1Flags.RESERVED)
_CONTROL: Final = int(V1Flags.CONTROL)
_KEEPALIVE: Final = int(V1Flags.KEEPALIVE)
_ACKNOWLEDGES: Final = int(V1Flags.ACK)
_BACKPRESSURE: Final = int(V1Flags.BACKPRESSURE)
_BATCH: Final = int(V1Flags.BATCH)
_LZ4: Final = int(V1Flags.LZ4)


@dataclass(frozen=True, slots=True)
class Ingest:
    """One batch of a version 1 client; its payload is uncompressed."""

    batch_id: int
    topic_id: TopicId
    timestamp_ns: TimestampNs
    payload: Buffer


def frame_kind(flags: int, payload_length: int) -> V1Kind:
    """The kind of a frame, by the precedence of its flags; encrypted and reserved flags are refused on every kind."""
    if flags & _REFUSED_FLAGS:
        raise malformed(f"flags {flags:#04x}: encryption and the reserved bit are not supported")
    if flags & _CONTROL:
        return V1Kind.CONTROL
    if flags & _KEEPALIVE:
        return V1Kind.KEEPALIVE
    if flags & _ACKNOWLEDGES:
        return V1Kind.ACK
    if flags & _BACKPRESSURE:
        return V1Kind.BACKPRESSURE
    return V1Kind.INGEST if flags & _BATCH or payload_length else V1Kind.IGNORED


def parse_ingest(header: FrameHeader, payload: Buffer) -> Ingest:
    """Parse the batch of an ingest frame. record_count is ignored: published clients send arbitrary values."""
    return Ingest(header.id, header.topic_id, header.timestamp_ns, plain_payload(header.kind, payload))


def plain_payload(flags: int, payload: Buffer) -> Buffer:
    """The uncompressed payload of an ingest frame, at least one byte. Bad LZ4 and empty payloads are refused."""
    if flags & _LZ4:
        try:
            payload = decompress_v1(payload)
        except CorruptionError as error:
            raise malformed(f"ingest: {error}") from error
    if not payload:
        raise malformed("ingest: empty payload")
    return payload


def encode_frame(
    flags: int,
    payload: Buffer = b"",
    *,
    batch_id: int = 0,
    timestamp_ns: int = 0,
    record_count: int = 0,
    topic_id: int = 0,
) -> bytes:
    """Encode a whole version 1 frame."""
    header = encode_header_v1(
        flags,
        batch_id=batch_id,
        timestamp_ns=timestamp_ns,
        record_count=record_count,
        payload_length=len(payload),
        payload_crc=zlib.crc32(payload),
        topic_id=topic_id,
    )
    return b"".join((header, payload))


def encode_request(request: Request) -> bytes:
    """Encode the control frame of a request."""
    return encode_frame(V1Flags.CONTROL, request.encode(), batch_id=request.COMMAND)


def encode_ingest(
    payload: Buffer, *, batch_id: int, topic_id: int, timestamp_ns: int, record_count: int, compressed: bool = False
) -> bytes:
    """Encode an ingest frame; `compressed` means that the payload already is an LZ4 block."""
    if not payload:
        raise InvalidInputError("ingest: the payload needs at least one byte")
    return encode_frame(
        V1Flags.BATCH | V1Flags.LZ4 if compressed else V1Flags.BATCH,
        payload,
        batch_id=batch_id,
        timestamp_ns=timestamp_ns,
        record_count=record_count,
        topic_id=topic_id,
    )


def encode_reply(reply: Reply) -> bytes:
    """Encode the control frame of any reply except the data of a fetch."""
    return encode_frame(V1Flags.CONTROL, reply.encode(), batch_id=reply.COMMAND)


def encode_fetch_reply(reply: FetchReply) -> tuple[bytes, Buffer]:
    """Encode a fetch reply as two buffers for one vectored write, so that the data is not copied."""
    prefix = reply.prefix()
    header = encode_header_v1(
        V1Flags.CONTROL,
        batch_id=reply.COMMAND,
        payload_length=len(prefix) + len(reply.data),
        payload_crc=zlib.crc32(reply.data, zlib.crc32(prefix)),
    )
    return header + prefix, reply.data


def encode_ack(batch_id: int) -> bytes:
    """Encode the ack of an ingest frame, or of an unsubscribe, where the id is the consumer."""
    return encode_frame(V1Flags.ACK, batch_id=batch_id)


def encode_acks(batch_ids: npt.NDArray[np.uint64]) -> bytes:
    """Encode the acks of many ingest frames, in their order."""
    acks = np.tile(_ACK, (len(batch_ids), 1))
    acks[:, _ID_AT : _ID_AT + 8] = batch_ids.astype("<u8").view(np.uint8).reshape(-1, 8)
    return acks.tobytes()


def encode_backpressure(batch_id: int) -> bytes:
    """Encode the answer to a batch refused for load; never for one that may still be acked."""
    return encode_frame(V1Flags.BACKPRESSURE, batch_id=batch_id)


def encode_keepalive() -> bytes:
    """Encode a keepalive; the answer is the same frame."""
    return encode_frame(V1Flags.KEEPALIVE)


#: Offset of the id in the frame header.
_ID_AT: Final = 12
_ACK: Final = np.frombuffer(encode_ack(0), np.uint8)
