"""Sets of seqs as ranges, and loss ranges, against plain sets."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import Seq
from seawall.errors import InvariantError
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.topics.gaps import Gap, Losses
from seawall.topics.ranges import SeqRanges
from seawall.wire.format.codes import GapReason

HIGHEST = 40
ranges = st.tuples(st.integers(1, HIGHEST), st.integers(1, HIGHEST)).map(lambda pair: (min(pair), max(pair)))
steps = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "drop"]), ranges), max_size=12)


def seqs_of(first: int, last: int) -> set[int]:
    return set(range(first, last + 1))


@given(steps, ranges)
def test_ranges_behave_like_a_set(changes: list, asked: tuple[int, int]) -> None:
    found, model = SeqRanges(), set()
    for kind, (first, last) in changes:
        if kind == "add":
            found.add(Seq(first), Seq(last))
            model |= seqs_of(first, last)
        else:
            found.drop_below(Seq(first))
            model = {seq for seq in model if seq >= first}
    pairs = list(found)
    assert set().union(*(seqs_of(*pair) for pair in pairs)) == model
    assert all(left[1] + 1 < right[0] for left, right in pairwise(pairs))
    assert len(found) == len(pairs)
    assert list(SeqRanges(pairs)) == pairs
    for seq in range(1, HIGHEST + 2):
        assert found.first_outside(Seq(seq)) == next(each for each in range(seq, HIGHEST + 3) if each not in model)
    first, last = asked
    outside = list(found.outside(Seq(first), Seq(last)))
    assert set().union(*(seqs_of(*pair) for pair in outside)) == seqs_of(first, last) - model


@given(st.lists(ranges, max_size=10), st.lists(ranges, max_size=10), ranges)
def test_adding_many_ranges_equals_adding_them_one_by_one(old: list, new: list, asked: tuple[int, int]) -> None:
    one_by_one, at_once = SeqRanges(old), SeqRanges(old)
    for first, last in new:
        one_by_one.add(Seq(first), Seq(last))
    at_once.update(DeletedSeqs(np.array([(first, last + 1) for first, last in new], np.int64).reshape(-1, 2)))
    assert list(at_once) == list(one_by_one)
    touching = [(first, last) for first, last in at_once if first <= asked[1] and last >= asked[0]]
    inside = at_once.inside(Seq(asked[0]), Seq(asked[1]))
    assert [(first, end - 1) for first, end in inside.ranges.tolist()] == touching


def test_the_largest_seq_fits() -> None:
    found = SeqRanges([(2**64 - 1, 2**64 - 1), (1, 1)])
    assert found.first_outside(Seq(2**64 - 1)) == 2**64
    assert found.first_outside(Seq(2**64 - 2)) == 2**64 - 2


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(InvariantError, match="INV-LIVE-EXACT"):
        SeqRanges().add(Seq(5), Seq(4))
    with pytest.raises(InvariantError, match="INV-LIVE-EXACT"):
        Losses().add(Gap(Seq(5), Seq(4), GapReason.CRASH))


@given(
    st.lists(st.tuples(ranges, st.sampled_from([GapReason.CRASH, GapReason.CORRUPTION])), max_size=10),
    st.integers(1, HIGHEST),
    ranges,
)
def test_a_seq_keeps_the_first_reason_of_its_loss(lost: list, below: int, asked: tuple[int, int]) -> None:
    losses, model = Losses(), {}
    for (first, last), reason in lost:
        losses.add(Gap(Seq(first), Seq(last), reason))
        for seq in seqs_of(first, last):
            model.setdefault(seq, reason)
    losses.drop_below(Seq(below))
    model = {seq: reason for seq, reason in model.items() if seq >= below}
    gaps = list(losses)
    assert {seq: gap.reason for gap in gaps for seq in seqs_of(gap.first_seq, gap.last_seq)} == model
    for left, right in pairwise(gaps):
        assert left.last_seq < right.first_seq
        assert left.last_seq + 1 < right.first_seq or left.reason is not right.reason
    for seq in range(1, HIGHEST + 2):
        assert losses.first_outside(Seq(seq)) == next(each for each in range(seq, HIGHEST + 3) if each not in model)
    first, last = asked
    inside = {seq for gap in losses.inside(Seq(first), Seq(last)) for seq in seqs_of(gap.first_seq, gap.last_seq)}
    outside = {seq for pair in losses.outside(Seq(first), Seq(last)) for seq in seqs_of(*pair)}
    assert inside == seqs_of(first, last) & model.keys()
    assert outside == seqs_of(first, last) - model.keys()


def test_a_gap_outside_a_range_is_not_reported() -> None:
    gap = Gap(Seq(5), Seq(9), GapReason.CRASH)
    assert gap.clipped(Seq(10), Seq(20)) is None
    assert gap.clipped(Seq(9), Seq(20)) == Gap(Seq(9), Seq(9), GapReason.CRASH)
