"""The tag index against a plain list of records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import Seq
from seawall.errors import InvariantError
from seawall.storage.control_documents import MatchKind, TagMatch
from seawall.topics.tags import TagIndex

tags = st.sampled_from([None, b"", b"a", b"ab", b"abc", b"b", "é".encode(), b"\xff"])
matches = st.builds(TagMatch, st.sampled_from(MatchKind), st.sampled_from(["", "a", "ab", "b", "é", "zz"]))
steps = st.lists(st.lists(tags, max_size=6) | st.tuples(matches, st.integers(1, 60)), max_size=15)


@given(steps)
def test_what_is_taken_is_what_matches(changes: list) -> None:
    index, model, next_seq = TagIndex(), {}, 1
    for change in changes:
        if isinstance(change, list):
            index.add_batch(Seq(next_seq), change)
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
        assert index.take(match, Seq(below)) == expected
        for seq in expected:
            del model[seq]
    assert len(index) == len(model)
    assert index.tag_count == len(set(model.values()))


def test_seqs_of_a_tag_rise() -> None:
    index = TagIndex()
    index.add(b"a", [])
    assert index.tag_count == 0
    index.add(b"a", [Seq(5), Seq(6)])
    with pytest.raises(InvariantError, match="INV-TAGS-RISING"):
        index.add(b"a", [Seq(6)])


def test_old_seqs_are_swept_when_that_is_worth_it() -> None:
    index = TagIndex()
    index.add(b"old", [Seq(seq) for seq in range(1, 3001)])
    index.add(b"both", [Seq(seq) for seq in range(3001, 5001)])
    index.drop_below(Seq(1000))
    assert len(index) == 5000, "too few to walk over all tags"
    index.drop_below(Seq(4001))
    assert (len(index), index.tag_count) == (1000, 1)
    index.drop_below(Seq(4500))
    assert len(index) == 1000, "the swept ones do not count again"
    assert index.take(TagMatch(MatchKind.PREFIX, ""), Seq(4003)) == [4001, 4002]
