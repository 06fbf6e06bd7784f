"""Search of pending rows with lists."""

from __future__ import annotations

from seawall.kernels.log.epochs import WalRows
from seawall.kernels.log.pending import HAS_HOLE, Found
from seawall.kernels.log.segments import Entries


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
    """Filter the rows, check that they are adjacent, and take those that fit."""
    of_topic = [row for row in rows[:count] if row["topic_id"] == topic_id]
    ends = [int(row["base_seq"]) + int(row["count"]) for row in of_topic]
    wanted = [(row, end) for row, end in zip(of_topic, ends, strict=True) if end > from_seq]
    starts = [int(row["base_seq"]) for row, _ in wanted]
    if starts and (starts[0] > from_seq or starts[1:] != [end for _, end in wanted[:-1]]):
        return HAS_HOLE
    taken: list[tuple[int, ...]] = []
    size, end_seq = 0, from_seq
    for row, end in wanted:
        size += int(row["size"])
        is_enough = end_seq - from_seq >= records_max and taken
        if is_enough or len(taken) == entries.size or (taken and size > size_max):
            break
        fields = ("base_seq", "at", "timestamp_ns", "base_offset", "position", "count", "size")
        taken.append(tuple(int(row[name]) for name in fields))
        end_seq = end
    for index, entry in enumerate(taken):
        entries[index] = entry
    found[:] = (ends[-1] if ends else 0, end_seq)
    return len(taken)
