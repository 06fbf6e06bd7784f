"""The batches of FETCH_DATA and DATA, verified by one kernel call however many there are.

`lwp2_reading` has the layout and `iter_chunks`, which gives whole headers, one at a time; this gives rows of what a
reader has to know. Both refuse the same, with the same words. This module must not know topics or readers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from seawall.errors import CorruptionError
from seawall.kernels import chunks as kernel
from seawall.limits import FETCH_DATA_HEADER_SIZE
from seawall.wire.batches import iter_batches
from seawall.wire.fields import malformed
from seawall.wire.lwp2_reading import DataPrefix

#: Rows of one kernel call; it is called again while there are more.
_ROWS_MAX: Final = 1_024


class Chunk(NamedTuple):
    """One verified batch: its numbers, and where in the payload its block is."""

    base_seq: int
    position: int
    timestamp_ns: int
    at: int
    end: int
    record_count: int
    topic_id: int
    #: Records that a delete has emptied; not known of what is not plain.
    deleted: int
    #: Whether the block is plain records: not compressed, not opaque.
    is_plain: int


def checked_chunks(
    payload: memoryview, prefix: DataPrefix, record_count: int
) -> tuple[list[Chunk], CorruptionError | None]:
    """`checked_rows`, with an object for each batch."""
    rows, damage = checked_rows(payload, prefix, record_count)
    return list(map(Chunk._make, rows.tolist())), damage


def checked_rows(
    payload: memoryview, prefix: DataPrefix, record_count: int
) -> tuple[kernel.Rows, CorruptionError | None]:
    """The sound batches of a payload up to the first damaged one, and what is wrong with that.

    Raises if nothing is damaged, and chunks or records are not as many as the frame says.
    """
    source = np.frombuffer(payload, np.uint8)
    rows = np.empty(min(max(1, prefix.chunk_count), _ROWS_MAX), kernel.CHUNK_ROW)
    state = np.empty(kernel.STATE_SIZE, np.int64)
    pieces: list[kernel.Rows] = []
    chunks = records = 0
    at = FETCH_DATA_HEADER_SIZE
    code = kernel.CHUNKS_FULL
    while code == kernel.CHUNKS_FULL:
        code = kernel.check_chunks(source, at, source.size, rows, state)
        count, counted, at = state.tolist()
        chunks += count
        records += counted
        pieces.append(rows[:count].copy() if code == kernel.CHUNKS_FULL else rows[:count])
    found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    if code == kernel.CHUNKS_BAD:
        return found, _damage(payload[at:])
    if (chunks, records) != (prefix.chunk_count, record_count):
        raise malformed(
            f"data: {chunks} chunks with {records} records, the frame says {prefix.chunk_count} with {record_count}"
        )
    return found, None


def _damage(rest: memoryview) -> CorruptionError:
    """What is wrong with the batch that some bytes begin with."""
    try:
        header, _ = next(iter_batches(rest))
    except CorruptionError as error:
        return error
    return CorruptionError(f"the batch at position {header.position} has other records than its header says")
