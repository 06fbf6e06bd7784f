"""The memory that topics of class ephemeral share: limits each of them, whatever its own cap says.

Half of the memory is divided equally: each topic that holds records may always use its part of it. The other half is
first come, first served. So a single topic may use all of the memory, and no topic can keep another from publishing.

INV-EPHEMERAL-BOUND: topics of class ephemeral together hold no more memory than their bound, plus the append in
progress. The bound is `size_max` bytes of records. When topics with a guaranteed part are added, the total may exceed
it by up to half, until the other topics append and shrink.

A topic takes part from its first append on, since its earlier records ended with the last process. One owner at a time.
This module must not know how records are evicted.
"""

from __future__ import annotations

from seawall.core.types import TopicId
from seawall.topics.config import Durability
from seawall.topics.state import TopicState

__all__ = ["EphemeralMemory"]


class EphemeralMemory:
    """The memory that ephemeral topics hold, and the limit of each."""

    __slots__ = ("_size_max", "_topics", "_upper_bound")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._topics: dict[TopicId, TopicState] = {}
        #: An upper bound of what all topics hold: raised by every append, and recounted when it is large.
        self._upper_bound = 0

    def bytes_max(self, topic: TopicState, added: int = 0) -> int:
        """Bytes of records that a topic may hold, 0 if unlimited; `added` bytes are about to be appended."""
        own = topic.config.bytes_max
        if topic.config.durability is not Durability.EPHEMERAL:
            return own
        self._topics[topic.topic_id] = topic
        self._upper_bound += added
        if self._upper_bound <= self._size_max // 2:
            return own
        self._upper_bound = added + sum(each.live_bytes for each in self._topics.values())
        if self._upper_bound <= self._size_max // 2:
            return own
        reserved = self._size_max // (2 * len(self._topics))
        others = sum(max(each.live_bytes, reserved) for each in self._topics.values() if each is not topic)
        return min(own, max(reserved, self._size_max - others))

    def forget(self, topic_id: TopicId) -> None:
        """Forget a deleted topic and its memory."""
        self._topics.pop(topic_id, None)
