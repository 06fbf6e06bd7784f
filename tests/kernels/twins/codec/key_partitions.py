"""What `kernels/codec/key_partitions.py` means, in plain Python."""

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
    """The partition of each key of a column."""
    for index in range(count):
        first, end = int(arrow_offsets[index]), int(arrow_offsets[index + 1])
        partitions[index] = crc32c(data, first, end, 0) % modulus
    return count
