"""The header of a fabric: its bytes, and every way in which they can be invalid."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import ChecksumError, CorruptionError, InvalidInputError, SeawallError, UnsupportedError
from seawall.fabric import records
from seawall.fabric.header import FabricHeader, Identity, header_checksum, is_unfinished, parse_identity
from seawall.fabric.layout import HEADER_SIZE, FabricLayout, FabricSizes
from seawall.limits import KIB

SIZES = FabricSizes(brokers=2, goi_entries=128, pbr_entries=64, checkpoint_size=8 * KIB, blog_size=64 * KIB)
HEADER = FabricHeader(Identity(bytes(range(16)), bytes(range(16, 32))), SIZES, 1_700_000_000_000_000_000)


def changed(**fields: int | bytes) -> bytes:
    """The header with other values in some fields, and the checksum that fits."""
    data = np.frombuffer(HEADER.encode(), records.HEADER).copy()
    for name, value in fields.items():
        data[0][name] = value
    if "crc" not in fields:
        data[0]["crc"] = header_checksum(data.tobytes())
    return data.tobytes()


def test_the_bytes_are_those_of_the_record() -> None:
    data = HEADER.encode()
    assert len(data) == HEADER_SIZE
    record = np.frombuffer(data, records.HEADER)[0]
    assert bytes(record["magic"]) == b"SEAFABR"
    assert record["boot_id"].tobytes() == bytes(range(16))
    assert record["directory_id"].tobytes() == bytes(range(16, 32))
    assert {name: int(record[name]) for name in ("version", "size", "created_ns")} == {
        "version": 1,
        "size": FabricLayout.of(SIZES).size,
        "created_ns": HEADER.created_ns,
    }
    assert {field.name: int(record[field.name]) for field in dataclasses.fields(SIZES)} == dataclasses.asdict(SIZES)
    assert record["zero"].tobytes() == bytes(152)
    assert FabricHeader.parse(data, "f") == HEADER


def test_zeros_are_an_unfinished_creation() -> None:
    assert is_unfinished(bytes(HEADER_SIZE))
    assert is_unfinished(bytes(8) + HEADER.encode()[8:])
    assert not is_unfinished(HEADER.encode())
    with pytest.raises(CorruptionError, match="f: its creation was not finished; start its pod again"):
        FabricHeader.parse(bytes(HEADER_SIZE), "f")


def test_other_files_are_not_taken_for_a_fabric() -> None:
    with pytest.raises(CorruptionError, match="not a Seawall fabric: it starts with b'PK"):
        FabricHeader.parse(b"PK".ljust(HEADER_SIZE, b"x"), "f")


def test_another_version_is_named_with_the_remedy() -> None:
    other = changed(version=2, brokers=77)
    assert parse_identity(other, "f") == HEADER.identity
    with pytest.raises(UnsupportedError, match=r"of version 2, this build uses version 1; .* remove the file"):
        FabricHeader.parse(other, "f")


def test_sizes_are_checked() -> None:
    with pytest.raises(CorruptionError, match=r"invalid sizes: fabric.brokers is 77"):
        FabricHeader.parse(changed(brokers=77), "f")
    with pytest.raises(CorruptionError, match=r"has size 8192, its regions need"):
        FabricHeader.parse(changed(size=8192), "f")


@given(st.integers(0, HEADER_SIZE * 8 - 1))
def test_every_flipped_bit_is_detected(bit: int) -> None:
    data = bytearray(HEADER.encode())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError):
        FabricHeader.parse(bytes(data), "f")


def test_a_wrong_checksum_names_the_remedy() -> None:
    with pytest.raises(ChecksumError, match="checksum of the header does not match; stop its pod and remove the file"):
        FabricHeader.parse(changed(crc=1), "f")


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_any_bytes_give_a_seawall_error(data: bytes) -> None:
    with pytest.raises(SeawallError):
        FabricHeader.parse(data, "f")


def test_identities() -> None:
    with pytest.raises(InvalidInputError, match="ids of 3 and 16 bytes"):
        Identity(b"abc", bytes(16))
    ours = HEADER.identity
    assert ours.mismatch(ours) == ""
    assert "before the last reboot" in ours.mismatch(Identity(bytes(16), ours.directory_id))
    assert bytes(16).hex() in ours.mismatch(Identity(ours.boot_id, bytes(16)))
