"""Tags out of stored records into the index of a topic: what has come since the index was last brought up to date.

Kernels find the tags and Arrow tells them apart, so Python sees each distinct tag of a run of batches and no record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from seawall.core.types import Seq
from seawall.engine.read.reading import stored_batches
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.errors import CorruptionError
from seawall.limits import TAG_SLICE_SIZE
from seawall.topics.state import TopicState
from seawall.topics.tags import TagIndex
from seawall.wire.format.arrow import decode_table
from seawall.wire.format.batches import block_of


def catch_up(index: TagIndex, topic: TopicState, log: TopicLog) -> bool:
    """Add the tags of some records that the index has not seen and that may be live; whether there are others left."""
    seq = max(index.next_seq, topic.floor)
    batches = stored_batches(log, seq, topic.next_seq, TAG_SLICE_SIZE)
    if batches:
        _add(index, batches, seq)
        last = batches[-1].header
        index.next_seq = Seq(last.base_seq + last.record_count)
        return True
    index.next_seq = topic.next_seq
    index.drop_below(topic.floor)
    return False


def _add(index: TagIndex, batches: Sequence[StoredBatch], from_seq: Seq) -> None:
    tables = [table for batch in batches if (table := _tagged(batch)) is not None]
    if not tables:
        return
    table = pa.Table.from_batches(tables)
    seqs = table.column("seq").to_numpy().astype(np.int64)
    coded = table.column("tag").combine_chunks().dictionary_encode()
    new = seqs >= from_seq
    index.add(coded.dictionary.to_pylist(), seqs[new], coded.indices.to_numpy()[new])


def _tagged(stored: StoredBatch) -> pa.RecordBatch | None:
    """Seq and tag of those records of a batch that have one; None if none has, or where they cannot be told."""
    header = stored.header
    if header.is_opaque:
        return None
    try:
        block = block_of(header, stored.block)
        table = decode_table(block, base_seq=header.base_seq, wanted=("tag",), record_count=header.record_count)
    except CorruptionError:
        # Readers get no record out of it either.
        return None
    tagged = table.filter(table.column("tag").is_valid())
    return tagged if tagged.num_rows else None
