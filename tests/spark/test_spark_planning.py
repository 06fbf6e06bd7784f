"""Offsets of a stream, admission to a batch, and the split of ranges into tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import CorruptionError
from seawall.spark.offsets import TopicOffset, offset_of, offsets_of
from seawall.spark.options import Splitting
from seawall.spark.planning import SeqRange, admit, rows_within, split

counts = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 1_000), max_size=6)


def test_an_offset_is_that_of_the_kafka_connector_with_an_epoch() -> None:
    offsets = {"b": TopicOffset(7, 2), "a": TopicOffset(1, 9)}
    offset = offset_of(offsets)
    assert json.dumps(offset) == '{"a": {"0": 1, "epoch": 9}, "b": {"0": 7, "epoch": 2}}'
    assert offsets_of(json.loads(json.dumps(offset))) == offsets


@pytest.mark.parametrize("offset", [None, 5, {"a": 5}, {"a": {"0": 5}}, {"a": {"0": "5", "epoch": 1}}, {1: {}}])
def test_invalid_offsets_are_refused(offset: object) -> None:
    with pytest.raises(CorruptionError, match="name another checkpointLocation"):
        offsets_of(offset)


@given(waiting=counts, bound=st.integers(1, 2_000))
def test_admitted_rows_are_shared_by_the_topics(waiting: dict[str, int], bound: int) -> None:
    taken = admit(waiting, bound)
    total = sum(waiting.values())
    assert taken.keys() == waiting.keys()
    assert sum(taken.values()) == min(bound, total)
    for topic, count in taken.items():
        assert 0 <= count <= waiting[topic]
        if total > bound:
            assert abs(count - bound * waiting[topic] / total) < 1


def test_a_small_topic_is_not_starved() -> None:
    waiting = {"large": 1_000_000, "small": 3}
    for _ in range(400):
        taken = admit(waiting, 4_000)
        waiting = {topic: count - taken[topic] for topic, count in waiting.items()}
    assert waiting == {"large": 0, "small": 0}


def test_bytes_become_rows() -> None:
    waiting = {"a": 100, "b": 100}
    sizes = {"a": 10.0, "b": 30.0}
    assert rows_within(waiting, sizes, 4_000) == 200
    assert rows_within(waiting, sizes, 1_000) == 50
    assert rows_within(waiting, sizes, 1) == 1
    assert rows_within(waiting, {}, 1) == 200


@given(
    lengths=st.lists(st.integers(0, 400), max_size=5),
    min_partitions=st.integers(1, 40),
    max_records=st.none() | st.integers(1, 200),
    max_bytes=st.integers(1, 4_000),
)
def test_tasks_cover_the_ranges(
    lengths: list[int], min_partitions: int, max_records: int | None, max_bytes: int
) -> None:
    ranges = [SeqRange(f"t{n}", n, 5 + n, 5 + n + length, 10.0) for n, length in enumerate(lengths)]
    parts = split(ranges, Splitting(min_partitions, max_records, max_bytes))
    for whole in ranges:
        mine = [part for part in parts if part.topic == whole.topic]
        assert [seq for part in mine for seq in range(part.first, part.end)] == list(range(whole.first, whole.end))
        assert all(len(part) for part in mine)
        assert all(len(part) <= (max_records or 400) for part in mine)
        # Only a single record may be larger.
        assert all(len(part) * 10 < max_bytes + 10 or len(part) == 1 for part in mine)
    assert len(parts) >= min(min_partitions, sum(lengths))


def test_tasks_keep_the_attributes_of_their_range() -> None:
    whole = SeqRange("t", 3, 1, 11, 2.5, is_crash_loss=False)
    assert split([whole], Splitting(2)) == [
        SeqRange("t", 3, 1, 6, 2.5, is_crash_loss=False),
        SeqRange("t", 3, 6, 11, 2.5, is_crash_loss=False),
    ]
    assert split([], Splitting(8)) == []
