"""The header of an epoch: its bytes, and the rule for when it is valid at an address."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.kernels.log import epochs as kernels
from seawall.storage.wal import epochs
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, FLAG_CLEAN, EpochHeader, parse_epoch_header

SALT = 0x1122334455667788
HEADER = EpochHeader(
    salt=SALT,
    epoch=7,
    length=300,
    synced_through=1000,
    first_position=50,
    batch_count=3,
    flags=0,
    timestamp_ns=1_700_000_000_000_000_000,
)
CLEAN = replace(HEADER, length=0, batch_count=0, flags=FLAG_CLEAN)


def parse(data: bytes, salt: int = SALT, at: int = 1000) -> EpochHeader | None:
    return parse_epoch_header(data, salt=salt, at=at)


def test_a_header_has_the_documented_bytes() -> None:
    body = bytes.fromhex(
        "8877665544332211 0700000000000000 2C01000000000000 E803000000000000"
        "3200000000000000 03000000 00000000 00002A36FE9C9717"
    )
    assert HEADER.encode() == b"EPOC" + struct.pack("<I", crc32c.crc32c(body)) + body
    assert len(HEADER.encode()) == EPOCH_HEADER_SIZE == kernels.EPOCH_HEADER
    assert int.from_bytes(epochs.EPOCH_MAGIC, "little") == kernels.EPOCH_MAGIC


def test_derived_properties_follow_from_the_fields() -> None:
    assert (HEADER.size, HEADER.next_position, HEADER.is_clean) == (364, 53, False)
    assert (CLEAN.size, CLEAN.next_position, CLEAN.is_clean) == (64, 50, True)
    assert replace(HEADER, unpositioned_count=3).next_position == 50


def test_unpositioned_batches_are_counted_in_the_header() -> None:
    header = replace(HEADER, unpositioned_count=2)
    assert parse(header.encode()) == header
    assert parse(replace(HEADER, unpositioned_count=4).encode()) is None
    assert parse(replace(CLEAN, unpositioned_count=1).encode()) is None


@given(
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**40),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**62),
    st.integers(0, 2**64 - 1),
)
def test_every_header_round_trips(salt: int, epoch: int, spare: int, at: int, position: int, time: int) -> None:
    count = 1 + spare % 1000
    header = EpochHeader(salt, epoch, 96 * count + spare, at, position, count, 0, time)
    assert parse(header.encode(), salt, at) == header
    clean = replace(header, length=0, batch_count=0, flags=FLAG_CLEAN)
    assert parse(memoryview(clean.encode() + b"more"), salt, at) == clean


def test_every_flipped_bit_is_detected() -> None:
    for bit in range(EPOCH_HEADER_SIZE * 8):
        data = bytearray(HEADER.encode())
        data[bit >> 3] ^= 1 << (bit & 7)
        assert parse(bytes(data)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"salt": SALT + 1},
        {"epoch": 0},
        {"epoch": 2**63},
        {"synced_through": 1001},
        {"batch_count": 0},
        {"batch_count": 4},
        {"length": 287},
        {"length": 0},
        {"flags": FLAG_CLEAN},
        {"flags": 2},
        {"flags": 3},
        {"flags": FLAG_CLEAN, "length": 0},
        {"flags": FLAG_CLEAN, "batch_count": 0},
        {"flags": 0, "length": 0, "batch_count": 0},
        {"first_position": 2**63 - 3},
        {"first_position": 2**64 - 1},
    ],
)
def test_fields_that_no_writer_produces_are_no_header(fields: dict[str, Any]) -> None:
    assert parse(HEADER.encode()) == HEADER
    assert parse(replace(HEADER, **fields).encode()) is None


def test_short_or_foreign_bytes_are_no_header() -> None:
    assert parse(b"") is None
    assert parse(HEADER.encode()[:63]) is None
    assert parse(bytes(64)) is None
    assert parse(b"\xff" * 64) is None


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="does not fit"):
        replace(HEADER, timestamp_ns=-1).encode()
