"""Version 1 frames: what a frame is, the ingest batch, and the frames both sides send.

The server sends exactly one of the flags 08, 10, 20 and 40, and unused fields as 0. What a client sends is told apart
by precedence: control, keepalive, ack, backpressure, then ingest if it is flagged as a batch or has a payload; the
rest is ignored. Frames:

| frame        | flags    | id         | payload                                                             |
|--------------|----------|------------|---------------------------------------------------------------------|
| ingest       | 04, 05   | batch_id   | opaque bytes, at least one; under 05 one raw LZ4 block of them      |
| ack          | 08       | echoed     | –                                                                   |
| backpressure | 10       | echoed     | – ; in place of the ack of a batch refused for load                 |
| keepalive    | 20       | 0          | –                                                                   |
| control      | 40       | command    | `lwp1_requests`, `lwp1_replies`                                     |

An empty ingest, a bad LZ4 block and the flags 02 (encrypted) and 80 are refused with error 04; the connection goes
on. The LZ4 flag on anything but ingest means nothing. Whether an ingest payload is a run of records is asked of
`records.v1_record_count`; what is none is stored and served byte for byte.

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

#: As plain numbers: every frame is held against them, and operations on flags of an enumeration are slow.
_REFUSED_FLAGS: Final = int(V1Flags.ENCRYPTED | V1Flags.RESERVED)
_CONTROL: Final = int(V1Flags.CONTROL)
_KEEPALIVE: Final = int(V1Flags.KEEPALIVE)
_ACKNOWLEDGES: Final = int(V1Flags.ACK)
_BACKPRESSURE: Final = int(V1Flags.BACKPRESSURE)
_BATCH: Final = int(V1Flags.BATCH)
_LZ4: Final = int(V1Flags.LZ4)


@dataclass(frozen=True, slots=True)
class Ingest:
    """One batch of a version 1 client, its payload plain."""

    batch_id: int
    topic_id: TopicId
    timestamp_ns: TimestampNs
    payload: Buffer


def frame_kind(flags: int, payload_length: int) -> V1Kind:
    """What a frame is, by the precedence of its flags; encrypted and reserved flags are refused on every kind."""
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
    """The batch of an ingest frame. record_count is not looked at: published clients put anything there."""
    return Ingest(header.id, header.topic_id, header.timestamp_ns, plain_payload(header.kind, payload))


def plain_payload(flags: int, payload: Buffer) -> Buffer:
    """What an ingest frame with these flags brings: at least one byte. A bad LZ4 block and an empty one are refused."""
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
    """A whole version 1 frame."""
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
    """The control frame of a request."""
    return encode_frame(V1Flags.CONTROL, request.encode(), batch_id=request.COMMAND)


def encode_ingest(
    payload: Buffer, *, batch_id: int, topic_id: int, timestamp_ns: int, record_count: int, compressed: bool = False
) -> bytes:
    """An ingest frame; `compressed` says that the payload already is an LZ4 block."""
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
    """The control frame of any reply but the data of a fetch."""
    return encode_frame(V1Flags.CONTROL, reply.encode(), batch_id=reply.COMMAND)


def encode_fetch_reply(reply: FetchReply) -> tuple[bytes, Buffer]:
    """The frame of a fetch reply as two buffers for one vectored write: the data is never copied."""
    prefix = reply.prefix()
    header = encode_header_v1(
        V1Flags.CONTROL,
        batch_id=reply.COMMAND,
        payload_length=len(prefix) + len(reply.data),
        payload_crc=zlib.crc32(reply.data, zlib.crc32(prefix)),
    )
    return header + prefix, reply.data


def encode_ack(batch_id: int) -> bytes:
    """The ack of one ingest frame, or of an unsubscribe, whose consumer it names."""
    return encode_frame(V1Flags.ACK, batch_id=batch_id)


def encode_acks(batch_ids: npt.NDArray[np.uint64]) -> bytes:
    """The acks of many ingest frames, back to back, in their order."""
    acks = np.tile(_ACK, (len(batch_ids), 1))
    acks[:, _ID_AT : _ID_AT + 8] = batch_ids.astype("<u8").view(np.uint8).reshape(-1, 8)
    return acks.tobytes()


def encode_backpressure(batch_id: int) -> bytes:
    """What a batch refused for load gets in place of its ack; never for one that may yet be acked."""
    return encode_frame(V1Flags.BACKPRESSURE, batch_id=batch_id)


def encode_keepalive() -> bytes:
    """The keepalive of both directions: the answer is the same frame."""
    return encode_frame(V1Flags.KEEPALIVE)


#: Where the id of a frame stands in its header.
_ID_AT: Final = 12
_ACK: Final = np.frombuffer(encode_ack(0), np.uint8)
