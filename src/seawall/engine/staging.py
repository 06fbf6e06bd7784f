"""Where transactions are staged: one topic that nobody else sees, and ranges of whole batches in it.

Everything that is staged, by whoever, goes to one topic of the data directory, made when it is first needed. It is of
class `disk`: what a power loss takes from it was never promised, and its transaction is refused then. What is committed
or aborted is deleted there, so segments go by themselves; what nobody asks for any more goes by its age.

This module must not know what becomes of the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from seawall import limits
from seawall.core.transactions import StagedRange
from seawall.engine.topic_log import TopicLog
from seawall.errors import InvalidInputError, LimitError, NotFoundError
from seawall.storage.batch_index import Entries, join_entries
from seawall.storage.control_deletes import DeleteRecords
from seawall.storage.delete_sidecar import DeletedSeqs
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Durability, Order, TopicConfig
from seawall.topics.state import TopicState

if TYPE_CHECKING:
    from seawall.engine.removal import Removal

#: Its name, which nobody else can create.
STAGING_TOPIC: Final = "_staging"

#: Records are no measure for its segments: batches are as large as whoever stages makes them.
_SEGMENT_RECORDS: Final = 1 << 40

_SEQ_LIMIT: Final = (1 << 63) - 1


def staging_config(ttl_ms: int) -> TopicConfig:
    """How the topic is made."""
    return TopicConfig(
        durability=Durability.DISK,
        order=Order.TOTAL,
        ttl_ms=ttl_ms,
        idempotency_window_ms=0,
        segment_max_records=_SEGMENT_RECORDS,
    )


def find_staging(catalog: TopicCatalog) -> TopicState | None:
    """The topic, if anything was ever staged."""
    return catalog.own(STAGING_TOPIC)


@dataclass(frozen=True, slots=True, eq=False)
class StagedBatches:
    """The batches of some ranges, one range after the other; each is live as a whole."""

    ranges: Sequence[StagedRange]
    entries: Entries
    #: Which of the entries belong to each range.
    numbers: list[range]

    @classmethod
    def of(cls, topic: TopicState | None, log: TopicLog | None, ranges: Sequence[StagedRange]) -> StagedBatches:
        """Look ranges up; what is not staged, or is not whole batches, is refused."""
        _check_apart(ranges)
        found: list[Entries] = []
        numbers: list[range] = []
        count = 0
        for each in ranges:
            if topic is None or log is None:
                raise _not_staged(each)
            entries = _whole_batches(topic, log, each)
            found.append(entries)
            numbers.append(range(count, count + len(entries)))
            count += len(entries)
            if count > limits.TRANSACTION_BATCHES_MAX:
                raise LimitError(f"more than {limits.TRANSACTION_BATCHES_MAX} batches in a transaction: commit fewer")
        batches = cls(ranges, join_entries(found), numbers)
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


def delete_staged(topic: TopicState, ranges: Sequence[StagedRange], removal: Removal) -> list[DeleteRecords]:
    """The controls that delete what is live of some ranges."""
    found = [_rows_of(topic, each) for each in ranges]
    live = DeletedSeqs(np.concatenate([np.zeros((0, 2), np.int64), *found])).ranges
    deletes = []
    for first in range(0, len(live), limits.DELETE_RANGES_MAX):
        rows = live[first : first + limits.DELETE_RANGES_MAX]
        deletes.append(DeleteRecords(topic.topic_id, DeletedSeqs(rows), removal.size_of(topic, rows)))
    return deletes


def _rows_of(topic: TopicState, each: StagedRange) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    _check_range(each)
    return topic.live(each.first_seq, each.last_seq)


def _whole_batches(topic: TopicState, log: TopicLog, each: StagedRange) -> Entries:
    """The entries of a range."""
    first, end = each.first_seq, each.last_seq + 1
    if topic.live(*each).tolist() != [[first, end]]:
        raise _not_staged(each)
    entries = log.entries_between(*each)
    starts = entries["base_seq"].astype(np.int64)
    ends = starts + entries["count"]
    if not len(entries) or not np.array_equal(starts[1:], ends[:-1]):
        raise _not_staged(each)
    if (starts[0], ends[-1]) != (first, end):
        raise InvalidInputError(
            f"staged seqs {first} to {each.last_seq} cut a batch in two: it holds {starts[0]} to {ends[-1] - 1}"
        )
    return entries


def _check_range(each: StagedRange) -> None:
    if not 1 <= each.first_seq <= each.last_seq < _SEQ_LIMIT:
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
