"""Types of transactions: staged ranges, the request to commit them, and its result.

Records of a transaction are first *staged* in a hidden topic that readers do not see. Staging returns the seqs of the
staged batches as ranges; ranges can be pickled and sent to the process that commits. A commit names an owner and an
epoch, its *key*, and publishes ranges into topics, in the given order, at one position.

Most transactions are staged in one shared topic. Bulk writers use one of a few *staging partitions*, hidden topics of
their own, so that their batches are contiguous. A staged seq also encodes the partition: it is the partition's number
times `PARTITION_SEQS` plus the seq inside the partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seawall.core.types import Position, Seq, TimestampNs

#: The reserved name of the shared staging topic; staging partitions append their number to it.
STAGING_TOPIC: Final = "_staging"

#: Staged seqs of one staging partition.
PARTITION_SEQS: Final = 1 << 48


class StagedRange(NamedTuple):
    """Whole staged batches, from the seq of their first record to that of their last."""

    first_seq: Seq
    last_seq: Seq

    @property
    def record_count(self) -> int:
        """Number of staged records."""
        return self.last_seq - self.first_seq + 1


class StagedPart(NamedTuple):
    """A staged range, and the topic to publish it into."""

    topic: str
    staged: StagedRange


class OffsetCommit(NamedTuple):
    """An owner's read position in a topic, stored if and only if its transaction commits."""

    owner: str
    topic: str
    next_seq: Seq


class JobAck(NamedTuple):
    """Claimed jobs of a queue that are finished if and only if the transaction commits."""

    topic: str
    #: The worker that holds the jobs, their seqs, rising, and the lease of each.
    node: str
    seqs: tuple[int, ...]
    lease_ids: tuple[int, ...]


class TopicSpan(NamedTuple):
    """The seqs of a transaction's records in one topic: `record_count` consecutive ones from `first_seq`."""

    topic: str
    first_seq: Seq
    record_count: int

    @property
    def seqs(self) -> range:
        """The seq of each record."""
        return range(self.first_seq, self.first_seq + self.record_count)


@dataclass(frozen=True, slots=True)
class WantedTransaction:
    """A request to commit: staged ranges with their topics, in order, the offsets to store with them, and the jobs
    that they finish."""

    owner: str
    epoch: int
    parts: tuple[StagedPart, ...]
    offsets: tuple[OffsetCommit, ...] = ()
    acks: tuple[JobAck, ...] = ()


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A committed transaction: its position, its time, and the seqs of its records in each topic."""

    owner: str
    epoch: int
    position: Position
    timestamp_ns: TimestampNs
    spans: tuple[TopicSpan, ...]
    #: True if the commit was a repetition: the transaction had been committed before.
    is_repeated: bool = field(default=False, compare=False)

    def span(self, topic: str) -> TopicSpan | None:
        """The seqs of its records in a topic, or None if it has none there."""
        return next((span for span in self.spans if span.topic == topic), None)


def partition_name(partition: int) -> str:
    """The topic name of a staging partition; 0 is the shared staging topic."""
    return f"{STAGING_TOPIC}.{partition}" if partition else STAGING_TOPIC


def partition_named(name: str) -> int:
    """The number of the staging partition with this topic name."""
    return int(name.removeprefix(STAGING_TOPIC).removeprefix(".") or 0)


def joined(ranges: Iterable[StagedRange]) -> list[StagedRange]:
    """The same ranges in the same order, with adjacent ones merged."""
    merged: list[StagedRange] = []
    for each in ranges:
        if merged and merged[-1].last_seq + 1 == each.first_seq:
            merged[-1] = StagedRange(merged[-1].first_seq, each.last_seq)
        else:
            merged.append(each)
    return merged
