"""Keyed publishing in version 2: payloads round-trip, and malformed ones are refused without ending the connection."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.wire.format.codes import POSITION_UNKNOWN, Command, ErrorCode
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp1 import requests as lwp1_requests
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.keyed import PublishedKeyed, PublishKeyed

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
PUBLISH, PUBLISHED = struct.Struct("<IIII"), struct.Struct("<QQQQII")
BLOCK = encode_raw(b"hello")


@given(
    topic_id=U32,
    count=st.integers(1, limits.BATCH_RECORDS_MAX),
    key=st.binary(max_size=300),
    block=st.binary(min_size=1, max_size=300),
)
def test_requests_round_trip(topic_id: int, count: int, key: bytes, block: bytes) -> None:
    request = PublishKeyed(topic_id, count, key, block)
    for payload in (request.encode(), bytearray(request.encode()), memoryview(request.encode())):
        found = lwp2.parse_request(Command.PUBLISH_KEYED, payload)
        assert found == request
        assert isinstance(found, PublishKeyed)
        assert (type(found.key), bytes(found.block)) == (bytes, block)


@given(seqs=st.tuples(U64, U64), position=U64, timestamp_ns=U64, is_repeated=st.booleans())
def test_answers_round_trip(seqs: tuple[int, int], position: int, timestamp_ns: int, is_repeated: bool) -> None:
    first, last = sorted(max(1, seq) for seq in seqs)
    answer = PublishedKeyed(first, last, position, timestamp_ns, is_repeated)
    assert lwp2.parse_answer(Command.PUBLISHED_KEYED, answer.encode()) == answer


@given(payload=st.binary(max_size=80))
def test_parsed_payloads_encode_to_the_same_bytes(payload: bytes) -> None:
    for parse, command in ((lwp2.parse_request, 0x6B), (lwp2.parse_answer, 0x6C)):
        with suppress(ProtocolError):
            assert parse(command, payload).encode() == payload


def test_payloads_have_the_documented_bytes() -> None:
    assert PublishKeyed(7, 1, b"key", BLOCK).encode() == PUBLISH.pack(7, 1, 3, 0) + b"key" + BLOCK
    assert PublishKeyed(7, 1, b"", BLOCK).encode().hex() == "07000000010000000000000000000000" + BLOCK.hex()
    answer = PublishedKeyed(4, 6, POSITION_UNKNOWN, 9, True)
    assert answer.encode() == PUBLISHED.pack(4, 6, (1 << 64) - 1, 9, 1, 0)
    assert (int(PublishKeyed.COMMAND), int(PublishedKeyed.COMMAND)) == (0x6B, 0x6C)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        PUBLISH.pack(7, 1, 0, 0)[:-1],
        PUBLISH.pack(7, 1, 0, 0),
        PUBLISH.pack(7, 1, 3, 0) + b"key",
        PUBLISH.pack(7, 1, 3, 0) + b"ke",
        PUBLISH.pack(7, 1, limits.IDEMPOTENCY_KEY_SIZE_MAX, 0) + BLOCK,
        PUBLISH.pack(7, 1, 0, 1) + BLOCK,
        PUBLISH.pack(7, 0, 0, 0) + BLOCK,
        PUBLISH.pack(7, limits.BATCH_RECORDS_MAX + 1, 0, 0) + BLOCK,
    ],
)
def test_malformed_requests_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(0x6B, payload)
    assert (refused.value.code, refused.value.closes) == (ErrorCode.INVALID_PAYLOAD, False)


@pytest.mark.parametrize("size", [limits.IDEMPOTENCY_KEY_SIZE_MAX + 1, (1 << 32) - 1])
def test_a_key_that_is_too_long_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"key of {size} bytes, at most") as refused:
        lwp2.parse_request(0x6B, PUBLISH.pack(7, 1, size, 0) + BLOCK)
    assert (refused.value.code, refused.value.closes) == (ErrorCode.LIMIT, False)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        PUBLISHED.pack(1, 1, 1, 1, 0, 0) + b"\0",
        PUBLISHED.pack(1, 1, 1, 1, 2, 0),
        PUBLISHED.pack(1, 1, 1, 1, 0, 1),
        PUBLISHED.pack(0, 1, 1, 1, 0, 0),
        PUBLISHED.pack(2, 1, 1, 1, 0, 0),
    ],
)
def test_malformed_answers_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        lwp2.parse_answer(0x6C, payload)


def test_a_request_larger_than_a_frame_is_refused() -> None:
    space = limits.PAYLOAD_SIZE_MIN - PUBLISH.size
    assert len(PublishKeyed(7, 1, b"key", bytes(space - 3)).encode()) == limits.PAYLOAD_SIZE_MIN
    for key, block in ((b"key", bytes(space - 2)), (bytes(space), b"x")):
        with pytest.raises(LimitError, match="one batch"):
            PublishKeyed(7, 1, key, block).encode()
    with pytest.raises(InvalidInputError):
        PublishKeyed(-1, 1, b"", b"x").encode()


def test_only_clients_of_version_2_may_send_it() -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(0x6C, PUBLISHED.pack(1, 1, 1, 1, 0, 0))
    assert refused.value.code == ErrorCode.UNKNOWN_COMMAND
    for command in (0x6B, 0x6C):
        with pytest.raises(ProtocolError, match="unknown"):
            lwp1_requests.parse_request(command, PublishKeyed(7, 1, b"", BLOCK).encode())
