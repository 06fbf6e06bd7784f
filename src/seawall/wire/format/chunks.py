"""The verified batches of a FETCH_DATA or DATA frame.

`arriving_chunks.py` verifies large frames while they arrive; smaller ones are verified here, all at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seawall.errors import CorruptionError
from seawall.kernels.codec import chunks as kernel
from seawall.wire.format.arriving_chunks import ROWS_MAX, ArrivingChunks
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.reading import DataPrefix


class Chunk(NamedTuple):
    """One verified batch: its numbers, and the range of its block in the payload."""

    base_seq: int
    position: int
    timestamp_ns: int
    at: int
    end: int
    record_count: int
    topic_id: int
    #: Number of deleted records; unknown if the block is not plain.
    deleted: int
    #: 1 if the block is plain records: not compressed, not opaque.
    is_plain: int


def checked_chunks(frame: Frame, prefix: DataPrefix) -> tuple[list[Chunk], CorruptionError | None]:
    """Like `checked_rows`, with an object for each batch."""
    rows, damage = checked_rows(frame, prefix)
    return list(map(Chunk._make, rows.tolist())), damage


def checked_rows(frame: Frame, prefix: DataPrefix) -> tuple[kernel.Rows, CorruptionError | None]:
    """The valid batches of a data frame up to the first damaged one, and its error (`ArrivingChunks.checked`)."""
    arrived = frame.chunks
    if arrived is None:
        arrived = ArrivingChunks(np.frombuffer(frame.payload, np.uint8), min(max(1, prefix.chunk_count), ROWS_MAX))
    return arrived.checked(prefix, frame.header.record_count)
