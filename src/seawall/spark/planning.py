"""Which seqs a micro-batch takes, and how ranges of seqs become tasks. Numbers in, numbers out.

What a bound admits is shared out in proportion to what waits in each topic, adds up to the bound if so much waits, and
is never nothing while something waits. The parts of a range are disjoint, ascend, are not empty, and are all of it.

This module must not know Spark, nor ask a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from seawall.spark.options import Splitting


@dataclass(frozen=True, slots=True)
class SeqRange:
    """Seqs of a topic, from the first up to the end, which is not included: what one task reads."""

    topic: str
    topic_id: int
    first: int
    end: int
    #: Bytes that a record takes on the average.
    record_size: float = 0.0
    #: Whether numbers that a crash of the server took may have been records: in class fsync they never are.
    is_crash_loss: bool = True

    def __len__(self) -> int:
        return self.end - self.first


def admit(waiting: Mapping[str, int], bound: int) -> dict[str, int]:
    """How many of the records that wait in each topic a batch of at most `bound` takes."""
    total = sum(waiting.values())
    if total <= bound:
        return dict(waiting)
    shares = {topic: bound * count // total for topic, count in waiting.items()}
    left = bound - sum(shares.values())
    # What rounding leaves goes to those that it took most from; by name where that is the same.
    behind = sorted(waiting, key=lambda topic: (-(bound * waiting[topic] % total), topic))
    for topic in behind[:left]:
        shares[topic] += 1
    return shares


def rows_within(waiting: Mapping[str, int], record_sizes: Mapping[str, float], size_max: int) -> int:
    """How many of the records that wait are about so many bytes; at least 1."""
    total = sum(waiting.values())
    size = sum(count * record_sizes.get(topic, 0.0) for topic, count in waiting.items())
    return total if size <= size_max else max(1, int(total * size_max / size))


def split(ranges: Sequence[SeqRange], splitting: Splitting) -> list[SeqRange]:
    """Ranges as tasks: none too large, and as many as are wanted if there are that many records."""
    ranges = [each for each in ranges if len(each)]
    parts = [part for each in ranges for part in _cut(each, _part_count(each, splitting))]
    wanted = splitting.min_partitions
    if len(parts) >= wanted or not parts:
        return parts
    total = sum(map(len, parts))
    shares = admit({str(number): len(part) for number, part in enumerate(parts)}, min(wanted, total))
    counts = [max(1, shares[str(number)]) for number in range(len(parts))]
    return [piece for part, count in zip(parts, counts, strict=True) for piece in _cut(part, count)]


def _part_count(whole: SeqRange, splitting: Splitting) -> int:
    by_size = -(-int(len(whole) * whole.record_size) // splitting.max_bytes)
    by_records = -(-len(whole) // splitting.max_records) if splitting.max_records else 1
    return max(1, by_size, by_records)


def _cut(whole: SeqRange, count: int) -> Iterator[SeqRange]:
    """A range in so many parts of about the same length."""
    count = min(count, len(whole))
    for number in range(count):
        first = whole.first + len(whole) * number // count
        yield replace(whole, first=first, end=whole.first + len(whole) * (number + 1) // count)
