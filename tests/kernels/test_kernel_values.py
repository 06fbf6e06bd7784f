"""Values of a list are measured and joined as their twins do it, wherever they lie and however long they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels import jit, values
from seawall.kernels.twins import values as twin
from seawall.wire.records import encode_raw

EXAMPLES = 20 if jit.PYTHON_MODE else 200

pytestmark = pytest.mark.skipif(not values.HAS_KNOWN_LAYOUT, reason="this interpreter has its objects another way")


class Subclass(bytes):
    """Bytes by another name, which may have a length of its own."""


def _joined(kernel: object, items: list[bytes], size: int) -> tuple[bytes, int]:
    assert callable(kernel)
    target = np.full(size, 0xEE, np.uint8)
    crc: int = kernel(id(items), len(items), target)
    return target.tobytes(), crc


@settings(max_examples=EXAMPLES)
@given(st.lists(st.binary(max_size=300), max_size=40))
def test_lists_of_bytes_become_records(items: list[bytes]) -> None:
    expected = b"".join(map(encode_raw, items))
    size = values.measure_values(id(items), len(items), id(bytes))
    assert size == twin.measure_values(id(items), len(items), id(bytes)) == sum(map(len, items))
    joined = _joined(values.join_values, items, size + 5 * len(items))
    assert joined == _joined(twin.join_values, items, len(expected))
    assert joined[0] == expected


@pytest.mark.parametrize("length", [0, 1, 1_024, 16_379, 16_380, 40_000])
def test_long_values_are_summed_as_they_come(length: int) -> None:
    items = [bytes([number]) * length for number in range(5)]
    expected = b"".join(map(encode_raw, items))
    assert _joined(values.join_values, items, len(expected)) == _joined(twin.join_values, items, len(expected))


@pytest.mark.parametrize("other", ["text", bytearray(b"x"), None, Subclass(b"x"), 7])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_whatever_is_not_bytes_is_told(other: object, place: int) -> None:
    items: list[object] = [b"value"] * 10
    items[place] = other
    assert values.measure_values(id(items), len(items), id(bytes)) == -1
    assert twin.measure_values(id(items), len(items), id(bytes)) == -1


def test_a_list_may_have_grown_before() -> None:
    items = [b"first"]
    for number in range(0, 1_000, 10):
        items += [str(each).encode() for each in range(number, number + 10)]
    expected = b"".join(map(encode_raw, items))
    assert _joined(values.join_values, items, len(expected))[0] == expected
