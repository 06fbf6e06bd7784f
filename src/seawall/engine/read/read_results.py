"""Convert what the store has read into the items that readers get.

The item types, and those of published records, are shared with the client (`api/publishable.py`, `api/received.py`)
and re-exported here.
"""

from __future__ import annotations

from collections.abc import Iterable

from seawall.api.publishable import Message, OneRecord, Publishable, encode
from seawall.api.received import (
    Item,
    PositionItem,
    ReceivedBatch,
    ReceivedSkip,
    TopicGap,
    readable_block,
    seq_after,
    to_arrow,
)
from seawall.api.received_record import ReceivedRecord
from seawall.engine.read.reading import ReadItem, StoredSkip
from seawall.engine.store.topic_log import StoredBatch

__all__ = [
    "Item",
    "Message",
    "OneRecord",
    "PositionItem",
    "Publishable",
    "ReceivedBatch",
    "ReceivedRecord",
    "ReceivedSkip",
    "TopicGap",
    "encode",
    "received",
    "seq_after",
    "to_arrow",
    "to_items",
]


def to_items(topic: str, items: Iterable[ReadItem], limit: int | None) -> list[Item]:
    """Convert what was read of a topic into reader items, up to the batch that reaches `limit` records."""
    results: list[Item] = []
    left = limit
    for item in items:
        if left is not None and left <= 0:
            break
        if isinstance(item, StoredBatch):
            batch = received(topic, item)
            results.append(batch)
            left = None if left is None else left - len(batch)
        elif isinstance(item, StoredSkip):
            skip = item.skip
            numbers = (skip.position, skip.client_id, skip.first_client_seq, skip.count)
            results.append(ReceivedSkip(topic, *numbers, item.next_seq))
        else:
            results.append(item)
    return results


def received(topic: str, stored: StoredBatch) -> ReceivedBatch:
    """Convert a stored batch for readers: its block is decompressed, an opaque block becomes a single record."""
    block = stored.block
    if not stored.is_plain:
        block = readable_block(stored.header, block)
    return ReceivedBatch(
        topic,
        stored.base_seq,
        stored.record_count,
        stored.position,
        stored.timestamp_ns,
        block,
        stored.live,
        stored.next_seq,
    )
