"""Where records of transactions are staged: topics that nobody else sees, and ranges of whole batches in them.

Most of what is staged, by whoever, goes to one topic of the data directory, made when it is first needed. Who stages
much asks for a berth, a topic of the same kind: berths are given out by turns, and begin a segment each time, so that
a segment of a berth mostly holds what one attempt has staged, and nothing else. Nothing depends on that but how quickly
it is committed (`adoption`).

All are of class `disk`: what a power loss takes was never promised, and its transaction is refused then. What is
committed or aborted is deleted there, so segments go by themselves; what nobody asks for any more goes by its age.

This module must not know what becomes of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from seawall import limits
from seawall.core.transactions import BERTH_SEQS, StagedRange, partition_name
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

#: How many attempts at once may have a berth alone.
BERTHS: Final = 8

#: Bytes of staged batches in one segment: some become segments of topics. Records are no measure for them: batches are
#: as large as whoever stages makes them.
SEGMENT_SIZE: Final = 256 * limits.MIB
_SEGMENT_RECORDS: Final = 1 << 40

_SEQ_LIMIT: Final = (1 << 63) - 1


def staging_config(ttl_ms: int) -> TopicConfig:
    """How the topics are made."""
    return TopicConfig(
        durability=Durability.DISK,
        order=Order.TOTAL,
        ttl_ms=ttl_ms,
        idempotency_window_ms=0,
        segment_max_records=_SEGMENT_RECORDS,
        segment_max_bytes=SEGMENT_SIZE,
    )


def find_staging(catalog: TopicCatalog, partition: int = 0) -> TopicState | None:
    """The topic of a berth, or the one that is shared, if anything was ever staged there."""
    return catalog.own(partition_name(partition))


class Staged(NamedTuple):
    """A range of staged seqs as the topic that holds it knows it."""

    topic: TopicState
    range: StagedRange


@dataclass(frozen=True, slots=True, eq=False)
class StagedBatches:
    """The batches of some ranges, one range after the other; each is live as a whole."""

    #: As they were asked for, and as their topics know them, which is what the entries say.
    ranges: Sequence[StagedRange]
    staged: Sequence[Staged]
    entries: Entries
    #: Which of the entries belong to each range.
    numbers: list[range]

    @classmethod
    def of(
        cls, catalog: TopicCatalog, log_of: Callable[[TopicState], TopicLog], ranges: Sequence[StagedRange]
    ) -> StagedBatches:
        """Look ranges up; what is not staged, or is not whole batches, is refused."""
        _check_apart(ranges)
        found: list[Entries] = []
        staged: list[Staged] = []
        numbers: list[range] = []
        count = 0
        for each in ranges:
            held = _held(catalog, each)
            if held is None:
                raise _not_staged(each)
            entries = _whole_batches(held, log_of(held.topic), each)
            found.append(entries)
            staged.append(held)
            numbers.append(range(count, count + len(entries)))
            count += len(entries)
            if count > limits.TRANSACTION_BATCHES_MAX:
                raise LimitError(f"more than {limits.TRANSACTION_BATCHES_MAX} batches in a transaction: commit fewer")
        batches = cls(ranges, staged, join_entries(found), numbers)
        if batches.size > limits.TRANSACTION_SIZE_MAX:
            raise LimitError(f"{batches.size} bytes in a transaction, at most {limits.TRANSACTION_SIZE_MAX}")
        return batches

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self.entries)

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return int(self.entries["length"].sum(dtype=np.int64))


def plain_size(staged: Sequence[Staged], cleaner: LogCleaner) -> int:
    """Plain bytes of staged ranges, looked up for all of a topic together: there may be thousands."""
    return sum(cleaner.size_of(topic, rows) for topic, rows in _by_topic(staged))


def delete_staged(catalog: TopicCatalog, ranges: Sequence[StagedRange], cleaner: LogCleaner) -> list[DeleteRecords]:
    """The controls that delete what is live of some ranges."""
    for each in ranges:
        _check_range(each)
    held = [found for each in ranges if (found := _held(catalog, each)) is not None]
    deletes = []
    for topic, rows in _by_topic(held):
        live = DeletedSeqs(
            np.concatenate([topic.live(Seq(first), Seq(end - 1)) for first, end in rows.tolist()])
        ).ranges
        for first in range(0, len(live), limits.DELETE_RANGES_MAX):
            some = live[first : first + limits.DELETE_RANGES_MAX]
            deletes.append(DeleteRecords(topic.topic_id, DeletedSeqs(some), cleaner.size_of(topic, some)))
    return deletes


def _held(catalog: TopicCatalog, each: StagedRange) -> Staged | None:
    """A range as the topic knows it that would hold it; None if there is no such topic."""
    _check_range(each)
    partition = each.first_seq // BERTH_SEQS
    topic = find_staging(catalog, partition)
    base = partition * BERTH_SEQS
    return None if topic is None else Staged(topic, StagedRange(Seq(each.first_seq - base), Seq(each.last_seq - base)))


def _by_topic(staged: Sequence[Staged]) -> Iterator[tuple[TopicState, Ranges]]:
    """The topics of some ranges, with the rows of each: the first seq, and the seq behind the last; they rise."""
    found: dict[TopicId, list[Staged]] = {}
    for each in staged:
        found.setdefault(each.topic.topic_id, []).append(each)
    for held in found.values():
        rows: Ranges = np.array(sorted(each.range for each in held), np.int64)
        rows[:, 1] += 1
        yield held[0].topic, rows


def _whole_batches(held: Staged, log: TopicLog, asked: StagedRange) -> Entries:
    """The entries of a range."""
    each = held.range
    first, end = each.first_seq, each.last_seq + 1
    if held.topic.live(*each).tolist() != [[first, end]]:
        raise _not_staged(asked)
    entries = log.entries_between(*each)
    starts = entries["base_seq"].astype(np.int64)
    ends = starts + entries["count"]
    if not len(entries) or not np.array_equal(starts[1:], ends[:-1]):
        raise _not_staged(asked)
    if (starts[0], ends[-1]) != (first, end):
        raise InvalidInputError(
            f"staged seqs {first} to {each.last_seq} cut a batch in two: it holds {starts[0]} to {ends[-1] - 1}"
        )
    return entries


def _check_range(each: StagedRange) -> None:
    is_one_berth = each.first_seq // BERTH_SEQS == each.last_seq // BERTH_SEQS
    if not 1 <= each.first_seq <= each.last_seq < _SEQ_LIMIT or not is_one_berth:
        raise InvalidInputError(f"staged seqs {each.first_seq} to {each.last_seq} are no range")


def _check_apart(ranges: Sequence[StagedRange]) -> None:
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
