"""Records of the fabric have the bytes of `docs/fabric.md`, and arrays are at the offsets of the layout."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from seawall.fabric import layout, records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.limits import KIB

DOCUMENT = (Path(__file__).parents[2] / "docs" / "fabric.md").read_text(encoding="utf-8")
SMALL = FabricSizes(brokers=2, goi_entries=128, pbr_entries=64, checkpoint_size=8 * KIB, blog_size=64 * KIB)

RECORDS = {
    "control": records.CONTROL,
    "header": records.HEADER,
    "broker_tails": records.TAIL,
    "replica_vector": records.REPLICA,
    "completion_vector": records.COMPLETION,
    "goi": records.GOI_ENTRY,
    "pbr": records.PBR_ENTRY,
    "results": records.RESULT,
    "side": records.SIDE_ENTRY,
    "checkpoint": records.CHECKPOINT_HEADER,
}


def documented(name: str) -> dict[str, tuple[int, int]]:
    """Place and size of each field in the table below a heading."""
    [section] = re.findall(rf"^### {name}\n(.*?)(?=^##)", DOCUMENT, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", section, re.MULTILINE)
    return {field: (int(at), int(size)) for at, size, field in rows}


@pytest.mark.parametrize("name", RECORDS)
def test_fields_are_at_the_documented_offsets(name: str) -> None:
    fields = RECORDS[name].fields
    assert fields is not None
    assert {field: (place[1], place[0].itemsize) for field, place in fields.items()} == documented(name)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *[(records.CONTROL, 128), (records.HEADER, 256), (records.TAIL, 64), (records.REPLICA, 64)],
        *[(records.COMPLETION, 128), (records.GOI_ENTRY, 64), (records.PBR_ENTRY, 64), (records.RESULT, 64)],
        *[(records.SIDE_ENTRY, 32), (records.CHECKPOINT_HEADER, 64)],
    ],
)
def test_sizes(dtype: np.dtype[np.void], size: int) -> None:
    assert dtype.itemsize == size


def test_a_record_with_a_hole_is_not_made() -> None:
    with pytest.raises(AssertionError, match="a field at 8, expected at 4"):
        records._record(16, a=(0, "<u4"), b=(8, "<u8"))
    with pytest.raises(AssertionError, match="fields of 4 bytes in a record of 16"):
        records._record(16, a=(0, "<u4"))


@pytest.mark.parametrize(
    ("words", "field", "dtype"),
    [
        (records.CONTROL_TERM, "term", records.CONTROL),
        (records.CONTROL_LEADER, "leader", records.CONTROL),
        (records.CONTROL_LEASE, "lease_ns", records.CONTROL),
        (records.CONTROL_BROKERS, "broker_mask", records.CONTROL),
        (records.CONTROL_COMMITTED, "committed", records.CONTROL),
        (records.CONTROL_DURABLE, "durable", records.CONTROL),
        (records.TAIL_CLAIMED, "claimed", records.TAIL),
        (records.TAIL_BLOG_CLAIMED, "blog_claimed", records.TAIL),
        (records.REPLICA_DURABLE, "durable", records.REPLICA),
        (records.REPLICA_VIEW, "view", records.REPLICA),
        (records.REPLICA_HEARTBEAT, "heartbeat_ns", records.REPLICA),
        (records.COMPLETION_COMPLETED, "completed", records.COMPLETION),
    ],
)
def test_words_are_those_of_the_fields(words: int, field: str, dtype: np.dtype[np.void]) -> None:
    assert dtype.fields is not None
    assert dtype.fields[field][1] == words * 8


def test_arrays_are_at_the_offsets_of_the_layout() -> None:
    made = FabricLayout.of(SMALL)
    memory = bytearray(made.size)
    arrays = FabricArrays(memoryview(memory), made)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    assert arrays.control.ctypes.data == arrays.control_words.ctypes.data == start
    assert arrays.header.ctypes.data - start == 0x80
    for broker in range(2):
        ring = broker * SMALL.pbr_entries * 64
        assert arrays.pbr[broker].ctypes.data - start == made.pbr.at + ring
        assert arrays.pbr_words[broker].ctypes.data - start == made.pbr.at + ring
        assert arrays.results[broker].ctypes.data - start == made.results.at + ring
        assert arrays.blogs[broker].ctypes.data - start == made.blogs.at + broker * SMALL.blog_size
        assert arrays.tail_words[broker].ctypes.data - start == 0x180 + broker * 64
        assert arrays.completion_words[broker].ctypes.data - start == 0x1000 + broker * 128
    assert arrays.checkpoints[1].ctypes.data - start == made.checkpoint.at + 4 * KIB
    assert arrays.side.ctypes.data - start == made.side.at
    assert [len(arrays.tail_words), len(arrays.replica_words), len(arrays.completion_words)] == [32, 16, 32]
    assert arrays.goi_words.size == 128 * 8
    assert arrays.blogs[1].size == SMALL.blog_size
    assert layout.GOI_AT == 0x2000


def test_the_odd_field_of_a_goi_entry_keeps_its_value() -> None:
    made = FabricLayout.of(SMALL)
    memory = bytearray(made.size)
    arrays = FabricArrays(memoryview(memory), made)
    arrays.goi[1]["blog_offset"] = 0x0102030405060708
    assert memory[0x2000 + 64 + 20 : 0x2000 + 64 + 28] == bytes(range(8, 0, -1))
