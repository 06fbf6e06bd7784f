"""Locate the fields of all records of a block by kernels: the way to read many records.

    spans          start and length of one field of each record; length −1 means absent
    header_spans   the same for the names and values of all headers
    seqs, types, timestamps

Deleted records (type 00, empty) are left out, and `select` leaves out others. An invalid envelope has no fields: its
whole value is its data. This module must not know what becomes of the fields: Arrow columns (`arrow`) or record objects
(`api.received`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.errors import CorruptionError
from seawall.kernels.codec import blocks, columns, headers
from seawall.wire.format.fields import Buffer
from seawall.wire.format.records import RecordType

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class RecordFields:
    """Locations of the fields of a block's records, without deleted records."""

    def __init__(self, block: Buffer, record_count: int | None = None) -> None:
        """Scan an uncompressed block, or several joined ones.

        Pass `record_count` if it is known: otherwise offsets for the most records possible are allocated.
        """
        #: The bytes of the block, which all locations refer to.
        self.source: Bytes = np.frombuffer(block, np.uint8)
        size = self.source.size
        space = size // limits.RECORD_HEADER_SIZE + 1 if record_count is None else record_count
        self._offsets = np.empty(space + 1, np.int64)
        count = blocks.scan_block(self.source, 0, size, blocks.RECORDS_STORED, space, self._offsets)
        if count < 0 or record_count not in (None, count):
            raise CorruptionError(
                f"a block of {size} bytes is not a run of records, or has another record count (code {count})"
            )
        values, value_lengths, types = np.empty((3, count), np.int64)
        columns.locate_values(self.source, self._offsets, count, values, value_lengths, types)
        self._values = (values, value_lengths)
        self._types = types
        self._timestamps = np.full(count, -1, np.int64)
        self._starts: Integers | None = None
        # Most blocks hold only plain records or only envelopes; plain ones do not need the table of fields.
        if np.any(types == RecordType.ENVELOPE):
            self._starts, self._lengths = np.empty((2, columns.COLUMN_COUNT, count), np.int64)
            columns.locate_envelopes(self.source, self._offsets, count, self._starts, self._lengths, self._timestamps)
        deleted = (types == blocks.TYPE_DELETED) & (value_lengths == 0)
        #: Row numbers of the records that are not left out; None if that is all of them.
        self._kept = np.flatnonzero(~deleted) if np.any(deleted) else None

    def __len__(self) -> int:
        return self._types.size if self._kept is None else self._kept.size

    @property
    def has_envelopes(self) -> bool:
        """True if a record is an envelope; otherwise no record has a field except its value."""
        return self._starts is not None

    @property
    def types(self) -> Integers:
        """Record types."""
        return self._keep(self._types)

    @property
    def timestamps(self) -> Integers:
        """Envelope timestamps; −1 means none."""
        return self._keep(self._timestamps)

    def seqs(self, base_seq: int) -> npt.NDArray[np.uint64]:
        """The seq of each record, given that of the first record of the block."""
        numbers = np.arange(self._types.size, dtype=np.uint64) if self._kept is None else self._kept
        return numbers.astype(np.uint64) + np.uint64(base_seq)

    def select(self, mask: npt.NDArray[np.bool_]) -> None:
        """Leave out the records whose element of `mask`, one for each record that is there, is false."""
        kept = np.arange(self._types.size) if self._kept is None else self._kept
        self._kept = kept[mask]

    def spans(self, column: int) -> tuple[Integers, Integers]:
        """Starts and lengths of one field."""
        if self._starts is not None:
            return self._keep(self._starts[column]), self._keep(self._lengths[column])
        if column == columns.COLUMN_DATA:
            return self._keep(self._values[0]), self._keep(self._values[1])
        absent = np.full(len(self), -1, np.int64)
        return absent, absent

    def header_spans(self) -> tuple[npt.NDArray[np.int32], Integers]:
        """The first header of each record and the count of all; starts and lengths of all names and values."""
        starts, lengths = self.spans(columns.COLUMN_HEADERS)
        total = headers.count_headers(self.source, starts, lengths, starts.size)
        offsets = np.empty(starts.size + 1, np.int32)
        spans = np.empty((4, total), np.int64)
        headers.locate_headers(self.source, starts, lengths, starts.size, offsets, *spans)
        return offsets, spans

    def _keep(self, array: Integers) -> Integers:
        return array if self._kept is None else array[self._kept]
