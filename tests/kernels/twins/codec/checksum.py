"""A cyclic redundancy check by its definition: the remainder of a division of polynomials, one bit at a time.

The register starts inverted and is inverted at the end. Each bit of the message, lowest first, is compared with the
lowest bit of the register; if they differ, the (reversed) polynomial is subtracted after the shift.
"""

from __future__ import annotations

from seawall.kernels.codec.checksum import POLYNOMIAL_IEEE
from seawall.kernels.codec.folding import POLYNOMIAL_CASTAGNOLI
from seawall.kernels.runtime.memory import Bytes


def _remainder(polynomial: int, message: bytes, crc: int) -> int:
    register = crc ^ 0xFFFFFFFF
    for byte in message:
        for bit in range(8):
            differs = (register ^ (byte >> bit)) & 1
            register = (register >> 1) ^ (polynomial if differs else 0)
    return register ^ 0xFFFFFFFF


def crc32c_portable(buffer: Bytes, start: int, end: int, crc: int) -> int:
    """CRC-32C of `buffer[start:end]`, continuing `crc`."""
    return _remainder(POLYNOMIAL_CASTAGNOLI, buffer[start:end].tobytes(), crc)


def crc32(buffer: Bytes, start: int, end: int, crc: int) -> int:
    """CRC-32 (IEEE) of `buffer[start:end]`, continuing `crc`."""
    return _remainder(POLYNOMIAL_IEEE, buffer[start:end].tobytes(), crc)


#: The kernels have several implementations with the same meaning.
crc32c_folding = crc32c_portable
crc32c_hardware = crc32c_portable
crc32c = crc32c_portable
