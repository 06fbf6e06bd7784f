"""The same by the objects themselves: an address is turned back into the list that is there."""

from __future__ import annotations

import ctypes

from seawall.kernels.memory import Bytes
from seawall.kernels.twins.checksum import crc32c


def _list_at(address: int, count: int) -> list[object]:
    values = ctypes.cast(address, ctypes.py_object).value
    assert isinstance(values, list)
    return values[:count]


def measure_values(values: int, count: int, wanted_type: int) -> int:
    """Bytes of all values together; −1 if one is not of exactly this type."""
    wanted = ctypes.cast(wanted_type, ctypes.py_object).value
    found = _list_at(values, count)
    if any(type(value) is not wanted for value in found):
        return -1
    return sum(len(value) for value in found if isinstance(value, bytes))


def join_values(values: int, count: int, target: Bytes) -> int:
    """Write a record for each value; the CRC-32C of all."""
    at = 0
    for value in _list_at(values, count):
        assert isinstance(value, bytes)
        record = b"\x01" + len(value).to_bytes(4, "little") + value
        target[at : at + len(record)] = memoryview(record)
        at += len(record)
    return crc32c(target, 0, at, 0)
