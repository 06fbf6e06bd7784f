"""The memory that topics of class ephemeral share: how much each of them may hold, whatever its own cap says.

Each topic that holds records has half of an equal part for itself, whatever the others do. The rest goes to whoever
comes first. So one topic alone may use all of it, and none can keep another from publishing.

INV-EPHEMERAL-BOUND: topics of class ephemeral together hold no more memory than their bound, plus the append in
progress. The bound is `size_max` bytes of records. While topics are added that have their part for themselves, up to
half as much more: until the others append, and shrink.

A topic takes part from its first append on: what it held before the process started is gone. One owner at a time. This
module must not know how records are evicted.
"""

from __future__ import annotations

from seawall.core.types import TopicId
from seawall.topics.config import Durability
from seawall.topics.state import TopicState

__all__ = ["EphemeralMemory"]


class EphemeralMemory:
    """What topics in memory hold, and may hold."""

    __slots__ = ("_at_most", "_size_max", "_topics")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._topics: dict[TopicId, TopicState] = {}
        #: At least what all of them hold: counted up with every append, and exactly where that is much.
        self._at_most = 0

    def bytes_max(self, topic: TopicState, added: int = 0) -> int:
        """Bytes of records that a topic may hold, 0 if that is not bounded; `added` are about to be appended to it."""
        own = topic.config.bytes_max
        if topic.config.durability is not Durability.EPHEMERAL:
            return own
        self._topics[topic.topic_id] = topic
        self._at_most += added
        if self._at_most <= self._size_max // 2:
            return own
        self._at_most = added + sum(each.live_bytes for each in self._topics.values())
        if self._at_most <= self._size_max // 2:
            return own
        reserved = self._size_max // (2 * len(self._topics))
        others = sum(max(each.live_bytes, reserved) for each in self._topics.values() if each is not topic)
        return min(own, max(reserved, self._size_max - others))

    def forget(self, topic_id: TopicId) -> None:
        """A topic is gone, and what it held."""
        self._topics.pop(topic_id, None)
