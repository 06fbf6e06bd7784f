"""The same through the objects themselves: the address is converted back to the list."""

from __future__ import annotations

import ctypes

from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import Values
from twins.codec.checksum import crc32c


def _list_at(address: int, count: int) -> list[object]:
    values = ctypes.cast(address, ctypes.py_object).value
    assert isinstance(values, list)
    return values[:count]


def measure_values(values: int, count: int, wanted_type: int) -> int:
    """Total size of the values; −1 if one is not exactly of this type."""
    wanted = ctypes.cast(wanted_type, ctypes.py_object).value
    found = _list_at(values, count)
    if any(type(value) is not wanted for value in found):
        return -1
    return sum(len(value) for value in found if isinstance(value, bytes))


def _block(values: int, count: int) -> bytes:
    found = _list_at(values, count)
    return b"".join(b"\x01" + len(value).to_bytes(4, "little") + value for value in found if isinstance(value, bytes))


def join_part(values: int, count: int, cursor: Values, target: Bytes, at: int, end: int) -> int:
    """Write the next bytes of the block, as far as they fit. Returns their end."""
    block = _block(values, count)
    start = len(_block(values, cursor[0])) + cursor[1]
    part = block[start : start + end - at]
    target[at : at + len(part)] = memoryview(part)
    while cursor[0] < count and len(_block(values, cursor[0] + 1)) <= start + len(part):
        cursor[0] += 1
    cursor[1] = start + len(part) - len(_block(values, cursor[0]))
    return at + len(part)


def join_summed(values: int, count: int, cursor: Values, target: Bytes, at: int, end: int) -> int:
    """`join_part`, and continue the checksum."""
    after = join_part(values, count, cursor, target, at, end)
    cursor[2] = crc32c(target, at, after, int(cursor[2]))
    return after


def join_values(values: int, count: int, target: Bytes) -> int:
    """Write a record for each value. Returns the CRC-32C of all."""
    block = _block(values, count)
    target[: len(block)] = memoryview(block)
    return crc32c(target, 0, len(block), 0)
