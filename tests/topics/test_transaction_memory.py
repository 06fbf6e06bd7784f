"""Remembered transactions: the last one of each owner, for a bounded number of owners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seawall import limits
from seawall.core.transactions import CommittedTransaction, StagedRange, TopicSpan, joined
from seawall.core.types import Position
from seawall.errors import CorruptionError, FencedError
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.topics.catalog import TopicCatalog
from seawall.topics.persistence import catalog_sections, load_catalog
from seawall.topics.transactions import TransactionMemory
from seawall.wire.format.fields import write_json


def committed(owner: str = "job", epoch: int = 7, position: int = 3) -> CommittedTransaction:
    return CommittedTransaction(owner, epoch, position, 99, (TopicSpan("a", 5, 2), TopicSpan("b", 1, 1)))


def test_the_last_transaction_of_an_owner_is_repeated_and_older_ones_are_refused() -> None:
    memory = TransactionMemory()
    assert memory.repeated("job", 7) is None
    memory.remember(committed())
    again = memory.repeated("job", 7)
    assert again == committed()
    assert again is not None
    assert again.is_repeated
    assert memory.repeated("job", 8) is None
    with pytest.raises(FencedError, match="comes too late: 7 was committed at position 3"):
        memory.repeated("job", 6)
    assert memory.last("job") == committed()
    assert memory.last("other") is None


def test_an_owner_epoch_never_decreases() -> None:
    memory = TransactionMemory()
    memory.remember(committed(epoch=9))
    memory.remember(committed(epoch=8, position=4))
    last = memory.last("job")
    assert last is not None
    assert last.epoch == 9


def test_the_owner_with_the_oldest_commit_is_dropped() -> None:
    memory = TransactionMemory()
    others = [f"other-{number}" for number in range(limits.TRANSACTION_OWNERS_MAX - 2)]
    for owner in ("a", "b", *others, "a", "c"):
        memory.remember(committed(owner))
    assert [each.owner for each in memory] == [*others, "a", "c"]
    assert len(memory) == limits.TRANSACTION_OWNERS_MAX


def test_a_snapshot_keeps_transactions_in_order() -> None:
    catalog = TopicCatalog()
    for owner in ("b", "a"):
        catalog.transactions.remember(committed(owner))
    loaded = load_catalog(Snapshot(Position(9), 0, 0, catalog_sections(catalog)))
    assert list(loaded.transactions) == [committed("b"), committed("a")]
    older = {kind: data for kind, data in catalog_sections(catalog).items() if kind is not SectionKind.TRANSACTIONS}
    assert not len(load_catalog(Snapshot(Position(9), 0, 0, older)).transactions)


@pytest.mark.parametrize("row", [7, ["job", 1], ["job", 1, 2, 3, [["a", 1]]], ["", 1, 2, 3, []], ["job", -1, 2, 3, []]])
def test_a_malformed_transaction_in_a_snapshot_is_corruption(row: object) -> None:
    sections = catalog_sections(TopicCatalog())
    sections[SectionKind.TRANSACTIONS] = write_json({"transactions": [row]})
    with pytest.raises(CorruptionError):
        load_catalog(Snapshot(Position(9), 0, 0, sections))


def test_spans_are_found_by_topic_and_adjacent_ranges_are_joined() -> None:
    assert committed().span("a") == TopicSpan("a", 5, 2)
    assert committed().span("z") is None
    assert committed().spans[0].seqs == range(5, 7)
    assert replace(committed(), is_repeated=True) == committed()
    ranges = [StagedRange(1, 3), StagedRange(4, 4), StagedRange(9, 9), StagedRange(5, 6)]
    assert joined(ranges) == [StagedRange(1, 4), StagedRange(9, 9), StagedRange(5, 6)]
    assert StagedRange(1, 4).record_count == 4
