"""The effective priority of a topic: what its owner has set, or how recently somebody used it.

    priority is set        that priority
    auto_priority          500 just after a use, half of it every 30 s, 0 after 5 minutes
    neither                0

A use is a read, a description, or a delivery to a reader. Priorities order deliveries only: never numbers, retention,
or what can be read. Uses are in memory; after a restart no topic has any.

This module must not know what is delivered, nor when.
"""

from __future__ import annotations

from typing import Final

from seawall.topics.config import TopicConfig

#: The time of the last use of a topic that was not used in this life of the log.
NEVER_NS: Final = -(1 << 62)

_RECENT: Final = 500
_HALF_LIFE_NS: Final = 30_000_000_000
_FORGOTTEN_NS: Final = 300_000_000_000


def effective_priority(config: TopicConfig, idle_ns: int) -> int:
    """The priority of a topic whose last use was so long ago."""
    if config.priority is not None:
        return config.priority
    if not config.auto_priority or idle_ns >= _FORGOTTEN_NS:
        return 0
    return int(_RECENT * 2.0 ** (-max(idle_ns, 0) / _HALF_LIFE_NS))
