"""The virtual partition of each key of a column: the CRC-32C of the key modulo the number of partitions.

A topic has no partitions. Consumers that distribute its records by key all number them by this rule. An empty key is in
partition 0, like a record without a key: in an Arrow column neither has bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.runtime.jit import bytes_in, int32_out, int64, kernel
from seawall.kernels.runtime.memory import Bytes, as_int64

Int32s = npt.NDArray[np.int32]

_int32_in = types.Array(types.int32, 1, "C", readonly=True)


@kernel(int64(bytes_in, _int32_in, int64, int64, int32_out))
def key_partitions(data: Bytes, arrow_offsets: Int32s, count: int, modulus: int, partitions: Int32s) -> int:
    """Write the partition of each of `count` keys; `arrow_offsets` has one element more. Returns the count."""
    for index in range(count):
        checksum = crc32c(data, as_int64(arrow_offsets[index]), as_int64(arrow_offsets[index + 1]), 0)
        partitions[index] = checksum % modulus
    return count
