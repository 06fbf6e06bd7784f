"""Lists of records become the same blocks whichever way they are encoded."""

from __future__ import annotations

import pytest

from seawall.limits import BATCH_RECORDS_MAX
from seawall.wire.publishable import encode
from seawall.wire.records import encode_raw


class Subclass(bytes):
    """Bytes by another name."""


def _blocks(records: list[bytes]) -> list[tuple[bytes, int]]:
    return [(bytes(block), count) for block, count in encode(records)]


@pytest.mark.parametrize("count", [1, 16, 17, 127, 128, 5_000])
@pytest.mark.parametrize("spread", [1, 7, 300])
def test_plain_values_are_records_one_behind_the_other(count: int, spread: int) -> None:
    records = [bytes([number % 251]) * (number % spread) for number in range(count)]
    assert _blocks(records) == [(b"".join(map(encode_raw, records)), count)]


def test_values_that_are_bytes_in_another_way_are_no_less_plain() -> None:
    records: list[bytes] = [b"plain"] * 20
    expected = [(b"".join(map(encode_raw, records)), 20)]
    assert _blocks([*records[1:], Subclass(b"plain")]) == expected
    assert [(bytes(block), count) for block, count in encode([*records[1:], bytearray(b"plain")])] == expected
    assert [(bytes(block), count) for block, count in encode([*records[1:], "plain"])] == expected


def test_more_than_a_batch_has_room_for_are_several() -> None:
    records = [b"x"] * (BATCH_RECORDS_MAX + 5)
    assert [count for _, count in _blocks(records)] == [BATCH_RECORDS_MAX, 5]
    assert b"".join(block for block, _ in _blocks(records)) == encode_raw(b"x") * len(records)
