"""Lists of records become the same blocks by every encoder."""

from __future__ import annotations

import pytest

from seawall.api import publishable
from seawall.api.publishable import encode
from seawall.kernels.codec.values import HAS_KNOWN_LAYOUT
from seawall.limits import BATCH_RECORDS_MAX, BLOCK_SIZE_MAX
from seawall.wire.format.frames import checksum
from seawall.wire.format.records import encode_raw


class Subclass(bytes):
    """A subclass of bytes."""


def _blocks(records: list[bytes]) -> list[tuple[bytes, int]]:
    return [(bytes(block), count) for block, count, _ in encode(records)]


@pytest.mark.parametrize("count", [1, 16, 17, 127, 128, 5_000])
@pytest.mark.parametrize("spread", [1, 7, 300])
def test_plain_values_become_adjacent_records(count: int, spread: int) -> None:
    records = [bytes([number % 251]) * (number % spread) for number in range(count)]
    assert _blocks(records) == [(b"".join(map(encode_raw, records)), count)]


def test_subclasses_bytearrays_and_strings_encode_like_bytes() -> None:
    records: list[bytes] = [b"plain"] * 20
    expected = [(b"".join(map(encode_raw, records)), 20)]
    assert _blocks([*records[1:], Subclass(b"plain")]) == expected
    assert [(bytes(block), count) for block, count, _ in encode([*records[1:], bytearray(b"plain")])] == expected
    assert [(bytes(block), count) for block, count, _ in encode([*records[1:], "plain"])] == expected


def test_more_records_than_a_batch_allows_become_several_blocks() -> None:
    records = [b"x"] * (BATCH_RECORDS_MAX + 5)
    assert [count for _, count in _blocks(records)] == [BATCH_RECORDS_MAX, 5]
    assert b"".join(block for block, _ in _blocks(records)) == encode_raw(b"x") * len(records)


@pytest.mark.parametrize("count", [17, 2_000])
def test_a_precomputed_checksum_is_correct(count: int) -> None:
    records = [bytes([number % 251]) * 700 for number in range(count)]
    (block,) = encode(records)
    assert block.crc in (None, checksum(block.block))
    assert (block.crc is not None) == HAS_KNOWN_LAYOUT


@pytest.mark.parametrize("count", [17, 200])
def test_the_portable_encoder_makes_the_same_blocks(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [bytes([number % 251]) * number for number in range(count)]
    expected = _blocks(records)
    monkeypatch.setattr(publishable, "HAS_KNOWN_LAYOUT", False)
    assert _blocks(records) == expected
    assert _blocks([*records, Subclass(b"plain")]) == [(expected[0][0] + encode_raw(b"plain"), count + 1)]


@pytest.mark.parametrize("count", [2, 20])
def test_large_values_become_several_blocks(count: int) -> None:
    records = [bytes(BLOCK_SIZE_MAX // 2 + 1)] * count
    assert [record_count for _, record_count in _blocks(records)] == [1] * count
