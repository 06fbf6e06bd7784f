"""Compress and decompress blocks, with a bound on the output that no input can exceed.

A block is compressed at most once, by its writer, and is sent and stored in that form. Codecs:

| codec | name | bytes                                                            |
|-------|------|------------------------------------------------------------------|
| 0     | none | the block                                                        |
| 1     | lz4  | one raw LZ4 block: no frame, no size prefix                      |
| 2     | zstd | one Zstandard frame: no dictionary, no skippable frame, no second|

INV-BOUNDED-OUTPUT: decompression allocates at most the stated length plus a constant, whatever the bytes claim.
The stated length is checked against `BLOCK_SIZE_MAX` first, and the result must have exactly that length. The zstd
library trusts the content size in the frame more than the bound that it is given, so that size is compared with the
stated one before the library gets the frame. A frame without a content size needs a window: the constant, 8 MiB.

An empty block is never compressed, since the library would ignore the rest of a frame with content size 0. Version 1
states no length: there the bound is `BLOCK_SIZE_MAX`, or the input size at LZ4's best ratio, whichever is less. The
unused part of that buffer is address space that the process never touches.

Each call creates its own context: contexts must not be shared between threads, and creating one takes microseconds.

Damage is a `CorruptionError`; callers with bytes from a peer turn it into a refusal of that peer's frame.
"""

from __future__ import annotations

from typing import Final

import lz4.block
import zstandard

from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.limits import BLOCK_SIZE_MAX, ZSTD_WINDOW_SIZE_MAX
from seawall.wire.format.codes import Codec
from seawall.wire.format.fields import Buffer

#: Fast enough for the write path; higher levels cost more time than the bytes they save are worth.
_ZSTD_LEVEL: Final = 1
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

#: One byte of an LZ4 block adds at most 255 bytes of output; the last sequence adds a few more.
_LZ4_RATIO_MAX: Final = 255
_LZ4_SLACK: Final = 64


def compress(codec: Codec, block: Buffer) -> Buffer:
    """Compress a block. The writer keeps the plain block if that is not larger."""
    if len(block) > BLOCK_SIZE_MAX:
        raise LimitError(f"a block of {len(block)} bytes, at most {BLOCK_SIZE_MAX}; split it")
    if codec is Codec.NONE:
        return block
    if not block:
        raise InvalidInputError("an empty block is never compressed; use codec none")
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(block, store_size=False)
        return packed
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(block)


def decompress(codec: Codec, data: Buffer, raw_length: int) -> Buffer:
    """Decompress to a block of exactly `raw_length` bytes; with codec none it is `data` itself, not a copy."""
    if not 0 <= raw_length <= BLOCK_SIZE_MAX:
        raise CorruptionError(f"a block claims {raw_length} bytes, at most {BLOCK_SIZE_MAX}")
    if codec is Codec.NONE:
        block = data
    elif raw_length == 0:
        raise CorruptionError(f"an empty block under codec {codec.name}: only codec none has one")
    elif codec is Codec.LZ4:
        block = _decompress_lz4(data, raw_length)
    else:
        block = _decompress_zstd(data, raw_length)
    if len(block) != raw_length:
        raise CorruptionError(f"a block has {len(block)} bytes where its batch says {raw_length}")
    return block


def decompress_v1(data: Buffer) -> bytes:
    """Decompress the payload of a version 1 frame, to at most `BLOCK_SIZE_MAX` bytes."""
    return _decompress_lz4(data, plain_size_max(len(data)))


def plain_size_max(size: int) -> int:
    """The largest decompressed size of a version 1 payload of this size."""
    return min(BLOCK_SIZE_MAX, size * _LZ4_RATIO_MAX + _LZ4_SLACK)


def _decompress_lz4(data: Buffer, size_max: int) -> bytes:
    try:
        block: bytes = lz4.block.decompress(data, uncompressed_size=size_max)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise CorruptionError(f"not an LZ4 block of at most {size_max} bytes ({error})") from error
    return block


def _decompress_zstd(data: Buffer, raw_length: int) -> bytes:
    if data[:4] != _ZSTD_MAGIC:
        # Skippable frames have other magics; the library would accept them as data.
        raise CorruptionError("not a zstd frame: wrong magic")
    try:
        parameters = zstandard.get_frame_parameters(data)
        if parameters.content_size not in {raw_length, zstandard.CONTENTSIZE_UNKNOWN}:
            raise CorruptionError(f"zstd frame of {parameters.content_size} bytes where its batch says {raw_length}")
        if parameters.dict_id:
            raise CorruptionError(f"zstd frame needs dictionary {parameters.dict_id}, blocks use none")
        return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_SIZE_MAX).decompress(
            data, max_output_size=raw_length, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptionError(f"not a zstd frame of {raw_length} bytes ({error})") from error
