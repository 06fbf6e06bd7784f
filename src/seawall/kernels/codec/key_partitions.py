"""The virtual partition of each key of a column: CRC-32C of its bytes modulo how many partitions there are.

A topic has no partitions; who wants to share its records out by key numbers them so, everywhere by the same rule. An
empty key is in partition 0, as a record without one is: in an Arrow column both have no bytes.
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
    """Write the partition of each of `count` keys; `arrow_offsets` has one place more. Returns the count."""
    for index in range(count):
        checksum = crc32c(data, as_int64(arrow_offsets[index]), as_int64(arrow_offsets[index + 1]), 0)
        partitions[index] = checksum % modulus
    return count
