"""The description of a topic that `describe` returns: one type for every kind of log.

The embedded log fills it from its catalog, the client from the reply of a server.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seawall.api.topic_config import TopicConfig
from seawall.core.types import Seq, TopicEpoch, TopicId


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic at the time of the call. `next_seq` is the seq of the next record, `floor` the first readable seq."""

    name: str
    topic_id: TopicId
    floor: Seq
    next_seq: Seq
    record_count: int
    byte_count: int
    #: Distinguishes a topic from a deleted one of the same name.
    topic_epoch: TopicEpoch
    #: Time of creation, in seconds since 1970.
    created_at: int
    #: All its settings.
    config: TopicConfig
    #: The priority of its deliveries now: the one that is set, or one that follows recent use. It falls while time
    #: passes, so it does not count when two descriptions are compared.
    effective_priority: int = field(default=0, compare=False)
