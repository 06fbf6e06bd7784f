"""Cursors of watches as text: they round-trip, are small, and other texts are refused."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.api.watch_cursor import WatchCursor, encode_cursor, parse_cursor
from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.core.watches import WatchPosition
from seawall.errors import InvalidInputError

POSITIVE = st.integers(1, 2**64 - 1)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,40}", fullmatch=True)
positions = st.builds(
    WatchPosition, POSITIVE.map(TopicEpoch), POSITIVE.map(Seq), st.integers(0, 2**64 - 1).map(Position)
)
CURSOR = WatchCursor({"orders": WatchPosition(TopicEpoch(1), Seq(5))}, TopicId(2))


@given(st.dictionaries(names, positions, max_size=6), st.integers(1, 2**32 - 1))
def test_cursors_round_trip(found: dict[str, WatchPosition], later_from: int) -> None:
    cursor = WatchCursor(found, TopicId(later_from))
    text = encode_cursor(cursor)
    assert parse_cursor(text) == cursor
    assert text.isascii()
    assert not set(text) & set("+/=\n ")


def test_a_cursor_of_many_topics_is_small() -> None:
    found = {
        f"audit.region-{n % 7}.customer-{n:05}": WatchPosition(TopicEpoch(n + 1), Seq(n * n + 1)) for n in range(10_000)
    }
    assert len(encode_cursor(WatchCursor(found, TopicId(10_001)))) < 30 * len(found)


def packed(data: bytes) -> str:
    return urlsafe_b64encode(zlib.compress(data)).rstrip(b"=").decode()


HEAD = b"\1" + b"\2\0\0\0" + b"\1\0\0\0"
TOPIC = b"\1" + bytes(7) + b"\5" + bytes(7) + bytes(8) + b"\6orders"


def test_a_cursor_has_the_documented_bytes() -> None:
    assert parse_cursor(packed(HEAD + TOPIC)) == CURSOR
    assert encode_cursor(CURSOR) == packed(HEAD + TOPIC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "é",
        "nonsense",
        "x" * 100_000_000,
        encode_cursor(CURSOR)[:-4],
        encode_cursor(CURSOR)[:10] + "A" + encode_cursor(CURSOR)[11:],
        packed(b""),
        packed(b"\2" + (HEAD + TOPIC)[1:]),
        packed(b"\1" + bytes(4) + (HEAD + TOPIC)[5:]),
        packed(HEAD + TOPIC + b"\0"),
        packed((HEAD + TOPIC)[:-1]),
        packed(b"\1\2\0\0\0\2\0\0\0" + TOPIC + TOPIC),
        packed(HEAD + bytes(8) + TOPIC[8:]),
        packed(HEAD + TOPIC[:8] + bytes(8) + TOPIC[16:]),
        packed(HEAD + TOPIC.replace(b"orders", b"or/ers")),
        packed(HEAD + TOPIC.replace(b"orders", b"_rders")),
        packed(b"\1\2\0\0\0\xff\xff\xff\xff" + TOPIC),
        packed(bytes(50_000_000)),
        urlsafe_b64encode(zlib.compress(HEAD + TOPIC) + b"more").decode(),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not one that a watch has returned"):
        parse_cursor(text)
