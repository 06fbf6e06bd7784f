"""Where a streaming query is, as Spark keeps it: for each topic the next seq, and which life of the topic that is in.

    {"events": {"0": 4711, "epoch": 3}}

The first entry is what Kafka's connector writes, so what shows progress and lag there does here. The epoch is the
topic's own: one that is deleted and made again has another, and its seqs mean something else.

An offset holds strings and numbers only, and equal places are equal text: Spark compares and stores them as JSON. This
module must not know Spark, nor ask a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from seawall.errors import CorruptionError
from seawall.spark.option_values import EPOCH, PARTITION


class TopicOffset(NamedTuple):
    """The next seq of a topic, in one of its lives."""

    seq: int
    epoch: int


TopicOffsets: TypeAlias = dict[str, TopicOffset]
Offset: TypeAlias = dict[str, dict[str, int]]


def offset_of(places: Mapping[str, TopicOffset]) -> Offset:
    """What Spark keeps of some places."""
    return {topic: {PARTITION: places[topic].seq, EPOCH: places[topic].epoch} for topic in sorted(places)}


def offsets_of(offset: object) -> TopicOffsets:
    """The places that Spark has kept."""
    if not isinstance(offset, dict):
        raise _damaged(offset)
    places: TopicOffsets = {}
    for topic, kept in offset.items():
        seq, epoch = (kept.get(PARTITION), kept.get(EPOCH)) if isinstance(kept, dict) else (None, None)
        if not isinstance(topic, str) or not isinstance(seq, int) or not isinstance(epoch, int):
            raise _damaged(offset)
        places[topic] = TopicOffset(seq, epoch)
    return places


def _damaged(offset: object) -> CorruptionError:
    return CorruptionError(
        f"{offset!r} is no offset of seawall: the checkpoint belongs to another source; name another checkpointLocation"
    )
