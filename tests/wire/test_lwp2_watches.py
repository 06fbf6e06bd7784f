"""Payloads of watches: they round-trip, have their documented bytes, and malformed ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.core.watches import TopicEvent, TopicEventKind, TopicPatterns, WatchPosition, WatchSpec
from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.wire.format.codes import Command, ErrorCode, ReadFlags
from seawall.wire.lwp1 import requests as lwp1_requests
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.watches import Watch, Watched

U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
patterns = st.one_of(names, names.map(lambda name: name + "*"), st.just("*"))
positions = st.builds(WatchPosition, U64.map(TopicEpoch), st.integers(1, 2**64 - 1).map(Seq), U64.map(Position))
specs = st.builds(
    WatchSpec,
    st.lists(patterns, min_size=1, max_size=5).map(TopicPatterns),
    st.booleans(),
    st.dictionaries(names, positions, max_size=4),
    U32.map(TopicId),
    st.booleans(),
)
events = st.builds(TopicEvent, st.sampled_from(TopicEventKind), U32, U64, U64, U64, names)

SPEC = WatchSpec(
    TopicPatterns(["ab", "c*"]), False, {"d": WatchPosition(TopicEpoch(3), Seq(4), Position(5))}, TopicId(9)
)
WATCH = Watch(SPEC, 1, 2, 3, ReadFlags.STORED_CODEC)
EVENT = TopicEvent(TopicEventKind.JOINED, TopicId(1), TopicEpoch(2), Seq(3), Seq(4), "e")


@given(specs, U64, U64, U32, st.sampled_from([ReadFlags.NONE, ReadFlags.STORED_CODEC]))
def test_watches_round_trip(spec: WatchSpec, size: int, records: int, frame: int, flags: ReadFlags) -> None:
    request = Watch(spec, size, records, frame, flags)
    assert lwp2.parse_request(Command.WATCH, request.encode()) == request


@given(st.lists(events, max_size=5).map(tuple), U32.map(TopicId))
def test_events_round_trip(found: tuple[TopicEvent, ...], later_from: TopicId) -> None:
    watched = Watched(found, later_from)
    assert lwp2.parse_answer(Command.WATCHED, watched.encode()) == watched


def test_payloads_have_the_documented_bytes() -> None:
    assert WATCH.encode().hex() == (
        "02000000" + "09000000" + "0100000000000000" + "0200000000000000" + "03000000"
        "02000000" + "01000000" + "00000000" + "026162" + "02632a"
        "0300000000000000" + "0400000000000000" + "0500000000000000" + "0164"
    )  # fmt: skip
    assert Watch(WatchSpec(TopicPatterns(["a"]), from_end=True, is_strong=True), 0, 0, 0).encode()[:2] == b"\0\3"
    assert Watched((EVENT,), TopicId(7)).encode().hex() == (
        "01000000" + "07000000" + "01000000" + "00000000"
        "01000000" + "01010000" + "0200000000000000" + "0300000000000000" + "0400000000000000" + "65"
    )  # fmt: skip


def changed(payload: bytes, at: int, value: bytes) -> bytes:
    return payload[:at] + value + payload[at + len(value) :]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", ErrorCode.INVALID_PAYLOAD),
        (WATCH.encode()[:39], ErrorCode.INVALID_PAYLOAD),
        (WATCH.encode()[:-1], ErrorCode.INVALID_PAYLOAD),
        (WATCH.encode() + b"\0", ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 0, b"\1"), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 0, b"\4"), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 1, b"\4"), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 2, b"\1"), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 36, b"\1"), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 28, b"\xff" * 4), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 32, b"\xff" * 4), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 32, b"\2"), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 46 + 8, bytes(8)), ErrorCode.INVALID_PAYLOAD),
        (changed(WATCH.encode(), 28, b"\0"), ErrorCode.TOPIC_NAME),
        (changed(WATCH.encode(), 41, b"/"), ErrorCode.TOPIC_NAME),
        (changed(WATCH.encode(), 41, b"\xff"), ErrorCode.TOPIC_NAME),
        (changed(WATCH.encode(), 41, b"*"), ErrorCode.TOPIC_NAME),
        (
            changed(WATCH.encode(), 32, b"\2") + bytes(8) + b"\1" + bytes(7) + bytes(8) + b"\1d",
            ErrorCode.INVALID_PAYLOAD,
        ),
    ],
    ids=[
        *("empty", "short", "truncated", "long", "flag 1", "not yet durable", "option 4", "reserved", "reserved at 36"),
        *("names without number", "positions without number", "a position too many", "seq 0", "no name"),
        *("slash", "not text", "asterisk in a name", "a topic twice"),
    ],
)
def test_malformed_watches_are_refused(payload: bytes, code: ErrorCode) -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(Command.WATCH, payload)
    assert (refused.value.code, refused.value.closes) == (code, False)


@pytest.mark.parametrize(
    "payload",
    [
        bytes(15),
        Watched((EVENT,)).encode()[:-1],
        Watched((EVENT,)).encode() + b"\0",
        changed(Watched((EVENT,)).encode(), 0, b"\1"),
        changed(Watched((EVENT,), TopicId(1)).encode(), 0, b"\0"),
        changed(Watched((EVENT,)).encode(), 0, b"\2"),
        changed(Watched((EVENT,)).encode(), 20, b"\0"),
        changed(Watched((EVENT,)).encode(), 20, b"\5"),
        changed(Watched((EVENT,)).encode(), 22, b"\1"),
    ],
)
def test_malformed_events_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        lwp2.parse_answer(Command.WATCHED, payload)


def test_a_request_within_all_bounds_fits_a_frame() -> None:
    longest = limits.TOPIC_NAME_SIZE_MAX
    texts = [f"{number:05}".ljust(longest, "x") for number in range(limits.WATCH_TOPICS_MAX + 1)]
    position = WatchPosition(TopicEpoch(1), Seq(1))
    spec = WatchSpec(TopicPatterns(texts[: limits.WATCH_NAMES_MAX]), positions=dict.fromkeys(texts[1:], position))
    assert len(Watch(spec, 0, 0, 0).encode()) <= limits.PAYLOAD_SIZE_MIN
    with pytest.raises(LimitError, match="positions"):
        Watch(WatchSpec(TopicPatterns(["a"]), positions=dict.fromkeys(texts, position)), 0, 0, 0).encode()
    with pytest.raises(InvalidInputError):
        Watch(SPEC, -1, 0, 0).encode()


def test_version_1_refuses_watches() -> None:
    for command in (Command.WATCH, Command.WATCHED):
        with pytest.raises(ProtocolError):
            lwp1_requests.parse_request(command, WATCH.encode())
