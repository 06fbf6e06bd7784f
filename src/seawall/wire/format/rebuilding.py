"""Rebuild stored batches that cannot be sent to a reader unchanged: compressed, or with deleted records.

A deleted record becomes an empty one of type 00, so that the seqs of the others stay right; the new block is always
uncompressed. The header keeps all fields except the lengths, the checksums and the codec.

This module must not know which records are deleted, nor why.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np

from seawall.errors import CorruptionError
from seawall.kernels.codec.blocks import RECORDS_STORED, TYPE_DELETED, scan_block
from seawall.limits import BATCH_HEADER_SIZE, BATCH_PROLOGUE_SIZE, RECORD_HEADER_SIZE
from seawall.wire.format.batches import BatchHeader, BatchSource, block_of, parse_batch_header
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import checksum, header_crc_v2

#: Header fields that change: block length and checksum, raw length, codec, header checksum.
_LENGTH_AND_CRC: Final = Struct("<II")
_LENGTH_AT: Final = 32
_RAW_LENGTH: Final = Struct("<I")
_RAW_LENGTH_AT: Final = 80
_CODEC_AT: Final = 94
_CRC: Final = Struct("<I")
_CRC_AT: Final = 8

_DELETED: Final = bytes([TYPE_DELETED]) + bytes(RECORD_HEADER_SIZE - 1)


def plain_batch(batch: Buffer) -> bytes:
    """A verified stored batch with its block decompressed."""
    header = parse_batch_header(batch, source=BatchSource.STORED)
    return _with_block(batch, block_of(header, memoryview(batch)[BATCH_HEADER_SIZE:]))


def batch_with_live_records(batch: Buffer, live: Sequence[tuple[int, int]]) -> bytes:
    """A verified stored batch with only its live records; `live` are the first and last seqs of ranges."""
    header = parse_batch_header(batch, source=BatchSource.STORED)
    block = np.frombuffer(block_of(header, memoryview(batch)[BATCH_HEADER_SIZE:]), np.uint8)
    starts = _starts(header, block)
    pieces: list[bytes] = []
    reached = 0
    for first, last in live:
        begin, end = first - header.base_seq, last + 1 - header.base_seq
        pieces.append(_DELETED * (begin - reached))
        pieces.append(block[starts[begin] : starts[end]].tobytes())
        reached = end
    pieces.append(_DELETED * (header.record_count - reached))
    return _with_block(batch, b"".join(pieces))


def _starts(header: BatchHeader, block: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> list[int]:
    """The offset of each record, and the end of the last one."""
    if header.is_opaque:
        return [0, block.size]
    offsets = np.zeros(header.record_count + 1, np.int64)
    if scan_block(block, 0, block.size, RECORDS_STORED, header.record_count, offsets) != header.record_count:
        raise CorruptionError(f"the batch at position {header.position} does not hold {header.record_count} records")
    return list(offsets.tolist())


def _with_block(batch: Buffer, block: Buffer) -> bytes:
    header = bytearray(memoryview(batch)[:BATCH_HEADER_SIZE])
    _LENGTH_AND_CRC.pack_into(header, _LENGTH_AT, BATCH_PROLOGUE_SIZE + len(block), checksum(block))
    _RAW_LENGTH.pack_into(header, _RAW_LENGTH_AT, len(block))
    header[_CODEC_AT] = 0
    _CRC.pack_into(header, _CRC_AT, header_crc_v2(bytes(header)))
    return bytes(header) + bytes(block)
