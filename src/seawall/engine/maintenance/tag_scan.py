"""Brings the tag index of a topic up to date: reads the tags of records stored since the last call.

Kernels find the tags and Arrow encodes them as a dictionary, so Python handles each distinct tag of a run of batches,
and no single record.
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
    """Index the tags of some more records that may be live; true if there are records left."""
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
    """Seq and tag of the records of a batch that have a tag; None if there are none, or if the batch is unreadable."""
    header = stored.header
    if header.is_opaque:
        return None
    try:
        block = block_of(header, stored.block)
        table = decode_table(block, base_seq=header.base_seq, wanted=("tag",), record_count=header.record_count)
    except CorruptionError:
        # Readers get no record of this batch either.
        return None
    tagged = table.filter(table.column("tag").is_valid())
    return tagged if tagged.num_rows else None
