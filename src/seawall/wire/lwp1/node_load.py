"""The load of a node in its cluster status (version 2): memory for peers, slow callbacks, and deliveries.

    "load": {"peer_memory": 1048576, "peer_memory_limit": 268435456,
             "slow_callbacks": 3, "slow_longest_us": 2100, "slow_longest": "receive",
             "pressure_percent": 12, "deliveries": 81000, "deliveries_late": 35}

Readers ignore unknown keys.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from seawall.wire.format.fields import JsonObject, JsonValue, json_text, json_unsigned


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """Memory held for peers and its limit; the number of callbacks over 1 ms, the longest, and the name of that one;
    the pressure of deliveries, how many were made, and how many of them waited for others for more than 1 ms.
    """

    peer_memory: int
    peer_memory_limit: int
    slow_callbacks: int = 0
    slow_longest_us: int = 0
    slow_longest: str = ""
    pressure_percent: int = 0
    deliveries: int = 0
    deliveries_late: int = 0

    def document(self) -> dict[str, JsonValue]:
        """The load as JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, document: JsonObject) -> Self:
        """Parse the JSON form."""
        what = "load in a cluster status"
        return cls(
            peer_memory=json_unsigned(document, "peer_memory", what),
            peer_memory_limit=json_unsigned(document, "peer_memory_limit", what),
            slow_callbacks=json_unsigned(document, "slow_callbacks", what),
            slow_longest_us=json_unsigned(document, "slow_longest_us", what),
            slow_longest=json_text(document, "slow_longest", what),
            pressure_percent=json_unsigned(document, "pressure_percent", what),
            deliveries=json_unsigned(document, "deliveries", what),
            deliveries_late=json_unsigned(document, "deliveries_late", what),
        )
