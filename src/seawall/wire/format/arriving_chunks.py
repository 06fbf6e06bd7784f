"""Verify the batches of a FETCH_DATA or DATA frame while it arrives.

Each received part is verified while it is still in the processor's cache. `lwp2/reading.py` has the layout and
`iter_chunks`, which yields whole headers one at a time; this module fills rows with the fields that a reader needs.
Both refuse the same payloads with the same errors. This module must not know topics or readers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seawall.errors import CorruptionError
from seawall.kernels.codec import chunks as kernel
from seawall.kernels.network.chunk_arrival import ARRIVAL_SIZE, ARRIVED, CODE, receive_chunks
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import FETCH_DATA_HEADER_SIZE
from seawall.wire.format.batches import iter_batches
from seawall.wire.format.fields import malformed
from seawall.wire.lwp2.reading import DataPrefix

#: Rows of the table; a full table is copied out and reused.
ROWS_MAX: Final = 1_024


class ArrivingChunks:
    """The batches of one frame, verified as their bytes arrive."""

    def __init__(self, payload: Bytes, rows_max: int = ROWS_MAX) -> None:
        self._payload = payload
        self._rows = np.empty(rows_max, kernel.CHUNK_ROW)
        #: Copies of full tables.
        self._full_tables: list[kernel.Rows] = []
        self._state = np.zeros(ARRIVAL_SIZE, np.int64)
        self._state[kernel.STATE_CONSUMED] = FETCH_DATA_HEADER_SIZE
        self._state[CODE] = kernel.CHUNKS_MORE

    def verify_up_to(self, arrived: int) -> None:
        """Verify the first `arrived` bytes of the payload, as far as that was not done yet."""
        state = self._state
        if arrived <= state[ARRIVED] and state[CODE] != kernel.CHUNKS_FULL:
            return
        state[ARRIVED] = max(int(state[ARRIVED]), arrived)
        code = int(state[CODE])
        while code in (kernel.CHUNKS_MORE, kernel.CHUNKS_FULL):
            if code == kernel.CHUNKS_FULL:
                self._full_tables.append(self._rows.copy())
                state[kernel.STATE_ROWS] = 0
            code = kernel.check_chunks(self._payload, int(state[ARRIVED]), self._payload.size, self._rows, state)
            state[CODE] = code
            if code == kernel.CHUNKS_MORE:
                return

    def receive(self, fd: int) -> int:
        """Receive more of the payload from a socket that may block briefly: bytes, 0 at the end, or minus errno."""
        before = int(self._state[ARRIVED])
        result = receive_chunks(fd, self._payload, self._rows, self._state)
        arrived = int(self._state[ARRIVED])
        self.verify_up_to(arrived)
        return arrived - before or result

    def checked(self, prefix: DataPrefix, record_count: int) -> tuple[kernel.Rows, CorruptionError | None]:
        """The valid batches up to the first damaged one, and its error or None; the payload must be complete.

        Raises if nothing is damaged but the number of chunks or records is not the one that the frame states.
        """
        state = self._state
        self.verify_up_to(self._payload.size)
        rows = self._rows[: state[kernel.STATE_ROWS]]
        found = np.concatenate([*self._full_tables, rows]) if self._full_tables else rows
        if state[CODE] == kernel.CHUNKS_BAD:
            return found, _damage(self._payload.data[state[kernel.STATE_CONSUMED] :])
        chunks, records = found.size, int(state[kernel.STATE_RECORDS])
        if (chunks, records) != (prefix.chunk_count, record_count):
            raise malformed(
                f"data: {chunks} chunks with {records} records, the frame says {prefix.chunk_count} with {record_count}"
            )
        return found, None


def _damage(rest: memoryview) -> CorruptionError:
    """The error of the damaged batch at the start of `rest`."""
    try:
        header, _ = next(iter_batches(rest))
    except CorruptionError as error:
        return error
    return CorruptionError(f"the records of the batch at position {header.position} do not match its header")
