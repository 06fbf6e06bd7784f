"""The offsets of a streaming query in Spark's checkpoint: for each topic the next seq, and the epoch of the topic.

    {"events": {"0": 4711, "epoch": 3}}

The first entry has the format of Spark's Kafka connector, so tools that show progress and lag work. A topic that is
deleted and created again has another epoch, and its seqs start anew.

An offset holds strings and numbers only, and equal offsets have equal text: Spark compares and stores them as JSON.
This module must not know Spark, nor contact a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from seawall.errors import CorruptionError
from seawall.spark.option_values import EPOCH, PARTITION


class TopicOffset(NamedTuple):
    """The next seq of a topic, and the epoch of the topic."""

    seq: int
    epoch: int


TopicOffsets: TypeAlias = dict[str, TopicOffset]
Offset: TypeAlias = dict[str, dict[str, int]]


def offset_of(offsets: Mapping[str, TopicOffset]) -> Offset:
    """Convert offsets to the form that Spark stores."""
    return {topic: {PARTITION: offsets[topic].seq, EPOCH: offsets[topic].epoch} for topic in sorted(offsets)}


def offsets_of(offset: object) -> TopicOffsets:
    """Convert the form that Spark stores to offsets; `CorruptionError` if it is not one of ours."""
    if not isinstance(offset, dict):
        raise _damaged(offset)
    offsets: TopicOffsets = {}
    for topic, stored in offset.items():
        seq, epoch = (stored.get(PARTITION), stored.get(EPOCH)) if isinstance(stored, dict) else (None, None)
        if not isinstance(topic, str) or not isinstance(seq, int) or not isinstance(epoch, int):
            raise _damaged(offset)
        offsets[topic] = TopicOffset(seq, epoch)
    return offsets


def _damaged(offset: object) -> CorruptionError:
    return CorruptionError(
        f"{offset!r} is no offset of seawall: the checkpoint belongs to another source; name another checkpointLocation"
    )
