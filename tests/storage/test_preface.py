"""The preface of every file: it round-trips, and nothing else is accepted as one."""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import ChecksumError, CorruptionError, InvalidInputError, UnsupportedError
from seawall.storage.preface import DATA_START, FORMAT, PREFACE_SIZE, FileKind, Preface

OWNER = bytes(range(16))
U64 = st.integers(0, 2**64 - 1)

#: The bytes of the table, put together by hand.
STORED = bytes.fromhex(
    "53454157414C4C00 02000000 02000000 000102030405060708090A0B0C0D0E0F"
    "8877665544332211 0010000000000000 00002A36FE9C9717 0000000400000000 05000000"
)

#: The same in format 1, which had no size.
STORED_1 = STORED[:12] + bytes.fromhex("01000000") + STORED[16:56] + STORED[64:]


def with_checksum(fields: bytes) -> bytes:
    return (fields + struct.pack("<I", crc32c.crc32c(fields))).ljust(4096, b"\0")


def changed(at: int, value: bytes) -> bytes:
    return with_checksum(STORED[:at] + value + STORED[at + len(value) :])


def parse(data: bytes, **given_arguments: Any) -> Preface:
    return Preface.parse(data, kind=FileKind.WAL, directory_id=OWNER, **given_arguments)


def test_a_preface_has_the_documented_bytes() -> None:
    preface = Preface(
        FileKind.WAL,
        OWNER,
        first=4096,
        salt=0x1122334455667788,
        created_ns=1_700_000_000_000_000_000,
        size=1 << 26,
        topic_id=5,
    )
    assert preface.encode() == with_checksum(STORED)
    assert len(preface.encode()) == DATA_START == 4096
    assert parse(preface.encode()) == preface
    assert parse(preface.encode()[:PREFACE_SIZE]) == preface
    assert parse(preface.encode() + b"content") == preface


def test_the_numbers_of_the_kinds_are_stable() -> None:
    names = ["DIRECTORY", "WAL", "SEGMENT", "INDEX", "DELETES", "SNAPSHOT", "ADOPTING"]
    assert {kind.name: kind.value for kind in FileKind} == dict(zip(names, range(1, 8), strict=True))


@given(st.sampled_from(FileKind), st.binary(min_size=16, max_size=16), U64, U64, U64, U64, st.integers(0, 2**32 - 1))
def test_every_preface_round_trips(
    kind: FileKind, owner: bytes, first: int, salt: int, created_ns: int, size: int, topic_id: int
) -> None:
    preface = Preface(kind, owner, first=first, salt=salt, created_ns=created_ns, size=size, topic_id=topic_id)
    assert Preface.parse(memoryview(preface.encode()), kind=kind, directory_id=owner) == preface
    assert Preface.parse(preface.encode(), kind=kind) == preface


def test_every_flipped_bit_of_the_page_is_detected() -> None:
    good = with_checksum(STORED)
    parse(good)
    bits = [*range(PREFACE_SIZE * 8), *range(PREFACE_SIZE * 8, DATA_START * 8, 37), DATA_START * 8 - 1]
    for bit in bits:
        data = bytearray(good)
        data[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(CorruptionError):
            parse(bytes(data))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", CorruptionError, "wal-1: not a file of Seawall: it begins with b''"),
        (with_checksum(STORED)[:71], CorruptionError, "not a file of Seawall"),
        (bytes(4096), CorruptionError, "not a file of Seawall"),
        (changed(0, b"SEAWEED\0"), CorruptionError, "begins with b'SEAWEED"),
        (STORED.ljust(4096, b"\0"), ChecksumError, "wal-1: checksum of the preface"),
        (changed(12, b"\3"), UnsupportedError, "format 3, this version reads format 2 alone; .* or a later one"),
        (changed(12, b"\0"), UnsupportedError, "format 0, this version reads format 2 alone; .* not converted"),
        (
            with_checksum(STORED_1),
            UnsupportedError,
            "wal-1: written in format 1, .* not converted; read it with the ver",
        ),
        (with_checksum(STORED_1[:-1]), ChecksumError, "wal-1: checksum of the preface"),
        (changed(8, b"\3"), CorruptionError, "kind 3 where kind 2 .WAL. belongs"),
        (changed(8, b"\7"), CorruptionError, "kind 7 where kind 2"),
        (changed(31, b"\0"), CorruptionError, "belongs to directory 000102030405060708090a0b0c0d0e00, not to 0001"),
    ],
)
def test_the_error_names_the_wrong_field(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse(data, path="wal-1")


def test_a_newer_format_is_reported_before_any_other_fault() -> None:
    newer = Preface(FileKind.SEGMENT, bytes(16), format=FORMAT + 1).encode()
    with pytest.raises(UnsupportedError):
        parse(newer)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="15 bytes"):
        Preface(FileKind.WAL, bytes(15))
    with pytest.raises(InvalidInputError, match="does not fit"):
        Preface(FileKind.WAL, OWNER, salt=2**64).encode()
