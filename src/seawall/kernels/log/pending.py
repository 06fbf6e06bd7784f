"""Finds batches of a topic among the pending rows of the log, which catalog and index do not have yet.

A reader that follows a topic wants the newest batches: this finds them without applying the rows.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.kernels.log.segments import INDEX_ENTRY, Entries
from seawall.kernels.runtime.jit import int64, int64_out, kernel, record_array
from seawall.kernels.runtime.memory import as_int64

#: Words of `found`: the seq after the last row of the topic, 0 without rows; and the seq after the entries found.
NEXT_SEQ = 0
END_SEQ = 1
FOUND_WORDS = 2

#: There are seqs between the rows that no row has: apply the rows to find out why.
HAS_HOLE = -1

Found = np.ndarray[tuple[int], np.dtype[np.int64]]

_rows = types.Array(numba.from_dtype(WAL_ROW), 1, "C")
_entries = record_array(INDEX_ENTRY)


@kernel(int64(_rows, int64, int64, int64, int64, int64, _entries, int64_out))
def find_pending(
    rows: WalRows,
    count: int,
    topic_id: int,
    from_seq: int,
    size_max: int,
    records_max: int,
    entries: Entries,
    found: Found,
) -> int:
    """Find the batches of a topic from the one that holds `from_seq` on in the first `count` rows.

    Writes an index entry for each, with its log address as `at`, and returns their number, or `HAS_HOLE`. Ends before
    the batch that exceeds `size_max` bytes, though not before the first, after the one that reaches `records_max`
    records, and when `entries` is full.
    """
    found[NEXT_SEQ] = 0
    found[END_SEQ] = from_seq
    # From the end backwards: a reader that follows a topic wants the last rows.
    start = count
    before = 0
    for back in range(count):
        index = count - 1 - back
        if as_int64(rows[index]["topic_id"]) != topic_id:
            continue
        base_seq = as_int64(rows[index]["base_seq"])
        next_seq = base_seq + as_int64(rows[index]["count"])
        if found[NEXT_SEQ] == 0:
            found[NEXT_SEQ] = next_seq
        elif next_seq != before and next_seq > from_seq:
            return HAS_HOLE
        if next_seq <= from_seq:
            break
        before = base_seq
        start = index
        if base_seq <= from_seq:
            break
    if start < count and before > from_seq:
        return HAS_HOLE
    number = 0
    size = 0
    for index in range(start, count):
        if as_int64(rows[index]["topic_id"]) != topic_id:
            continue
        if number == entries.size or (number > 0 and size + as_int64(rows[index]["size"]) > size_max):
            break
        entries[number]["base_seq"] = rows[index]["base_seq"]
        entries[number]["at"] = rows[index]["at"]
        entries[number]["timestamp_ns"] = rows[index]["timestamp_ns"]
        entries[number]["base_offset"] = rows[index]["base_offset"]
        entries[number]["position"] = rows[index]["position"]
        entries[number]["count"] = rows[index]["count"]
        entries[number]["length"] = rows[index]["size"]
        number += 1
        size += as_int64(rows[index]["size"])
        found[END_SEQ] = as_int64(rows[index]["base_seq"]) + as_int64(rows[index]["count"])
        if found[END_SEQ] - from_seq >= records_max:
            break
    return number
