"""Unflushed batches of a segment: entries rise, are dropped from the front, and are found by number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.engine.store.unflushed import FLUSHED, UnflushedBatches
from seawall.errors import InvariantError
from seawall.storage.wal.epochs import WalAddress


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=20), st.integers(0, 60), st.booleans())
def test_unflushed_batches_match_a_dictionary(steps: list[tuple[int, int]], dropped: int, is_moved: bool) -> None:
    unflushed, model, entry, address = UnflushedBatches(), {}, 0, 100
    for skipped, count in steps:
        entry += skipped
        addresses = np.arange(address, address + 7 * count, 7, np.uint64)
        unflushed.extend(entry, addresses)
        model.update(enumerate(addresses.tolist(), entry))
        entry, address = entry + count, address + 7 * count
    if is_moved:
        moved = UnflushedBatches([2], [50])
        moved.append(unflushed, 3)
        unflushed, model = moved, {2: 50} | {number + 3: at for number, at in model.items()}
    for number in sorted(model)[:dropped]:
        del model[number]
    unflushed.drop(dropped)
    assert dict(zip(unflushed.entries.tolist(), unflushed.addresses.tolist(), strict=True)) == model
    assert len(unflushed) == len(model)
    numbers = range(entry + 5)
    assert unflushed.copy().addresses_of(numbers).tolist() == [model.get(number, FLUSHED) for number in numbers]


@pytest.mark.parametrize(("entry", "address"), [(4, 11), (5, 11), (6, 10), (6, 9)])
def test_entries_and_addresses_must_rise(entry: int, address: int) -> None:
    unflushed = UnflushedBatches([5], [10])
    with pytest.raises(InvariantError, match="INV-WAL-ORDER"):
        unflushed.add(entry, WalAddress(address))
    assert len(unflushed) == 1
