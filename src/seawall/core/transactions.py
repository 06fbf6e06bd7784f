"""Words of transactions: what is staged, what is to be committed together, and what became of it.

Records of a transaction are *staged* first, out of sight of every reader. Whoever staged them knows the seqs that they
got there, whole batches, as ranges; ranges may be sent elsewhere (they pickle) to whoever commits. A commit names an
owner and an epoch, its *key*, and publishes ranges into topics, in the order given, at one position.

Most stage in one topic that all share. Who stages much does it apart, in one of a few *berths*, topics of their own, so
that its batches lie together. The seqs of a berth are told as its number times `BERTH_SEQS` and more: a seq says both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seawall.core.types import Position, Seq, TimestampNs

#: The name of the topic that is shared, which nobody else can create; berths have a number behind it.
STAGING_TOPIC: Final = "_staging"

#: How many staged seqs a berth has.
BERTH_SEQS: Final = 1 << 48


class StagedRange(NamedTuple):
    """Whole batches that are staged, from the seq of their first record to that of their last."""

    first_seq: Seq
    last_seq: Seq

    @property
    def record_count(self) -> int:
        """How many records are staged there."""
        return self.last_seq - self.first_seq + 1


class StagedPart(NamedTuple):
    """Something staged, and the topic that it is to be published into."""

    topic: str
    staged: StagedRange


class OffsetCommit(NamedTuple):
    """How far an owner has read a topic, to be kept if the transaction it joins is committed."""

    owner: str
    topic: str
    next_seq: Seq


class TopicSpan(NamedTuple):
    """Where the records of a transaction lie in one topic: dense, from a seq on."""

    topic: str
    first_seq: Seq
    record_count: int

    @property
    def seqs(self) -> range:
        """The seq of each record."""
        return range(self.first_seq, self.first_seq + self.record_count)


@dataclass(frozen=True, slots=True)
class WantedTransaction:
    """What a commit asks for: ranges into topics in their order, and cursors that join."""

    owner: str
    epoch: int
    parts: tuple[StagedPart, ...]
    offsets: tuple[OffsetCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A transaction that was committed: where, when, and which seqs its records have in each topic."""

    owner: str
    epoch: int
    position: Position
    timestamp_ns: TimestampNs
    spans: tuple[TopicSpan, ...]
    #: Whether this is the answer to a repetition: it was committed before.
    is_repeated: bool = field(default=False, compare=False)

    def span(self, topic: str) -> TopicSpan | None:
        """Where its records lie in a topic, if it has any there."""
        return next((span for span in self.spans if span.topic == topic), None)


def partition_name(partition: int) -> str:
    """The name of the topic of a berth; 0 is the one that is shared."""
    return f"{STAGING_TOPIC}.{partition}" if partition else STAGING_TOPIC


def partition_named(name: str) -> int:
    """The berth that a topic of staged records is."""
    return int(name.removeprefix(STAGING_TOPIC).removeprefix(".") or 0)


def joined(ranges: Iterable[StagedRange]) -> list[StagedRange]:
    """The same ranges, in their order, with those that follow one another as one."""
    found: list[StagedRange] = []
    for each in ranges:
        if found and found[-1].last_seq + 1 == each.first_seq:
            found[-1] = StagedRange(found[-1].first_seq, each.last_seq)
        else:
            found.append(each)
    return found
