"""Compressed batches of connections, which are decompressed and scanned before they are stored.

The kernel that judges arriving batches (`kernels/arriving.py`) cannot look into a compressed block and leaves the
verdict to this module. This module must not know connections, nor what becomes of a batch.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.errors import CorruptionError
from seawall.kernels import arriving
from seawall.kernels.blocks import RECORDS_VERSION_2, scan_block
from seawall.kernels.frames import Rows
from seawall.server.session import Bytes
from seawall.wire.batches import BatchSource, parse_batch_header
from seawall.wire.codes import BatchFlags, ErrorCode
from seawall.wire.compression import decompress

_HEADER: Final = limits.BATCH_HEADER_SIZE
_NO_OFFSETS: Final = np.zeros(0, np.int64)


def judge_compressed(buffer: Bytes, rows: Rows, verdicts: npt.NDArray[np.int64]) -> None:
    """Give each batch whose verdict is LOOK its verdict: taken, or refused as an invalid payload."""
    for index in np.flatnonzero(verdicts == arriving.LOOK).tolist():
        at, size = rows[["at", "size"]][index].tolist()
        is_sound = _is_sound(buffer[at : at + size].tobytes())
        verdicts[index] = arriving.TAKEN if is_sound else ErrorCode.INVALID_PAYLOAD | arriving.NUMBER_USED


def _is_sound(whole: bytes) -> bool:
    """Whether the block of a batch can be decompressed and has as many records as its header says."""
    try:
        header = parse_batch_header(whole, source=BatchSource.STORED)
        plain = decompress(header.codec, memoryview(whole)[_HEADER:], header.raw_length)
    except CorruptionError:
        return False
    count = 1
    if not header.flags & BatchFlags.OPAQUE:
        block = np.frombuffer(plain, np.uint8)
        count = scan_block(block, 0, block.size, RECORDS_VERSION_2, limits.BATCH_RECORDS_MAX, _NO_OFFSETS)
    return count == header.record_count
