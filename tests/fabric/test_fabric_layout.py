"""The layout of the fabric: contiguous, aligned, and at full size exactly as documented."""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.config import Config, FabricConfig
from seawall.errors import InvalidInputError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes, full_size
from seawall.kernels.runtime.slots import publish_slot, ready_slots
from seawall.limits import GIB, KIB, MIB, PAGE_SIZE

SMALL = FabricSizes(brokers=2, goi_entries=128, pbr_entries=64, checkpoint_size=8 * KIB, blog_size=64 * KIB)

some_sizes = st.builds(
    FabricSizes,
    brokers=st.integers(1, 32),
    goi_entries=st.integers(7, 28).map(lambda bits: 1 << bits),
    pbr_entries=st.integers(6, 19).map(lambda bits: 1 << bits),
    checkpoint_size=st.integers(1, 1000).map(lambda pages: pages * 2 * PAGE_SIZE),
    blog_size=st.integers(16, 1 << 20).map(lambda pages: pages * PAGE_SIZE),
)


@given(some_sizes)
def test_regions_follow_each_other_on_pages(sizes: FabricSizes) -> None:
    layout = FabricLayout.of(sizes)
    regions = list(layout.regions())
    assert [region.name for region in regions] == [field.name for field in dataclasses.fields(FabricLayout)[1:]]
    big = regions[4:]
    for before, after in pairwise(big):
        assert after.at == before.end
    assert all(region.at % PAGE_SIZE == 0 for region in big)
    assert layout.size == big[-1].end
    assert layout.size % PAGE_SIZE == 0
    for before, after in pairwise(regions):
        assert before.end <= after.at


@given(some_sizes)
def test_entries_of_different_writers_share_no_line(sizes: FabricSizes) -> None:
    """INV-FABRIC-ONE-WRITER."""
    layout = FabricLayout.of(sizes)
    for region in layout.regions():
        assert region.at % limits.CACHE_LINE_SIZE == 0
        assert region.size % limits.CACHE_LINE_SIZE == 0
        if region.writer != "frontier":
            assert region.entry_size % limits.CACHE_LINE_SIZE == 0


def test_the_full_layout_fits_a_module_of_512_gib() -> None:
    layout = FabricLayout.of(full_size())
    assert {region.name: region.at for region in layout.regions()} == {
        "control": 0x0,
        "header": 0x80,
        "broker_tails": 0x180,
        "replica_vector": 0x980,
        "completion_vector": 0x1000,
        "goi": 0x2000,
        "pbr": 0x4_0000_2000,
        "checkpoint": 0x4_4000_2000,
        "results": 0x4_4100_2000,
        "side": 0x4_8100_2000,
        "blogs": 0x6_8100_2000,
    }
    assert layout.goi.size == 16 * GIB
    assert layout.goi.count == 256 << 20
    assert layout.pbr.size == layout.results.size == GIB
    assert layout.checkpoint.size == 16 * MIB
    assert layout.side.size == 8 * GIB
    assert layout.completion_vector.size == 4 * KIB
    assert layout.replica_vector.end == 0xD80
    assert 512 * GIB - 32 * PAGE_SIZE < layout.size <= 512 * GIB
    assert 15 * GIB < layout.blogs.entry_size < 15.25 * GIB


def test_the_full_layout_is_documented() -> None:
    document = (Path(__file__).parents[2] / "docs" / "fabric.md").read_text(encoding="utf-8")
    layout = FabricLayout.of(full_size())
    for name in ("goi", "pbr", "checkpoint", "results", "side", "blogs"):
        [at] = re.findall(rf"^\| {name} \| (0x[0-9a-fA-F_]+) \|$", document, re.MULTILINE)
        assert int(at, 16) == getattr(layout, name).at
    assert f"{FabricLayout.of(FabricSizes.of(FabricConfig())).size / MIB:.1f} MiB" in document


def test_low_regions_of_the_full_layout_in_a_sparse_file(tmp_path: Path) -> None:
    """All but the BLogs, at their real offsets: first and last entry of each region, read back by file offset."""
    sizes = dataclasses.replace(full_size(), blog_size=limits.FABRIC_BLOG_RANGE[0])
    layout = FabricLayout.of(sizes)
    path = tmp_path / "sparse"
    with path.open("w+b") as file:
        os.truncate(file.fileno(), layout.size)
        mapped = mmap.mmap(file.fileno(), layout.size)
        arrays = FabricArrays(memoryview(mapped), layout)
        content = np.arange(8, dtype=np.int64)
        goi_last, pbr_last = layout.goi.count - 1, sizes.pbr_entries - 1
        publish_slot(arrays.goi_words, records.GOI_TOKEN, goi_last, content)
        publish_slot(arrays.pbr_words[0], records.PBR_TOKEN, 0, content)
        publish_slot(arrays.pbr_words[31], records.PBR_TOKEN, pbr_last, content)
        publish_slot(arrays.result_words[31], records.RESULT_TOKEN, pbr_last, content)
        arrays.side[-1]["timestamp_ns"] = 77
        arrays.checkpoints[1][0] = 5
        arrays.blogs[31][-1] = 9
        assert ready_slots(arrays.goi_words, records.GOI_TOKEN, goi_last, 4) == 1
        expected = {
            0x4_0000_2000 - 64: goi_last + 1,
            0x4_0000_2000 + 56: 1,
            0x4_4000_2000 - 8: pbr_last + 1,
            0x4_4000_2000 + 8 * MIB: 5,
            0x4_8100_2000 - 8: pbr_last + 1,
            0x6_8100_2000 - 8: 77,
        }
        for at, value in expected.items():
            assert struct.unpack("<Q", os.pread(file.fileno(), 8, at)) == (value,), hex(at)
        assert os.pread(file.fileno(), 1, layout.size - 1) == b"\x09"
        assert os.fstat(file.fileno()).st_blocks * 512 < 16 * MIB
        del arrays
        mapped.close()


def test_the_default_fits_the_shared_memory_of_a_container() -> None:
    sizes = FabricSizes.of(Config().fabric)
    layout = FabricLayout.of(sizes)
    assert layout.size < 64 * MIB
    assert layout.largest().name == "blogs"
    assert layout.checkpoint_rows_max == 131_071
    assert FabricLayout.of(full_size()).checkpoint_rows_max == 131_071


def test_configured_bytes_are_rounded_up_to_pages() -> None:
    sizes = FabricSizes.of(FabricConfig(brokers=3, blog_size=limits.FABRIC_BLOG_RANGE[0] + 1, checkpoint_size=8193))
    assert (sizes.brokers, sizes.blog_size, sizes.checkpoint_size) == (3, 68 * KIB, 16 * KIB)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"brokers": 0}, r"fabric.brokers is 0: it must be from 1 to 32"),
        ({"brokers": 33}, r"fabric.brokers is 33"),
        ({"goi_entries": 64}, r"fabric.goi_entries is 64: it must be from 128"),
        ({"goi_entries": 129}, r"fabric.goi_entries is 129: it must be a power of two"),
        ({"pbr_entries": 1 << 20}, r"fabric.pbr_entries is 1048576"),
        ({"checkpoint_size": 4096}, r"fabric.checkpoint_size is 4096: it must be from 8192"),
        ({"checkpoint_size": 12288}, r"multiples of 8192 and 4096"),
        ({"blog_size": 1}, r"fabric.blog_size is 1: it must be from"),
        ({"blog_size": 65537}, r"multiples of 8192 and 4096"),
    ],
)
def test_sizes_out_of_bounds_are_refused(change: dict[str, int], complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        dataclasses.replace(SMALL, **change)


def test_differences_name_the_setting_and_both_values() -> None:
    assert SMALL.differences(SMALL) == []
    assert SMALL.differences(dataclasses.replace(SMALL, brokers=3, blog_size=68 * KIB)) == [
        "brokers 2 (3)",
        "blog_size 65536 (69632)",
    ]


def test_the_layout_module_loads_no_numpy() -> None:
    code = "import sys, seawall.fabric.layout; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
