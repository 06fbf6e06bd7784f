"""The index of client rows: kernel and twin on the same arrays, in tables with many collisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.admission import client_index
from seawall.kernels.runtime import jit, tables
from twins.admission import client_index as twin

EXAMPLES = 30 if jit.PYTHON_MODE else 100
SLOTS = 16
ROWS = SLOTS * 3 // 4


def colliding_ids(count: int) -> list[int]:
    """Client ids whose home is one of three slots at the end of a table, so that their runs wrap around."""
    wanted = {SLOTS - 2, SLOTS - 1, 0}
    ids = (number for number in range(1, 1 << 16) if tables.home_slot(np.uint64(number), SLOTS) in wanted)
    return [next(ids) for _ in range(count)]


def same_tag(client_id: int) -> int:
    """Another client that has the same home and the same tag."""
    home, tag = tables.home_slot(np.uint64(client_id), SLOTS), client_index.tag_of(np.uint64(client_id))
    others = (
        number
        for number in range(client_id + 1, 1 << 20)
        if tables.home_slot(np.uint64(number), SLOTS) == home and client_index.tag_of(np.uint64(number)) == tag
    )
    return next(others)


class Clients:
    """A table with its rows, twice: one for the kernel, one for its twin."""

    def __init__(self) -> None:
        self.rows = np.zeros((ROWS, 8), np.uint64)
        self.ours, self.theirs = np.zeros((2, SLOTS), np.uint32)
        self.free = list(range(ROWS))

    def add(self, client_id: int) -> int:
        row = self.free.pop()
        self.rows[row, client_index.CLIENT_ID] = client_id
        client_index.add_row(self.ours, np.uint64(client_id), row)
        twin.add_row(self.theirs, client_id, row)
        assert self.ours.tolist() == self.theirs.tolist()
        return row

    def remove(self, row: int) -> None:
        client_index.remove_row(self.ours, self.rows, row)
        twin.remove_row(self.theirs, self.rows, row)
        assert self.ours.tolist() == self.theirs.tolist()
        self.rows[row] = 0
        self.free.append(row)

    def find(self, client_id: int) -> int:
        row = client_index.find_row(self.ours, self.rows, np.uint64(client_id))
        assert row == twin.find_row(self.theirs, self.rows, client_id)
        guess = client_index.guess_row(self.ours, np.uint64(client_id))
        assert guess == twin.guess_row(self.theirs, client_id)
        assert row in (tables.ABSENT, guess) or guess != tables.ABSENT
        return row


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(0, ROWS + 3), max_size=60))
def test_clients_are_found_at_their_rows_while_others_are_added_and_removed(choices: list[int]) -> None:
    ids = colliding_ids(ROWS + 4)
    table, expected = Clients(), dict[int, int]()
    for choice in choices:
        client_id = ids[choice]
        if client_id in expected:
            table.remove(expected.pop(client_id))
        elif len(expected) < ROWS:
            expected[client_id] = table.add(client_id)
        for each in ids:
            assert table.find(each) == expected.get(each, tables.ABSENT)


def test_a_shared_tag_gives_a_wrong_guess_but_never_a_wrong_row() -> None:
    first = 1000
    second = same_tag(first)
    table = Clients()
    row = table.add(first)
    assert client_index.guess_row(table.ours, np.uint64(second)) == row
    assert table.find(second) == tables.ABSENT
    other = table.add(second)
    assert (table.find(first), table.find(second)) == (row, other)
    table.remove(row)
    assert (table.find(first), table.find(second)) == (tables.ABSENT, other)


@pytest.mark.parametrize("client_id", [0, 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1])
def test_tags_equal_their_twin(client_id: int) -> None:
    assert client_index.tag_of(np.uint64(client_id)) == twin.tag_of(client_id)


def test_tags_of_clients_with_one_home_slot_differ() -> None:
    ids = [number for number in range(1, 1 << 14) if tables.home_slot(np.uint64(number), SLOTS) == 3]
    tags = {client_index.tag_of(np.uint64(number)) for number in ids}
    assert len(tags) > 200
