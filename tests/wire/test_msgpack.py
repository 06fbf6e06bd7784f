"""MessagePack: the bytes of the specification, what is written is read, and whatever else is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import CorruptionError
from seawall.wire.format.msgpack import DEPTH_MAX, Packer, unpacked

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
KEYS = TEXTS | INTEGERS | st.binary()
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXTS | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(KEYS, inner, max_size=20),
    max_leaves=40,
)


def packed(value: object) -> bytes:
    packer = Packer()
    packer.add(value)
    return bytes(packer.data)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "c0"),
        (False, "c2"),
        (True, "c3"),
        (0, "00"),
        (127, "7f"),
        (128, "cc80"),
        (255, "ccff"),
        (256, "cd0100"),
        (65_536, "ce00010000"),
        (1 << 32, "cf0000000100000000"),
        ((1 << 64) - 1, "cfffffffffffffffff"),
        (-1, "ff"),
        (-32, "e0"),
        (-33, "d0df"),
        (-128, "d080"),
        (-129, "d1ff7f"),
        (-32_769, "d2ffff7fff"),
        (-(1 << 31) - 1, "d3ffffffff7fffffff"),
        (-(1 << 63), "d38000000000000000"),
        (1.5, "cb3ff8000000000000"),
        ("", "a0"),
        ("a", "a161"),
        ("é" * 16, "d920" + "c3a9" * 16),
        (b"", "c400"),
        (b"ab", "c4026162"),
        ([], "90"),
        ([1, [2]], "92019102"),
        ((1,), "9101"),
        ({}, "80"),
        ({"a": 1, 2: b""}, "82a1610102c400"),
        ([0] * 16, "dc0010" + "00" * 16),
        (dict.fromkeys(range(16), 0), "de0010" + "".join(f"{number:02x}00" for number in range(16))),
        ("x" * 256, "da0100" + "78" * 256),
        (b"x" * 256, "c50100" + "78" * 256),
        ("x" * 65_536, "db00010000" + "78" * 65_536),
        (b"x" * 65_536, "c600010000" + "78" * 65_536),
        ([0] * 65_536, "dd00010000" + "00" * 65_536),
    ],
)
def test_the_bytes_are_those_of_the_specification(value: Any, expected: str) -> None:
    assert packed(value).hex() == expected
    assert unpacked(bytes.fromhex(expected)) == (list(value) if isinstance(value, tuple) else value)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    found = unpacked(packed(value))
    assert found == value
    assert packed(found) == packed(value)


def test_numbers_that_others_write_longer_are_read() -> None:
    assert unpacked(bytes.fromhex("ca3fc00000")) == 1.5
    assert unpacked(bytes.fromhex("d30000000000000001")) == 1
    assert unpacked(bytes.fromhex("df00000001d9016101")) == {"a": 1}
    assert math.isnan(float(str(unpacked(packed(math.nan)))))


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_values_are_nested_up_to_a_bound() -> None:
    assert unpacked(packed(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(ValueError, match="nested more than"):
        packed(nested(DEPTH_MAX + 1))
    with pytest.raises(CorruptionError, match="nested more than"):
        unpacked(b"\x91" * (DEPTH_MAX + 1) + b"\x00")
    with pytest.raises(CorruptionError, match="nested more than"):
        unpacked(b"\x81\x00" * 100_000)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (1 << 64, "more than 64 bits"),
        (-(1 << 63) - 1, "more than 64 bits"),
        (object(), "of type object"),
        ({1.5: 1}, "the key 1.5"),
        ({True: 1}, "the key True"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_values_without_bytes_are_refused(value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        packed([value])


@pytest.mark.parametrize(
    "data",
    [
        # Too short.
        *("", "cc", "a2 61", "c4 02 61", "92 00", "81 00", "dd ff ff ff ff", "df ff ff ff ff", "db ff ff ff ff 61"),
        # No type, or an extension.
        *("c1", "c7 00 00", "c8 00 00 00", "c9 00 00 00 00 00", "d4 00 00", "d8 00" + "00" * 16),
        # Two values, bad text, and keys that are null, an array, true and a float.
        *("00 00", "a1 ff", "81 c0 00", "81 90 00", "81 c3 00", "81 cb 3ff8000000000000 00"),
    ],
)
def test_other_bytes_are_refused(data: str) -> None:
    with pytest.raises(CorruptionError):
        unpacked(bytes.fromhex(data))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = unpacked(data)
    except CorruptionError:
        return
    assert len(packed(value)) <= 3 * len(data)
