"""Entries that wait in the log: they rise, lose their front, and are found by their numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.engine.store.unflushed import FLUSHED, UnflushedBatches
from seawall.errors import InvariantError
from seawall.storage.wal.epochs import WalAddress


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=20), st.integers(0, 60), st.booleans())
def test_it_says_what_a_dictionary_says(steps: list[tuple[int, int]], dropped: int, is_moved: bool) -> None:
    waiting, model, entry, address = UnflushedBatches(), {}, 0, 100
    for skipped, count in steps:
        entry += skipped
        addresses = np.arange(address, address + 7 * count, 7, np.uint64)
        waiting.extend(entry, addresses)
        model.update(enumerate(addresses.tolist(), entry))
        entry, address = entry + count, address + 7 * count
    if is_moved:
        moved = UnflushedBatches([2], [50])
        moved.append(waiting, 3)
        waiting, model = moved, {2: 50} | {number + 3: at for number, at in model.items()}
    for number in sorted(model)[:dropped]:
        del model[number]
    waiting.drop(dropped)
    assert dict(zip(waiting.entries.tolist(), waiting.addresses.tolist(), strict=True)) == model
    assert len(waiting) == len(model)
    numbers = range(entry + 5)
    assert waiting.copy().addresses_of(numbers).tolist() == [model.get(number, FLUSHED) for number in numbers]


@pytest.mark.parametrize(("entry", "address"), [(4, 11), (5, 11), (6, 10), (6, 9)])
def test_it_rises(entry: int, address: int) -> None:
    waiting = UnflushedBatches([5], [10])
    with pytest.raises(InvariantError, match="INV-WAL-ORDER"):
        waiting.add(entry, WalAddress(address))
    assert len(waiting) == 1
