"""Order and ack level of every topic, by topic id, as arrays for the kernel that admits arriving batches.

The rules are hints that refuse bad batches early; the frontier makes the final decision. Use them from one thread. This
module must not know connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from seawall.core.types import TopicId
from seawall.kernels.admission.arriving import NO_TOPIC
from seawall.topics.state import TopicState

_INITIAL_SIZE: Final = 64


class TopicRules:
    """Order and ack level of every topic."""

    __slots__ = ("levels", "orders")

    def __init__(self, topics: Iterable[TopicState]) -> None:
        self.orders = np.full(_INITIAL_SIZE, NO_TOPIC, np.uint8)
        self.levels = np.zeros(_INITIAL_SIZE, np.uint8)
        for topic in topics:
            self.learn(topic)

    def learn(self, topic: TopicState) -> None:
        """Add a topic, or update its settings."""
        size = len(self.orders)
        if topic.topic_id >= size:
            grown = max(2 * size, topic.topic_id + 1)
            self.orders = np.concatenate((self.orders, np.full(grown - size, NO_TOPIC, np.uint8)))
            self.levels = np.concatenate((self.levels, np.zeros(grown - size, np.uint8)))
        self.orders[topic.topic_id] = int(topic.config.order)
        self.levels[topic.topic_id] = int(topic.config.ack_level)

    def require(self, topic: TopicState) -> None:
        """Add a topic if it is unknown: its creator may not have updated these rules yet."""
        if topic.topic_id >= len(self.orders) or self.orders[topic.topic_id] == NO_TOPIC:
            self.learn(topic)

    def forget(self, topic_id: TopicId) -> None:
        """Remove a deleted topic."""
        self.orders[topic_id] = NO_TOPIC
