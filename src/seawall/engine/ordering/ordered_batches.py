"""Reads batches that are ordered and not in the log yet, with the same bytes that they will have there.

An entry of the order has the location of its batch in a BLog, and its side entry has the numbers: together they give
the stamped batch (`docs/fabric.md`). The fabric is not changed. These batches are in no file yet, so a crash may lose
them. The caller makes sure that nothing is ordered or applied meanwhile.
"""

from __future__ import annotations

import numpy as np

from seawall.core.types import Offset, Position, Seq, Term, TimestampNs, TopicId
from seawall.engine.ordering.entry_scan import Records
from seawall.engine.store.topic_log import StoredBatch
from seawall.kernels.ordering import applying as kernels
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import BATCH_HEADER_SIZE
from seawall.wire.format.batches import stamp
from seawall.wire.format.codes import AckStatus

_NO_BATCH = kernels.FLAG_NOP | kernels.FLAG_SKIP | kernels.FLAG_CONTROL


def stamped_header(position: Position, entry: np.void, side: np.void, source: int, blogs: Bytes, term: Term) -> bytes:
    """The header of the batch at offset `source` of the BLogs, stamped with its numbers."""
    header = bytearray(blogs[source : source + BATCH_HEADER_SIZE].tobytes())
    stamp(
        header,
        position=position,
        base_seq=Seq(int(side["base_seq"])),
        base_offset=Offset(int(side["base_offset"])),
        timestamp_ns=TimestampNs(int(side["timestamp_ns"])),
        term=Term(kernels.full_term(term, int(entry["term"]))),
    )
    return bytes(header)


def ordered_batches(
    entries: Records,
    sides: Records,
    positions: range,
    blogs: Bytes,
    blog_size: int,
    term: Term,
    *,
    topic_id: TopicId,
    from_seq: Seq,
    size_max: int,
) -> list[StoredBatch]:
    """Copies of the batches of a topic at `positions`, from a seq on: at least one, at most `size_max` bytes.

    `entries` and `sides` are the whole rings, `blogs` is all BLogs, concatenated.
    """
    slots = np.arange(positions.start, positions.stop) & (len(entries) - 1)
    found, beside = entries.take(slots), sides.take(slots)
    is_wanted = (found["flags"] & _NO_BATCH == 0) & (beside["status"] == int(AckStatus.OK))
    is_wanted &= (found["topic_id"] == topic_id) & (beside["base_seq"] + found["record_count"] > np.uint64(from_seq))
    batches: list[StoredBatch] = []
    for number in np.flatnonzero(is_wanted).tolist():
        entry, side = found[number], beside[number]
        size = int(entry["size"])
        size_max -= size
        if batches and size_max < 0:
            break
        position = Position(positions[number])
        source = kernels.batch_at(found.view(np.uint8), number * found.itemsize, blogs, blog_size)
        header = stamped_header(position, entry, side, source, blogs, term)
        data = header + blogs[source + BATCH_HEADER_SIZE : source + size].tobytes()
        base_seq, count = int(side["base_seq"]), int(entry["record_count"])
        live = ((Seq(max(base_seq, from_seq)), Seq(base_seq + count - 1)),)
        when = TimestampNs(int(side["timestamp_ns"]))
        next_seq = Seq(base_seq + count)
        batches.append(StoredBatch(Seq(base_seq), count, position, when, memoryview(data), live, next_seq))
    return batches
