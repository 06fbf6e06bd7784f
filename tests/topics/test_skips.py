"""Skipped client seqs of an order: kept by position, bounded, and restored by a snapshot."""

from __future__ import annotations

import pytest

from seawall.errors import CorruptionError, InvariantError
from seawall.storage.control.batches import UnpositionedControl
from seawall.storage.control.codec import Ceiling
from seawall.storage.control.documents import TopicCreate
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.persistence import catalog_sections, load_catalog
from seawall.topics.skips import Skip, Skips
from seawall.wire.format.codes import AckStatus


def catalog_with_topic() -> TopicCatalog:
    catalog = TopicCatalog()
    catalog.apply(TopicCreate(1, "t", 1, TopicConfig().to_json()), 0)
    return catalog


def test_skips_are_found_by_position() -> None:
    skips = Skips()
    for position in (3, 9, 12):
        skips.add(Skip(position, 7, position, 1))
    assert [skip.position for skip in skips.between(3, 12)] == [3, 9]
    assert [skip.position for skip in skips.between(4, 99)] == [9, 12]
    assert skips.between(13, 99) == []
    with pytest.raises(InvariantError, match="INV-WAL-ORDER"):
        skips.add(Skip(12, 7, 1, 1))


def test_the_oldest_skips_are_dropped_and_their_bound_is_known() -> None:
    skips = Skips(kept_max=4)
    for position in range(10, 16):
        skips.add(Skip(position, 7, position, 1))
    assert len(skips) == 4
    assert [skip.position for skip in skips] == [12, 13, 14, 15]
    assert skips.forgotten_below == 12


def test_a_logged_skip_is_kept_by_its_topic_and_its_snapshot() -> None:
    catalog = catalog_with_topic()
    assert catalog.apply(OrderSkip(1, 7, 4, 2), 1)
    assert not catalog.apply(OrderSkip(0, 7, 9, 1), 2)
    assert catalog.apply(OrderNop(1, AckStatus.RETRY, 0, 7, 4, 0), 3)
    assert catalog.next_position == 4
    topic = catalog.named("t")
    assert list(topic.skips) == [Skip(1, 7, 4, 2)]
    topic.skips.forgotten_below = 1
    loaded = load_catalog(Snapshot(4, 0, 0, catalog_sections(catalog))).named("t")
    assert (list(loaded.skips), loaded.skips.forgotten_below) == ([Skip(1, 7, 4, 2)], 1)


def test_truncated_skips_and_skips_of_no_topic_are_corruption() -> None:
    sections = catalog_sections(catalog_with_topic())
    for data in (b"x", bytes(32)):
        with pytest.raises(CorruptionError):
            load_catalog(Snapshot(1, 0, 0, sections | {SectionKind.SKIPS: data}))


def test_an_unpositioned_control_is_applied_without_a_position() -> None:
    catalog = catalog_with_topic()
    assert catalog.apply(UnpositionedControl((Ceiling(1, 50, 1),)), 1)
    assert (catalog.next_position, catalog.named("t").ceiling) == (1, 50)
    assert not catalog.apply(UnpositionedControl((Ceiling(1, 90, 50),)), 0)
    assert catalog.named("t").ceiling == 50
