"""Gather plain records of verified batches into column buffers for Arrow.

Callers add stored batches, mapped or received, piece by piece; each value is copied once, directly into the Arrow
buffer. The buffers for all records are allocated first, from the pool of `read_buffers.py`. The code that
`kernels/codec/gather.py` returns reports batches that are not plain and need the general decoder.

This module must not know where batches come from, nor which columns a reader wants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.gather import GATHER_ROWS, GATHER_SIZE, GATHER_STATE, gather_values
from seawall.kernels.log.segments import Entries
from seawall.limits import BATCH_HEADER_SIZE, RECORD_HEADER_SIZE
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes

Integers = npt.NDArray[np.int64]


class PlainColumns:
    """The columns seq, type and value, with capacity for all records of some index entries."""

    def __init__(self, runs: Sequence[Entries], live: Integers) -> None:
        """`live` are the live seqs: rows of the first and the last of each range, ascending."""
        batches = sum(map(len, runs))
        records = sum(int(entries["count"].sum()) for entries in runs)
        stored = sum(int(entries["length"].sum(dtype=np.int64)) for entries in runs)
        # A value has its record's bytes without the header; extended types have a longer header than this.
        size = max(0, stored - batches * BATCH_HEADER_SIZE - records * RECORD_HEADER_SIZE)
        self._data = READ_BUFFERS.take(size)
        self._offsets = np.empty(records + 1, np.int32)
        self._offsets[0] = 0
        self._seqs = np.empty(records, np.uint64)
        self._types = np.empty(records, np.uint32)
        self._state = np.zeros(GATHER_STATE, np.int64)
        self._live_firsts = np.ascontiguousarray(live[:, 0])
        self._live_lasts = np.ascontiguousarray(live[:, 1])

    def add(self, buffer: Bytes, at: int, entries: Entries) -> int:
        """Add the records of verified batches in a buffer that starts at file offset `at`; returns a kernel code."""
        return gather_values(
            buffer,
            at,
            entries,
            self._live_firsts,
            self._live_lasts,
            self._state,
            self._offsets,
            self._data,
            self._seqs,
            self._types,
        )

    @property
    def row_count(self) -> int:
        """Number of live records added."""
        return int(self._state[GATHER_ROWS])

    @property
    def seqs(self) -> npt.NDArray[np.uint64]:
        """The seq of each record."""
        return self._seqs[: self.row_count]

    @property
    def types(self) -> npt.NDArray[np.uint32]:
        """The type of each record."""
        return self._types[: self.row_count]

    @property
    def values(self) -> tuple[npt.NDArray[np.int32], Bytes]:
        """Offsets and data of the values."""
        return self._offsets[: self.row_count + 1], self._data[: int(self._state[GATHER_SIZE])]
