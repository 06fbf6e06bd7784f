"""Searching the pending rows of the log: kernel and twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seawall.kernels.log import pending
from seawall.kernels.log.epochs import WAL_ROW
from seawall.kernels.log.segments import INDEX_ENTRY
from twins.log import pending as twin

#: Topic, records, size and the number of missing seqs before the batch.
_BATCHES = st.lists(
    st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(96, 200), st.sampled_from([0, 0, 0, 0, 0, 1])),
    max_size=12,
)


@given(_BATCHES, st.integers(1, 30), st.integers(1, 600), st.integers(1, 12), st.integers(1, 6))
def test_the_batches_of_a_topic_are_found(
    batches: list[tuple[int, int, int, int]], from_seq: int, size_max: int, records_max: int, capacity: int
) -> None:
    """Kernel and twin agree, and what they find covers the seqs from the wanted one on."""
    rows = np.zeros(len(batches) + 1, WAL_ROW)
    next_seqs, at = {1: 5, 2: 1}, 1_000
    for position, (topic_id, count, size, missing) in enumerate(batches):
        base_seq = next_seqs[topic_id] + missing
        next_seqs[topic_id] = base_seq + count
        row = {"topic_id": topic_id, "base_seq": base_seq, "count": count, "size": size, "at": at}
        for name, value in {**row, "position": position, "timestamp_ns": at * 7, "base_offset": at * 3}.items():
            rows[position][name] = value
        at += size
    results = []
    for kernels in (pending, twin):
        entries, found = np.zeros(capacity, INDEX_ENTRY), np.zeros(pending.FOUND_WORDS, np.int64)
        count = kernels.find_pending(rows, len(batches), 1, from_seq, size_max, records_max, entries, found)
        results.append((count, None if count < 0 else (entries.tolist(), found.tolist())))
    assert results[0] == results[1]
    if count > 0:
        assert entries[0]["base_seq"] <= from_seq < entries[0]["base_seq"] + entries[0]["count"]
        last = entries[count - 1]
        assert found[pending.END_SEQ] == last["base_seq"] + last["count"]
