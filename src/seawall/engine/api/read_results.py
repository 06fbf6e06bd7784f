"""What a store has read as readers get it. The words for it, and for what is published, are the wire's: the client has
the same (`api/publishable.py`, `api/received.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from seawall.api.publishable import Message, OneRecord, Publishable, encode
from seawall.api.received import (
    Item,
    PositionItem,
    ReceivedBatch,
    ReceivedRecord,
    ReceivedSkip,
    TopicGap,
    seq_after,
    shown_block,
    to_arrow,
)
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
    "told",
]


def told(topic: str, items: Iterable[ReadItem], limit: int | None) -> list[Item]:
    """What was read of a topic as a reader gets it, up to the batch that makes `limit` records full."""
    found: list[Item] = []
    left = limit
    for item in items:
        if left is not None and left <= 0:
            break
        if isinstance(item, StoredBatch):
            batch = received(topic, item)
            found.append(batch)
            left = None if left is None else left - len(batch)
        elif isinstance(item, StoredSkip):
            skip = item.skip
            numbers = (skip.position, skip.client_id, skip.first_client_seq, skip.count)
            found.append(ReceivedSkip(topic, *numbers, item.next_seq))
        else:
            found.append(item)
    return found


def received(topic: str, stored: StoredBatch) -> ReceivedBatch:
    """A stored batch as a reader gets it: its block plain, an opaque one as a single record of that type."""
    block = stored.block
    if not stored.is_plain:
        block = shown_block(stored.header, block)
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
