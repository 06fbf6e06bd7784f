"""Plans micro-batches and tasks: which seqs a micro-batch takes, and how ranges of seqs become tasks. Pure functions.

A limit is divided in proportion to the pending records of each topic. The parts add up to the limit if enough records
are pending, and are never all zero while a record is pending. The parts of a range are disjoint, ascending, non-empty
and complete.

This module must not know Spark, nor contact a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from seawall.spark.options import Splitting


@dataclass(frozen=True, slots=True)
class SeqRange:
    """Seqs of a topic from `first` to `end` (exclusive): what one task reads."""

    topic: str
    topic_id: int
    first: int
    end: int
    #: The average size of a record in bytes.
    record_size: float = 0.0
    #: True if seqs skipped by a crash of the server may have been records; never in durability class fsync.
    is_crash_loss: bool = True

    def __len__(self) -> int:
        return self.end - self.first


def admit(pending: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many pending records of each topic a micro-batch of at most `limit` records takes."""
    total = sum(pending.values())
    if total <= limit:
        return dict(pending)
    admitted = {topic: limit * count // total for topic, count in pending.items()}
    left = limit - sum(admitted.values())
    # The rest goes to the topics with the largest remainders, in order of their names if those are equal.
    by_remainder = sorted(pending, key=lambda topic: (-(limit * pending[topic] % total), topic))
    for topic in by_remainder[:left]:
        admitted[topic] += 1
    return admitted


def rows_within(pending: Mapping[str, int], record_sizes: Mapping[str, float], size_max: int) -> int:
    """How many pending records take about `size_max` bytes; at least 1."""
    total = sum(pending.values())
    size = sum(count * record_sizes.get(topic, 0.0) for topic, count in pending.items())
    return total if size <= size_max else max(1, int(total * size_max / size))


def split(ranges: Sequence[SeqRange], splitting: Splitting) -> list[SeqRange]:
    """Split ranges into tasks below the limits, and into at least `min_partitions` if there are enough records."""
    ranges = [each for each in ranges if len(each)]
    parts = [part for each in ranges for part in _cut(each, _part_count(each, splitting))]
    wanted = splitting.min_partitions
    if len(parts) >= wanted or not parts:
        return parts
    total = sum(map(len, parts))
    tasks = admit({str(number): len(part) for number, part in enumerate(parts)}, min(wanted, total))
    counts = [max(1, tasks[str(number)]) for number in range(len(parts))]
    return [piece for part, count in zip(parts, counts, strict=True) for piece in _cut(part, count)]


def _part_count(whole: SeqRange, splitting: Splitting) -> int:
    by_size = -(-int(len(whole) * whole.record_size) // splitting.max_bytes)
    by_records = -(-len(whole) // splitting.max_records) if splitting.max_records else 1
    return max(1, by_size, by_records)


def _cut(whole: SeqRange, count: int) -> Iterator[SeqRange]:
    """Split a range into `count` parts of about the same length."""
    count = min(count, len(whole))
    for number in range(count):
        first = whole.first + len(whole) * number // count
        yield replace(whole, first=first, end=whole.first + len(whole) * (number + 1) // count)
