"""Encode, parse and verify batches: a header of 96 bytes and a block.

The frame that a client sends is the same batch that is stored on disk and sent to readers.

| at | size | field          | written by | notes                                                                   |
|----|------|----------------|------------|-------------------------------------------------------------------------|
| 0  | 4    | magic          | client     | `LANC`                                                                  |
| 4  | 1    | version        | client     | 2                                                                       |
| 5  | 1    | kind           | client     | 04                                                                      |
| 6  | 2    | command        | –          | 0 append; else kind of a control batch, which only the server makes     |
| 8  | 4    | header_crc     | both       | CRC-32C of bytes 0–7, then 12–95                                        |
| 12 | 8    | client_seq     | client     | from 1, rises by one a batch of the session, over all topics            |
| 20 | 8    | timestamp_ns   | both       | client: advisory; stored: the server's hybrid clock                     |
| 28 | 4    | record_count   | client     | exact; an opaque block is one unit                                      |
| 32 | 4    | payload_length | client     | 52 + length of the block as sent                                        |
| 36 | 4    | block_crc      | client     | CRC-32C of the block as sent                                            |
| 40 | 4    | topic_id       | client     |                                                                         |
| 44 | 4    | reserved       | –          | 0                                                                       |
| 48 | 8    | client_id      | client     | the session's                                                           |
| 56 | 8    | position       | server     | index in the total order; 0 when sent                                   |
| 64 | 8    | base_seq       | server     | seq of the first record; 0 when sent                                    |
| 72 | 8    | base_offset    | server     | version 1 offset of the first byte; 0 when sent                         |
| 80 | 4    | raw_length     | client     | length of the plain block, at most 16 MiB                               |
| 84 | 4    | term           | server     | 0 when sent                                                             |
| 88 | 4    | session_epoch  | client     | low 32 bits of the session's                                            |
| 92 | 1    | order          | client     | FF = the topic's                                                        |
| 93 | 1    | ack_level      | client     | 0, 1, 2 (`AckLevel`), FF = the topic's                                  |
| 94 | 1    | codec          | client     | 0, 1, 2 (`Codec`)                                                       |
| 95 | 1    | flags          | both       | 02 = opaque block, 04 = keyed, by the server (`BatchFlags`), rest 0     |
| 96 | …    | block          | client     | records (`records`), compressed or not; or opaque bytes                 |

A batch is valid when both checksums match; reserved and unknown flags are 0; codec and ack level are known; the plain
block has exactly raw_length bytes, which is the stored length under codec none and not 0 under the others; and an
append of records holds exactly record_count of them. From a client, moreover, command and the server's fields are 0,
client_seq is not, flag 04 is not set, and there are 1 to 65,536 records. Flag 08 exists only on the wire: the block
checksum follows in a frame of its own, and the receiver writes it into the header (`kernels/codec/frames.py`).

A keyed batch belongs to an idempotency key and to no session: its client_id, with the top bit set, and its client_seq
are the key's digest of 127 bits (`topics/keys.py`).

INV-BLOCK-UNTOUCHED: the server never changes the block of a batch: it writes its own header fields and the header's
checksum. The block's checksum, computed once by the writer, protects it from end to end.

An error in the first 44 bytes closes the connection; an error in the rest or in the block rejects only that batch
(REJECTED). This module must not know sessions, topics or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from seawall import limits
from seawall.core.identifiers import is_synthetic
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, Term, TimestampNs, TopicId
from seawall.errors import ChecksumError, CorruptionError, InvalidInputError, LimitError, ProtocolError, SeawallError
from seawall.wire.format.codes import AS_TOPIC, MAGIC, VERSION_2, AckLevel, BatchFlags, Codec, ErrorCode, Kind
from seawall.wire.format.compression import decompress
from seawall.wire.format.fields import Buffer, malformed, pack
from seawall.wire.format.frames import checksum, header_crc_v2, parse_frame_header

_HEADER: Final = Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")
_CRC: Final = Struct("<I")
_CRC_AT: Final = 8
_TIMESTAMP: Final = Struct("<Q")
_TIMESTAMP_AT: Final = 20
_ORDERING: Final = Struct("<QQQ")
_ORDERING_AT: Final = 56
_TERM: Final = Struct("<I")
_TERM_AT: Final = 84

_CODECS: Final = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
# A plain integer: inverting an IntFlag keeps only bits near its own, so higher unknown ones would pass.
_CLIENT_FLAGS: Final = int(BatchFlags.OPAQUE)
_STORED_FLAGS: Final = int(BatchFlags.OPAQUE | BatchFlags.KEYED)
_ACK_LEVELS: Final = frozenset({*(int(level) for level in AckLevel), AS_TOPIC})

assert _HEADER.size == limits.BATCH_HEADER_SIZE


class BatchSource(Enum):
    """The origin of a batch: decides which fields are allowed and which error reports damage."""

    CLIENT = "client"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header fields, without those that are the same in every batch."""

    command: int
    client_seq: ClientSeq
    timestamp_ns: TimestampNs
    record_count: int
    payload_length: int
    block_crc: int
    topic_id: TopicId
    client_id: ClientId
    position: Position
    base_seq: Seq
    base_offset: Offset
    raw_length: int
    term: Term
    session_epoch: int
    order: int
    ack_level: int
    codec: Codec
    flags: int

    @property
    def block_length(self) -> int:
        """Bytes of the block as sent and stored."""
        return self.payload_length - limits.BATCH_PROLOGUE_SIZE

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return limits.FRAME_HEADER_SIZE + self.payload_length

    @property
    def is_opaque(self) -> bool:
        """True if the block is one unit of bytes instead of records."""
        return bool(self.flags & BatchFlags.OPAQUE)

    @property
    def is_keyed(self) -> bool:
        """True if its client id and client seq are the digest of an idempotency key."""
        return bool(self.flags & BatchFlags.KEYED)

    @property
    def is_control(self) -> bool:
        """True if it is a control batch of the server, without records of a topic."""
        return self.command != 0

    def header_bytes(self) -> bytes:
        """Encode the 96 bytes before the block, including the checksum; for a vectored write with the block."""
        header = bytearray(
            pack(
                _HEADER,
                "batch header",
                MAGIC,
                VERSION_2,
                Kind.BATCH,
                self.command,
                0,
                self.client_seq,
                self.timestamp_ns,
                self.record_count,
                self.payload_length,
                self.block_crc,
                self.topic_id,
                0,
                self.client_id,
                self.position,
                self.base_seq,
                self.base_offset,
                self.raw_length,
                self.term,
                self.session_epoch,
                self.order,
                self.ack_level,
                self.codec,
                self.flags,
            )
        )
        _CRC.pack_into(header, _CRC_AT, header_crc_v2(header))
        return bytes(header)


def batch_header(
    block: Buffer | int,
    *,
    topic_id: TopicId,
    client_id: ClientId,
    client_seq: ClientSeq,
    session_epoch: int,
    record_count: int,
    timestamp_ns: TimestampNs,
    order: int = AS_TOPIC,
    ack_level: int = AS_TOPIC,
    codec: Codec = Codec.NONE,
    raw_length: int | None = None,
    flags: int = 0,
    command: int = 0,
    block_crc: int | None = None,
) -> BatchHeader:
    """Build the header of a block as its writer sends it; a compressed block needs `raw_length`.

    With `block_crc`, `block` may be the length of the block instead of the block itself. The record count is not
    bounded here: a payload of version 1 may hold more records than a batch of version 2.
    """
    length = block if isinstance(block, int) else len(block)
    if raw_length is None:
        if codec is not Codec.NONE:
            raise InvalidInputError(f"a block under codec {codec.name} needs its raw length")
        raw_length = length
    if raw_length > limits.BLOCK_SIZE_MAX:
        raise LimitError(f"a block of {raw_length} bytes, at most {limits.BLOCK_SIZE_MAX}; split it")
    if block_crc is None:
        assert not isinstance(block, int), "a length needs block_crc"
        block_crc = checksum(block)
    return BatchHeader(
        command=command,
        client_seq=client_seq,
        timestamp_ns=timestamp_ns,
        record_count=record_count,
        payload_length=limits.BATCH_PROLOGUE_SIZE + length,
        block_crc=block_crc,
        topic_id=topic_id,
        client_id=client_id,
        position=Position(0),
        base_seq=Seq(0),
        base_offset=Offset(0),
        raw_length=raw_length,
        term=Term(0),
        # The header holds only the low half; the session layer compares that half.
        session_epoch=session_epoch & 0xFFFF_FFFF,
        order=order,
        ack_level=ack_level,
        codec=codec,
        flags=flags,
    )


def encode_batch(header: BatchHeader, block: Buffer) -> bytes:
    """Header and block joined, for callers without a vectored write."""
    if len(block) != header.block_length:
        raise InvalidInputError(f"a block of {len(block)} bytes under a header that says {header.block_length}")
    return b"".join((header.header_bytes(), block))


def parse_batch_header(view: Buffer, *, source: BatchSource) -> BatchHeader:
    """Parse the header at the start of `view`; verify its checksum and all rules that do not need the block.

    Bytes from a client raise `ProtocolError`, stored bytes `ChecksumError` or `CorruptionError`.
    """
    is_client = source is BatchSource.CLIENT
    if len(view) < limits.BATCH_HEADER_SIZE:
        raise _bad_header(is_client, f"{len(view)} bytes, needs {limits.BATCH_HEADER_SIZE}")
    magic, version, kind, command, header_crc, *fields = _HEADER.unpack_from(view)
    if magic != MAGIC or version != VERSION_2:
        if is_client:
            parse_frame_header(view)
        raise _bad_header(is_client, f"magic {magic!r}, version {version}")
    if header_crc_v2(view[: limits.BATCH_HEADER_SIZE]) != header_crc:
        if is_client:
            # Its length cannot be trusted, so the next frame cannot be found, and nothing can be answered.
            raise ProtocolError("batch: header checksum", code=ErrorCode.CRC_MISMATCH, closes=True, answered=False)
        raise ChecksumError("batch: header checksum does not match")
    client_seq, timestamp_ns, record_count, payload_length, block_crc, topic_id, reserved, client_id, *fields = fields
    position, base_seq, base_offset, raw_length, term, session_epoch, order, ack_level, codec, flags = fields
    if kind != Kind.BATCH or payload_length < limits.BATCH_PROLOGUE_SIZE or (is_client and command != 0):
        raise _bad_header(is_client, f"kind {kind:#04x}, command {command}, payload length {payload_length}")
    if reserved or codec >= len(_CODECS) or flags & ~(_CLIENT_FLAGS if is_client else _STORED_FLAGS):
        raise _bad_body(is_client, f"reserved {reserved}, codec {codec}, flags {flags:#04x}")
    if flags & BatchFlags.KEYED and not is_synthetic(client_id):
        raise _bad_body(is_client, f"keyed, by client {client_id:016x} of a session")
    if ack_level not in _ACK_LEVELS:
        raise _bad_body(is_client, f"ack level {ack_level}", ErrorCode.NOT_ALLOWED_BY_TOPIC)
    header = BatchHeader(
        command,
        client_seq,
        timestamp_ns,
        record_count,
        payload_length,
        block_crc,
        topic_id,
        client_id,
        position,
        base_seq,
        base_offset,
        raw_length,
        term,
        session_epoch,
        order,
        ack_level,
        _CODECS[codec],
        flags,
    )
    _check_sizes(header, is_client)
    if is_client and (position or base_seq or base_offset or term or not client_seq):
        raise malformed("batch: a field of the server is not 0, or client_seq is 0")
    return header


def stamp(
    buffer: bytearray | memoryview,
    *,
    position: Position,
    base_seq: Seq,
    base_offset: Offset,
    timestamp_ns: TimestampNs,
    term: Term,
) -> None:
    """Write the server's fields and the header checksum into a batch in place; the block is not read."""
    header = memoryview(buffer)[: limits.BATCH_HEADER_SIZE]
    if len(header) < limits.BATCH_HEADER_SIZE:
        raise InvalidInputError(f"stamp: {len(header)} bytes, a batch header has {limits.BATCH_HEADER_SIZE}")
    # Pack all values before writing the first: a value that does not fit leaves the batch unchanged.
    stamped = (
        (_TIMESTAMP_AT, pack(_TIMESTAMP, "timestamp", timestamp_ns)),
        (_ORDERING_AT, pack(_ORDERING, "position, base_seq, base_offset", position, base_seq, base_offset)),
        (_TERM_AT, pack(_TERM, "term", term)),
    )
    for at, value in stamped:
        header[at : at + len(value)] = value
    _CRC.pack_into(header, _CRC_AT, header_crc_v2(header))


def verify_block(header: BatchHeader, block: Buffer) -> None:
    """Verify a block, as sent or stored, against its header."""
    if len(block) != header.block_length:
        raise CorruptionError(f"batch: block of {len(block)} bytes where the header says {header.block_length}")
    if checksum(block) != header.block_crc:
        raise ChecksumError(f"batch: checksum of the block at position {header.position} does not match")


def block_of(header: BatchHeader, block: Buffer) -> Buffer:
    """The uncompressed block of a verified batch from storage; it has exactly its stated length."""
    return decompress(header.codec, block, header.raw_length)


def client_block_of(header: BatchHeader, block: Buffer) -> Buffer:
    """The uncompressed block of a batch from a client; a block of another length than stated is refused."""
    try:
        return decompress(header.codec, block, header.raw_length)
    except CorruptionError as error:
        raise malformed(f"batch: {error}") from error


def iter_batches(run: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each header of a run of whole stored batches with its stored block; both checksums are verified."""
    view = memoryview(run)
    at = 0
    while at < len(view):
        header = parse_batch_header(view[at:], source=BatchSource.STORED)
        end = at + header.size
        if end > len(view):
            raise CorruptionError(f"batch at byte {at} is cut: {header.size} bytes, {len(view) - at} are left")
        block = view[at + limits.BATCH_HEADER_SIZE : end]
        verify_block(header, block)
        yield header, block
        at = end


def _check_sizes(header: BatchHeader, is_client: bool) -> None:
    """Check record count, lengths and codec against each other; they bound all later allocations."""
    if header.raw_length > limits.BLOCK_SIZE_MAX or header.block_length > limits.PAYLOAD_SIZE_MAX:
        raise _bad_body(is_client, f"block of {header.raw_length} bytes, {header.block_length} as sent")
    if header.codec is Codec.NONE:
        if header.raw_length != header.block_length:
            raise _bad_body(is_client, f"raw length {header.raw_length}, block of {header.block_length} bytes")
    elif not header.raw_length:
        raise _bad_body(is_client, f"raw length 0 under codec {header.codec.name}")
    if header.is_control:
        return
    if header.is_opaque:
        count_fits = header.record_count == 1
    else:
        count_fits = header.record_count * limits.RECORD_HEADER_SIZE <= header.raw_length
        if is_client:
            count_fits &= 1 <= header.record_count <= limits.BATCH_RECORDS_MAX
    if not count_fits or (is_client and not header.raw_length):
        raise _bad_body(is_client, f"{header.record_count} records in {header.raw_length} bytes")


def _bad_header(is_client: bool, detail: str) -> SeawallError:
    if is_client:
        return ProtocolError(f"batch header: {detail}", code=ErrorCode.INVALID_PAYLOAD, closes=True)
    return CorruptionError(f"batch header: {detail}")


def _bad_body(is_client: bool, detail: str, code: ErrorCode = ErrorCode.INVALID_PAYLOAD) -> SeawallError:
    return malformed(f"batch: {detail}", code) if is_client else CorruptionError(f"batch: {detail}")
