"""Damaged bytes in every kind of file: no wrong data is returned, and the rest stays readable.

A flipped bit may cost one batch (in the WAL also the rest of its epoch), always reported as a gap. A WAL whose last
file has lost its preface does not open, because the numbers it used are unknown. The tests damage a sample of the
bytes; `python tests/crash/run.py --damage` damages every byte.
"""

from __future__ import annotations

import pytest
from crash_damage import (
    Contents,
    check_index,
    check_log,
    check_sealed,
    cost_of,
    damaged,
    every_byte,
    lost_by,
    opened,
    original,
    publish,
)
from crash_history import read_values

from seawall.storage.preface import DATA_START
from seawall.testing import SimDisk
from seawall.topics.config import TopicConfig


def test_the_undamaged_directory_has_every_kind_of_file() -> None:
    assert not lost_by(original().disk.photo())
    assert len(original().files(".sealed")) >= 3
    assert len(original().files(".meta")) == 1
    assert len(original().files("/wal/")) == 1


def test_a_damaged_sealed_segment_costs_at_most_one_batch() -> None:
    for path, byte in every_byte(".sealed", zeros=401, content=7):
        check_sealed(path, byte)


def test_a_damaged_index_costs_nothing() -> None:
    for path, byte in every_byte(".index", zeros=401, content=7):
        check_index(path, byte)


def test_a_damaged_snapshot_costs_nothing_while_the_wal_exists() -> None:
    for path, byte in every_byte(".meta", zeros=401, content=31):
        check_index(path, byte)


def test_damage_of_the_wal_costs_at_most_an_epoch() -> None:
    for path, byte in every_byte("/wal/", zeros=401, content=61):
        check_log(path, byte)


def test_a_wal_without_its_preface_is_refused() -> None:
    assert cost_of(original().files("/wal/")[0], 8).is_refused


def test_a_lost_create_hides_a_topic_and_its_id_is_not_reused() -> None:
    disk = SimDisk(seed=3)
    store = opened(disk)
    contents: Contents = {}
    store.create_topic("lost", TopicConfig(segment_max_records=2))
    at = store.parts.wal.at
    for number in range(6):
        publish(store, contents, "lost", [b"old-%d" % number])
    store.close()
    disk.flip_bit("/data/wal/wal-00000000000000000000.wal", DATA_START + at - 100, 0)
    store = opened(disk)
    assert store.catalog.names() == []
    store.create_topic("next", TopicConfig())
    publish(store, contents, "next", [b"new"])
    store.close()
    store = opened(disk)
    assert read_values(store, "next")[0] == {1: b"new"}
    assert disk.list("/data/topics/00000001")
    store.close()


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_missing_segment_is_reported_as_a_gap(name: str) -> None:
    topic = {"one": "00000001", "two": "00000002"}[name]
    disk = original().disk.photo()
    disk.unlink(original().files(f"/topics/{topic}/00000000000000000001-")[0])
    assert lost_by(disk) == {(name, seq) for seq in range(1, 5)}


def test_damage_is_reported_once() -> None:
    """The first open accounts for the damage; the next one finds a clean end and continues with the same seq."""
    path = original().files("/wal/")[0]
    disk = damaged(path, len(original().data(path).rstrip(b"\0")) - 200)
    store = opened(disk)
    next_seq = store.catalog.named("one").next_seq
    store.close()
    store = opened(disk)
    assert store.catalog.named("one").next_seq == next_seq
    store.close()
