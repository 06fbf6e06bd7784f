"""Where transactions stage records: hidden topics, and ranges of whole batches in them.

Most staged records go to one topic of the data directory, created when it is first needed. A client that stages much
asks for a partition, a staging topic of the same kind. Partitions are assigned in turn, and each begins a new segment
then, so that a segment of a partition usually holds the records of one attempt only. That matters only for the speed of
the commit (`adoption`).

All staging topics are of class `disk`: staged records that a power loss takes were never promised, and their
transaction is refused. A commit or an abort deletes the staged records, so their segments are dropped; records that are
never committed expire by age.

This module must not know what becomes of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from seawall import limits
from seawall.core.transactions import PARTITION_SEQS, StagedRange, partition_name
from seawall.core.types import Seq, TopicId
from seawall.engine.maintenance.retention import LogCleaner
from seawall.engine.store.topic_log import TopicLog
from seawall.errors import InvalidInputError, LimitError, NotFoundError
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.segments.batch_index import Entries, join_entries
from seawall.storage.segments.delete_sidecar import DeletedSeqs, Ranges
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Durability, Order, TopicConfig
from seawall.topics.state import TopicState

#: The number of staging partitions: how many attempts can stage at once without sharing one.
STAGING_PARTITIONS: Final = 8

#: Bytes of staged batches in one segment: some become segments of topics. The number of records is not limited, since
#: clients choose the size of batches.
SEGMENT_SIZE: Final = 256 * limits.MIB
_SEGMENT_RECORDS: Final = 1 << 40

_SEQ_LIMIT: Final = (1 << 63) - 1


def staging_config(ttl_ms: int) -> TopicConfig:
    """The configuration of staging topics."""
    return TopicConfig(
        durability=Durability.DISK,
        order=Order.TOTAL,
        ttl_ms=ttl_ms,
        idempotency_window_ms=0,
        segment_max_records=_SEGMENT_RECORDS,
        segment_max_bytes=SEGMENT_SIZE,
    )


def find_staging(catalog: TopicCatalog, partition: int = 0) -> TopicState | None:
    """The topic of a staging partition, or the shared one (0); None if nothing was ever staged there."""
    return catalog.reserved(partition_name(partition))


class Staged(NamedTuple):
    """A range of staged records: its topic, and its seqs in that topic."""

    topic: TopicState
    range: StagedRange


@dataclass(frozen=True, slots=True, eq=False)
class StagedBatches:
    """The batches of some ranges, one range after the other; all their records are live."""

    #: The ranges as requested, and as seqs of their topics, which the entries use.
    ranges: Sequence[StagedRange]
    staged: Sequence[Staged]
    entries: Entries
    #: The indexes of the entries of each range.
    numbers: list[range]

    @classmethod
    def of(
        cls, catalog: TopicCatalog, log_of: Callable[[TopicState], TopicLog], ranges: Sequence[StagedRange]
    ) -> StagedBatches:
        """Look up ranges; raises if a range is not staged, or is not whole batches."""
        _check_disjoint(ranges)
        found: list[Entries] = []
        staged: list[Staged] = []
        numbers: list[range] = []
        count = 0
        for each in ranges:
            found_range = _find_range(catalog, each)
            if found_range is None:
                raise _not_staged(each)
            entries = _whole_batches(found_range, log_of(found_range.topic), each)
            found.append(entries)
            staged.append(found_range)
            numbers.append(range(count, count + len(entries)))
            count += len(entries)
            if count > limits.TRANSACTION_BATCHES_MAX:
                raise LimitError(f"more than {limits.TRANSACTION_BATCHES_MAX} batches in a transaction: commit fewer")
        batches = cls(ranges, staged, join_entries(found), numbers)
        if batches.size > limits.TRANSACTION_SIZE_MAX:
            raise LimitError(f"{batches.size} bytes in a transaction, at most {limits.TRANSACTION_SIZE_MAX}")
        return batches

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.entries)

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return int(self.entries["length"].sum(dtype=np.int64))


def plain_size(staged: Sequence[Staged], cleaner: LogCleaner) -> int:
    """Plain bytes of staged ranges, looked up once for each topic: there may be thousands of ranges."""
    return sum(cleaner.size_of(topic, rows) for topic, rows in _by_topic(staged))


def delete_staged(catalog: TopicCatalog, ranges: Sequence[StagedRange], cleaner: LogCleaner) -> list[DeleteRecords]:
    """The controls that delete the live records of some ranges."""
    for each in ranges:
        _check_range(each)
    staged = [found for each in ranges if (found := _find_range(catalog, each)) is not None]
    deletes = []
    for topic, rows in _by_topic(staged):
        live = DeletedSeqs(
            np.concatenate([topic.live(Seq(first), Seq(end - 1)) for first, end in rows.tolist()])
        ).ranges
        for first in range(0, len(live), limits.DELETE_RANGES_MAX):
            some = live[first : first + limits.DELETE_RANGES_MAX]
            deletes.append(DeleteRecords(topic.topic_id, DeletedSeqs(some), cleaner.size_of(topic, some)))
    return deletes


def _find_range(catalog: TopicCatalog, each: StagedRange) -> Staged | None:
    """The staging topic of a range and the seqs there; None if there is no such topic."""
    _check_range(each)
    partition = each.first_seq // PARTITION_SEQS
    topic = find_staging(catalog, partition)
    base = partition * PARTITION_SEQS
    return None if topic is None else Staged(topic, StagedRange(Seq(each.first_seq - base), Seq(each.last_seq - base)))


def _by_topic(staged: Sequence[Staged]) -> Iterator[tuple[TopicState, Ranges]]:
    """The topics of some ranges, each with rising rows of the first seq and the seq after the last."""
    found: dict[TopicId, list[Staged]] = {}
    for each in staged:
        found.setdefault(each.topic.topic_id, []).append(each)
    for of_topic in found.values():
        rows: Ranges = np.array(sorted(each.range for each in of_topic), np.int64)
        rows[:, 1] += 1
        yield of_topic[0].topic, rows


def _whole_batches(staged: Staged, log: TopicLog, requested: StagedRange) -> Entries:
    """The entries of the batches of a range; raises if it is not staged as whole batches."""
    each = staged.range
    first, end = each.first_seq, each.last_seq + 1
    if staged.topic.live(*each).tolist() != [[first, end]]:
        raise _not_staged(requested)
    entries = log.entries_between(*each)
    starts = entries["base_seq"].astype(np.int64)
    ends = starts + entries["count"]
    if not len(entries) or not np.array_equal(starts[1:], ends[:-1]):
        raise _not_staged(requested)
    if (starts[0], ends[-1]) != (first, end):
        raise InvalidInputError(
            f"staged seqs {first} to {each.last_seq} cut a batch in two: it holds {starts[0]} to {ends[-1] - 1}"
        )
    return entries


def _check_range(each: StagedRange) -> None:
    is_one_partition = each.first_seq // PARTITION_SEQS == each.last_seq // PARTITION_SEQS
    if not 1 <= each.first_seq <= each.last_seq < _SEQ_LIMIT or not is_one_partition:
        raise InvalidInputError(f"staged seqs {each.first_seq} to {each.last_seq} are not a valid range")


def _check_disjoint(ranges: Sequence[StagedRange]) -> None:
    if len(ranges) > limits.TRANSACTION_BATCHES_MAX:
        raise LimitError(f"{len(ranges)} ranges in a transaction, at most {limits.TRANSACTION_BATCHES_MAX}")
    last_seq = 0
    for each in sorted(ranges):
        _check_range(each)
        if each.first_seq <= last_seq:
            raise InvalidInputError(f"staged seq {each.first_seq} is in two ranges of a transaction")
        last_seq = each.last_seq


def _not_staged(each: StagedRange) -> NotFoundError:
    return NotFoundError(
        f"not all of the seqs {each.first_seq} to {each.last_seq} are staged: they were committed or aborted, are too "
        "old, or were lost; stage the records again"
    )
