"""The partition of each key, one at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twins.codec.checksum import crc32c


def key_partitions(
    data: npt.NDArray[np.uint8],
    arrow_offsets: npt.NDArray[np.int32],
    count: int,
    modulus: int,
    partitions: npt.NDArray[np.int32],
) -> int:
    """Write the partition of each key of a column. Returns the count."""
    for index in range(count):
        first, end = int(arrow_offsets[index]), int(arrow_offsets[index + 1])
        partitions[index] = crc32c(data, first, end, 0) % modulus
    return count
