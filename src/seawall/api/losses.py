"""Which gaps are losses, and how a reader that must not miss a record reports one.

A gap is a loss, with two exceptions. In class fsync all acknowledged records survive a crash, so the seqs of a gap of
reason CRASH were only reserved. And a reader that starts at the beginning of a topic does not ask for what was evicted
before.
"""

from __future__ import annotations

from typing import Final

from seawall.api.read_options import Start
from seawall.api.topic_config import Durability
from seawall.api.topic_info import TopicInfo
from seawall.core.types import Seq
from seawall.errors import DataLossError
from seawall.wire.format.codes import GapReason
from seawall.wire.format.gaps import Gap

_CAUSES: Final = {
    GapReason.CAP: "evicted by the cap of the topic",
    GapReason.TTL: "evicted because of their age",
    GapReason.CRASH: "by a crash of the server",
    GapReason.RECREATED: "because the topic was deleted and created again",
    GapReason.SKIPPED: "because their publisher abandoned them",
    GapReason.CORRUPTION: "because their file is damaged",
    GapReason.SOURCE_TRIM: "because they were evicted in the log that they were copied from",
}


def survives_crashes(durability: Durability) -> bool:
    """True if a gap of reason CRASH is no loss."""
    return durability is Durability.FSYNC


def data_loss(topic: str, gap: Gap, remedy: str) -> DataLossError:
    """The error for a gap; `remedy` says how to read on without its records."""
    count = gap.last_seq - gap.first_seq + 1
    return DataLossError(
        f"topic {topic!r}: {count} seqs from {gap.first_seq} to {gap.last_seq} are lost, {_CAUSES[gap.reason]}. "
        f"{remedy}; to keep more, raise the topic's cap or age"
    )


class LossCheck:
    """Checks the gaps that a reader of one topic meets."""

    def __init__(self, topic: str, remedy: str) -> None:
        self._topic = topic
        self._remedy = remedy
        self._floor = Seq(1)
        self._survives_crashes = False

    def begin(self, info: TopicInfo, start: Start, committed: int | None) -> None:
        """Note the topic, and what the owner has committed, as they are before the first read."""
        self._survives_crashes = survives_crashes(info.config.durability)
        if start == "earliest" or (start == "committed" and committed is None):
            self._floor = info.floor

    def check(self, gap: Gap) -> None:
        """Raise `DataLossError` if a gap is a loss."""
        is_reserved = gap.reason is GapReason.CRASH and self._survives_crashes
        if gap.last_seq >= self._floor and not is_reserved:
            raise data_loss(self._topic, gap, self._remedy)
