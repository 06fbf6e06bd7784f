"""Twin of `kernels.codec.renumbering`."""

from __future__ import annotations

import numpy as np

from seawall.kernels.runtime.memory import Bytes
from twins.codec.checksum import crc32c


def renumber_batches(buffer: Bytes, size: int, count: int, first_seq: int) -> None:
    """Write the client seq and the header checksum of batches that are back to back."""
    for index in range(count):
        header = bytearray(buffer[index * size : index * size + 96].tobytes())
        header[12:20] = (first_seq + index).to_bytes(8, "little")
        sealed = np.frombuffer(header[:8] + header[12:], np.uint8)
        header[8:12] = crc32c(sealed, 0, sealed.size, 0).to_bytes(4, "little")
        buffer[index * size : index * size + 96] = list(header)
