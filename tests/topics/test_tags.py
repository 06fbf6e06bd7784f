"""The tag index against a plain list of records."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import Seq
from seawall.errors import InvariantError
from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.topics.tags import TagIndex

tags = st.sampled_from([None, b"", b"a", b"ab", b"abc", b"b", "é".encode(), b"\xff"])
matches = st.builds(TagMatch, st.sampled_from(MatchKind), st.sampled_from(["", "a", "ab", "b", "é", "zz"]))
steps = st.lists(st.lists(tags, max_size=6) | st.tuples(matches, st.integers(1, 60)), max_size=15)


def add_batch(index: TagIndex, base_seq: int, each: list[bytes | None]) -> None:
    """The records of one batch: a tag for each, or None."""
    tagged = [(seq, tag) for seq, tag in enumerate(each, base_seq) if tag is not None]
    distinct = list({tag for _, tag in tagged})
    seqs = np.array([seq for seq, _ in tagged], np.int64)
    index.add(distinct, seqs, np.array([distinct.index(tag) for _, tag in tagged], np.int32))


def add(index: TagIndex, tag: bytes, seqs: Iterable[int]) -> None:
    numbers = np.fromiter(seqs, np.int64)
    index.add([tag], numbers, np.zeros(len(numbers), np.int32))


@given(steps)
def test_find_returns_exactly_the_matching_seqs(changes: list) -> None:
    index, model, next_seq = TagIndex(), {}, 1
    for change in changes:
        if isinstance(change, list):
            add_batch(index, next_seq, change)
            model |= {seq: tag for seq, tag in enumerate(change, next_seq) if tag is not None}
            next_seq += len(change)
            continue
        match, below = change
        text = match.text.encode()
        expected = [
            seq
            for seq, tag in model.items()
            if seq < below and (tag == text if match.kind is MatchKind.EQ else tag.startswith(text))
        ]
        assert index.find(match, Seq(below)).tolist() == expected
        index.forget(match, Seq(below))
        assert index.find(match, Seq(below)).tolist() == []
        for seq in expected:
            del model[seq]
    assert len(index) == len(model)
    assert index.tag_count == len(set(model.values()))


def test_seqs_of_a_tag_must_increase() -> None:
    index = TagIndex()
    add(index, b"a", [])
    assert index.tag_count == 0
    add(index, b"a", [5, 6])
    with pytest.raises(InvariantError, match="INV-SEQ-ONCE"):
        add(index, b"a", [6])


def test_old_seqs_are_swept_once_they_are_many() -> None:
    index = TagIndex()
    add(index, b"old", range(1, 3001))
    add(index, b"both", range(3001, 5001))
    index.drop_below(Seq(1000))
    assert len(index) == 5000, "too few to scan all tags"
    index.drop_below(Seq(4001))
    assert (len(index), index.tag_count) == (1000, 1)
    index.drop_below(Seq(4500))
    assert len(index) == 1000, "the swept ones do not count again"
    assert index.find(TagMatch(MatchKind.PREFIX, ""), Seq(4003)).tolist() == [4001, 4002]
