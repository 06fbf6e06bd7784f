"""A topic as `describe` returns it: one type for every kind of log.

The embedded log fills it from its catalog, the client from the answer of a server.
"""

from __future__ import annotations

from dataclasses import dataclass

from seawall.api.topic_config import TopicConfig
from seawall.core.types import Seq, TopicEpoch, TopicId


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it is now. `next_seq` is the seq of the next record, `floor` the first that can be read."""

    name: str
    topic_id: TopicId
    floor: Seq
    next_seq: Seq
    record_count: int
    byte_count: int
    #: Tells a topic from one of the same name that was deleted before.
    topic_epoch: TopicEpoch
    #: When it was created, in seconds since 1970.
    created_at: int
    #: All its settings.
    config: TopicConfig
