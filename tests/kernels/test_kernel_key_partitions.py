"""Virtual partitions of keys: kernel and twin, and the checksum library."""

from __future__ import annotations

import crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seawall.kernels.codec import key_partitions as kernel
from twins.codec import key_partitions as twin


@given(keys=st.lists(st.binary(max_size=40), max_size=12), modulus=st.integers(1, 1 << 31))
def test_the_partition_of_a_key_equals_twin_and_checksum_library(keys: list[bytes], modulus: int) -> None:
    data = np.frombuffer(b"".join(keys), np.uint8)
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int32)
    found = []
    for module in (kernel, twin):
        partitions = np.full(len(keys), -1, np.int32)
        assert module.key_partitions(data, offsets, len(keys), modulus, partitions) == len(keys)
        found.append(partitions.tolist())
    assert found[0] == found[1] == [crc32c.crc32c(key) % modulus for key in keys]


def test_a_missing_and_an_empty_key_are_in_the_first_partition() -> None:
    partitions = np.full(2, -1, np.int32)
    kernel.key_partitions(np.zeros(0, np.uint8), np.zeros(3, np.int32), 2, 7, partitions)
    assert partitions.tolist() == [0, 0]
