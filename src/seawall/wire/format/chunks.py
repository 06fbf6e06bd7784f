"""The batches of FETCH_DATA and DATA, verified while their frame arrives, or all at once.

`lwp2_reading` has the layout and `iter_chunks`, which gives whole headers, one at a time; this gives rows of what a
reader has to know. Both refuse the same, with the same words. This module must not know topics or readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from seawall.errors import CorruptionError
from seawall.kernels.codec import chunks as kernel
from seawall.kernels.network.chunk_arrival import ARRIVAL_SIZE, ARRIVED, CODE, receive_chunks
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import FETCH_DATA_HEADER_SIZE
from seawall.wire.format.batches import iter_batches
from seawall.wire.format.fields import malformed
from seawall.wire.lwp2.reading import DataPrefix

if TYPE_CHECKING:
    from seawall.wire.format.decoder import Frame

#: Rows that a table has room for; they are taken out when it is full.
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


class ArrivingChunks:
    """The batches of one frame: each byte is verified when it arrives, while it is still in a cache."""

    def __init__(self, payload: Bytes, rows_max: int = _ROWS_MAX) -> None:
        self._payload = payload
        self._rows = np.empty(rows_max, kernel.CHUNK_ROW)
        #: Rows that were taken out of the table because it was full.
        self._taken: list[kernel.Rows] = []
        self._state = np.zeros(ARRIVAL_SIZE, np.int64)
        self._state[kernel.STATE_CONSUMED] = FETCH_DATA_HEADER_SIZE
        self._state[CODE] = kernel.CHUNKS_MORE

    def has_arrived(self, arrived: int) -> None:
        """Look at what is there of the payload: so many bytes."""
        state = self._state
        if arrived <= state[ARRIVED] and state[CODE] != kernel.CHUNKS_FULL:
            return
        state[ARRIVED] = max(int(state[ARRIVED]), arrived)
        code = int(state[CODE])
        while code in (kernel.CHUNKS_MORE, kernel.CHUNKS_FULL):
            if code == kernel.CHUNKS_FULL:
                self._taken.append(self._rows.copy())
                state[kernel.STATE_ROWS] = 0
            code = kernel.check_chunks(self._payload, int(state[ARRIVED]), self._payload.size, self._rows, state)
            state[CODE] = code
            if code == kernel.CHUNKS_MORE:
                return

    def receive(self, fd: int) -> int:
        """Receive more of it from a socket that may wait a moment: bytes, 0 at the end, or minus errno."""
        before = int(self._state[ARRIVED])
        result = receive_chunks(fd, self._payload, self._rows, self._state)
        arrived = int(self._state[ARRIVED])
        self.has_arrived(arrived)
        return arrived - before or result

    def checked(self, prefix: DataPrefix, record_count: int) -> tuple[kernel.Rows, CorruptionError | None]:
        """The sound batches up to the first damaged one, and what is wrong with that; all has to be there.

        Raises if nothing is damaged, and chunks or records are not as many as the frame says.
        """
        state = self._state
        self.has_arrived(self._payload.size)
        rows = self._rows[: state[kernel.STATE_ROWS]]
        found = np.concatenate([*self._taken, rows]) if self._taken else rows
        if state[CODE] == kernel.CHUNKS_BAD:
            return found, _damage(self._payload.data[state[kernel.STATE_CONSUMED] :])
        chunks, records = found.size, int(state[kernel.STATE_RECORDS])
        if (chunks, records) != (prefix.chunk_count, record_count):
            raise malformed(
                f"data: {chunks} chunks with {records} records, the frame says {prefix.chunk_count} with {record_count}"
            )
        return found, None


def checked_chunks(frame: Frame, prefix: DataPrefix) -> tuple[list[Chunk], CorruptionError | None]:
    """`checked_rows`, with an object for each batch."""
    rows, damage = checked_rows(frame, prefix)
    return list(map(Chunk._make, rows.tolist())), damage


def checked_rows(frame: Frame, prefix: DataPrefix) -> tuple[kernel.Rows, CorruptionError | None]:
    """The sound batches of a frame of data, as `ArrivingChunks.checked` gives them."""
    arrived = frame.chunks
    if arrived is None:
        arrived = ArrivingChunks(np.frombuffer(frame.payload, np.uint8), min(max(1, prefix.chunk_count), _ROWS_MAX))
    return arrived.checked(prefix, frame.header.record_count)


def _damage(rest: memoryview) -> CorruptionError:
    """What is wrong with the batch that some bytes begin with."""
    try:
        header, _ = next(iter_batches(rest))
    except CorruptionError as error:
        return error
    return CorruptionError(f"the batch at position {header.position} has other records than its header says")
