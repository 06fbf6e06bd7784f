"""Names of segment files: one spelling each, and every other name is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.storage.segments.names import (
    FileRole,
    SealedName,
    active_name,
    deletes_name,
    index_name,
    parse_name,
    sort_names,
    topic_directory_name,
)

SEQS = st.integers(0, 2**64 - 1)
NANOSECONDS = st.integers(0, 2**64 - 1)


@given(SEQS)
def test_names_of_one_seq_round_trip(seq: int) -> None:
    assert parse_name(active_name(seq)) == (FileRole.ACTIVE, seq)
    assert parse_name(index_name(seq)) == (FileRole.INDEX, seq)
    assert parse_name(deletes_name(seq)) == (FileRole.DELETES, seq)


@given(SEQS, SEQS, NANOSECONDS, NANOSECONDS)
def test_sealed_names_round_trip_and_sort_by_seq(one: int, other: int, start: int, end: int) -> None:
    first_seq, last_seq = sorted((one, other))
    first_ns, last_ns = sorted((start, end))
    name = SealedName.covering(first_seq, last_seq, first_ns, last_ns)
    assert parse_name(str(name)) == name
    assert name.first_ms == first_ns // 1_000_000
    later = SealedName.covering(last_seq, last_seq, 0, 0)
    if first_seq < last_seq:
        assert name < later
        assert str(name) < str(later)


def test_the_spelling_is_the_documented_one() -> None:
    assert active_name(7) == "00000000000000000007.active"
    assert index_name(7) == "00000000000000000007.index"
    assert deletes_name(2**64 - 1) == "18446744073709551615.deletes"
    name = SealedName.covering(1, 20, 1_700_000_000_000_000_000, 1_700_000_000_999_999_999)
    assert str(name) == "00000000000000000001-00000000000000000020-1700000000000-1700000000999.sealed"
    assert topic_directory_name(0x1F) == "0000001f"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "7.active",
        "00000000000000000007.Active",
        "00000000000000000007.active ",
        "00000000000000000007.active\n",
        "00000000000000000007.sealed",
        "00000000000000000007",
        "0000000000000000000x.index",
        "000000000000000000007.index",
        "\u06600000000000000000007.index",
        "18446744073709551616.active",
        "-0000000000000000007.active",
        "00000000000000000002-00000000000000000001-0000000000000-0000000000000.sealed",
        "00000000000000000001-00000000000000000002-0000000000002-0000000000001.sealed",
        "00000000000000000001-00000000000000000002-00000000000001-0000000000001.sealed",
        "00000000000000000001-00000000000000000002-000000000000-0000000000001.sealed",
        "00000000000000000001-18446744073709551616-0000000000001-0000000000001.sealed",
        "00000000000000000001-00000000000000000002-0000000000001-0000000000001.active",
    ],
)
def test_other_names_are_unknown(name: str) -> None:
    assert parse_name(name) is None
    assert sort_names([name]).unknown == (name,)


@pytest.mark.parametrize("seq", [-1, 2**64])
def test_an_invalid_seq_is_refused(seq: int) -> None:
    for name in (active_name, index_name, deletes_name):
        with pytest.raises(InvalidInputError, match="no seq"):
            name(seq)


@pytest.mark.parametrize("numbers", [(-1, 0, 0, 0), (2, 1, 0, 0), (0, 2**64, 0, 0), (1, 1, 2, 1), (1, 1, 1, 10**14)])
def test_an_invalid_sealed_name_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidInputError, match="no segment covers"):
        SealedName(*numbers)


def test_a_listing_is_classified_and_sorted() -> None:
    sealed = [SealedName.covering(seq, seq + 9, 0, 0) for seq in (1, 11)]
    names = [
        *(str(each) for each in reversed(sealed)),
        *(active_name(21), index_name(11), index_name(1), deletes_name(11)),
        *(index_name(1) + ".replacing", deletes_name(5) + ".replacing"),
        *(active_name(1) + ".replacing", str(sealed[0]) + ".replacing", "notes.txt", "x.replacing", ".replacing"),
    ]
    found = sort_names(names)
    assert found.active == (21,)
    assert found.sealed == tuple(sealed)
    assert found.indexes == (1, 11)
    assert found.deletes == (11,)
    assert found.debris == (index_name(1) + ".replacing", deletes_name(5) + ".replacing")
    assert sorted(found.unknown) == sorted(names[-5:])
