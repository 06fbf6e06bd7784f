"""Checkpoints in the fabric: two slots, written alternately; one is valid whatever happens to the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from seawall.errors import InvalidInputError, LimitError
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint, write_checkpoint
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.fabric.records import CHECKPOINT_HEADER
from seawall.wire.format.frames import checksum


@pytest.fixture
def arrays(sizes: FabricSizes) -> FabricArrays:
    layout = FabricLayout.of(sizes)
    return FabricArrays(memoryview(bytearray(layout.size)), layout)


def checkpoint(generation: int, clients: int = 3, topics: int = 2) -> Checkpoint:
    rows = np.random.default_rng(generation).integers(0, 256, (clients + topics) * 64, np.uint8)
    return Checkpoint(generation, generation * 100, 7, 5, rows[: clients * 64], rows[clients * 64 :])


def same(found: Checkpoint | None, written: Checkpoint) -> bool:
    assert found is not None
    return all(
        np.array_equal(getattr(found, each.name), getattr(written, each.name)) for each in dataclasses.fields(found)
    )


def test_slots_are_written_alternately(arrays: FabricArrays) -> None:
    assert newest_checkpoint(arrays) is None
    for generation in range(1, 6):
        write_checkpoint(arrays, checkpoint(generation, clients=generation))
        assert same(newest_checkpoint(arrays), checkpoint(generation, clients=generation))
        assert same(read_checkpoint(arrays, generation % 2), checkpoint(generation, clients=generation))
        if generation > 1:
            assert same(
                read_checkpoint(arrays, (generation - 1) % 2), checkpoint(generation - 1, clients=generation - 1)
            )


def test_a_checkpoint_is_returned_as_a_copy(arrays: FabricArrays) -> None:
    write_checkpoint(arrays, checkpoint(1))
    found = newest_checkpoint(arrays)
    arrays.checkpoints[1][:] = 0
    assert same(found, checkpoint(1))


def test_a_flipped_bit_is_detected_and_the_other_slot_is_used(arrays: FabricArrays) -> None:
    write_checkpoint(arrays, checkpoint(1))
    write_checkpoint(arrays, checkpoint(2))
    slot = arrays.checkpoints[0]
    for at in (*range(48), 64, 64 + 5 * 64 - 1):
        for bit in range(8):
            slot[at] ^= np.uint8(1 << bit)
            assert read_checkpoint(arrays, 0) is None, at
            assert same(newest_checkpoint(arrays), checkpoint(1))
            slot[at] ^= np.uint8(1 << bit)
    assert same(newest_checkpoint(arrays), checkpoint(2))


@pytest.mark.parametrize("written", [0, 64, 100, 64 + 5 * 64])
def test_a_crash_in_the_middle_leaves_the_one_before(arrays: FabricArrays, written: int) -> None:
    """INV-CHECKPOINT-OTHER: generation 3 got as far as some bytes of its rows, and generation 2 counts."""
    write_checkpoint(arrays, checkpoint(1))
    write_checkpoint(arrays, checkpoint(2))
    slot = arrays.checkpoints[1]
    slot[:8] = 0
    slot[64 : 64 + written] = 0xAA
    assert same(newest_checkpoint(arrays), checkpoint(2))
    write_checkpoint(arrays, checkpoint(3))
    assert same(newest_checkpoint(arrays), checkpoint(3))


def test_rows_beyond_the_slot_are_refused(arrays: FabricArrays) -> None:
    write_checkpoint(arrays, checkpoint(1))
    head = arrays.checkpoints[1][:64]
    head.view(CHECKPOINT_HEADER)[0]["topic_rows"] = 0xFFFF_FFFF
    head.view(CHECKPOINT_HEADER)[0]["header_crc"] = checksum(head[:44].tobytes())
    assert read_checkpoint(arrays, 1) is None


def test_a_checkpoint_in_the_wrong_slot_is_refused(arrays: FabricArrays) -> None:
    write_checkpoint(arrays, checkpoint(1))
    arrays.checkpoints[0][:] = arrays.checkpoints[1]
    assert read_checkpoint(arrays, 0) is None


def test_generations_follow_each_other(arrays: FabricArrays) -> None:
    for wrong in (0, 2, 3):
        with pytest.raises(InvalidInputError, match=f"generation {wrong}; the next one is 1"):
            write_checkpoint(arrays, checkpoint(wrong))
    write_checkpoint(arrays, checkpoint(1))
    with pytest.raises(InvalidInputError, match="generation 1; the next one is 2"):
        write_checkpoint(arrays, checkpoint(1))


@pytest.mark.parametrize("at", [8, 64, 64 + 5 * 64 - 1])
def test_an_invalid_slot_is_overwritten_before_a_valid_one(arrays: FabricArrays, at: int) -> None:
    write_checkpoint(arrays, checkpoint(1))
    write_checkpoint(arrays, checkpoint(2))
    arrays.checkpoints[0][at] ^= np.uint8(1)
    with pytest.raises(InvalidInputError, match="generation 3; the next one is 2"):
        write_checkpoint(arrays, checkpoint(3))
    write_checkpoint(arrays, checkpoint(2, clients=1))
    assert same(newest_checkpoint(arrays), checkpoint(2, clients=1))
    assert same(read_checkpoint(arrays, 1), checkpoint(1))


def test_rows_are_bounded_by_the_slot(arrays: FabricArrays, sizes: FabricSizes) -> None:
    most = FabricLayout.of(sizes).checkpoint_rows_max
    write_checkpoint(arrays, checkpoint(1, clients=most, topics=0))
    assert same(newest_checkpoint(arrays), checkpoint(1, clients=most, topics=0))
    with pytest.raises(LimitError, match=r"a slot holds 4032; enlarge fabric.checkpoint_size to 8320"):
        write_checkpoint(arrays, checkpoint(2, clients=most, topics=1))
    with pytest.raises(InvalidInputError, match="64 for each row"):
        write_checkpoint(arrays, dataclasses.replace(checkpoint(2), clients=np.zeros(63, np.uint8)))
    assert same(newest_checkpoint(arrays), checkpoint(1, clients=most, topics=0))
