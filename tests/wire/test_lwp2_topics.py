"""Topic commands of version 2: payloads round-trip, and malformed ones are refused without ending the connection."""

from __future__ import annotations

import pytest

from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.limits import TOPIC_SETTINGS_SIZE_MAX
from seawall.wire.format.codes import Command, ErrorCode
from seawall.wire.lwp1.replies import TopicReply, parse_topic_reply
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.topics import (
    RecordsDelete,
    RecordsDeleted,
    TopicConfigure,
    TopicCreate,
    TopicDescribe,
    TopicFind,
    TopicRequest,
)

REQUESTS: list[TopicRequest] = [
    TopicCreate("events", {}),
    TopicCreate("events", {"order": 5, "dead_letter": None, "durability": "disk"}),
    TopicConfigure(7, {"ttl_ms": 1}),
    TopicDescribe(7),
    TopicFind("events"),
    RecordsDelete(7, before_seq=9),
    RecordsDelete(7, tag="täg"),
    RecordsDelete(7, tag=""),
    RecordsDelete(7, before_seq=9, tag_prefix="t"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_requests_round_trip(request_: TopicRequest) -> None:
    assert lwp2.parse_request(request_.COMMAND, request_.encode()) == request_


def test_payloads_have_the_documented_bytes() -> None:
    assert TopicCreate("ab", {"order": 5}).encode() == b'\x02\0ab{"order":5}'
    assert TopicConfigure(7, {}).encode() == b"\x07\0\0\0{}"
    assert RecordsDelete(7, before_seq=9, tag="t").encode().hex() == "0700000003000100090000000000000074"
    assert [int(request.COMMAND) for request in REQUESTS] == [0x60, 0x60, 0x61, 0x62, 0x63, *[0x64] * 4]
    assert lwp2.parse_answer(0x65, RecordsDeleted(3).encode()) == RecordsDeleted(3)
    assert lwp2.parse_request(0x60, b"\x02\0ab") == TopicCreate("ab", {})


def test_a_topic_reply_round_trips() -> None:
    reply = TopicReply(3, "events", 5, 1, record_count=2, byte_count=9, span=(4, 6), settings={"order": 5})
    assert parse_topic_reply(reply.encode()) == reply
    assert reply.encode().endswith(b'"records":2,"bytes":9,"floor":4,"next_seq":6,"settings":{"order":5}}')


@pytest.mark.parametrize(
    ("command", "payload", "code"),
    [
        (0x60, b"", ErrorCode.INVALID_PAYLOAD),
        (0x60, b"\x03\0ab", ErrorCode.INVALID_PAYLOAD),
        (0x60, b"\0\0{}", ErrorCode.TOPIC_NAME),
        (0x60, b"\x02\0\xff\xfe{}", ErrorCode.TOPIC_NAME),
        (0x60, b"\x02\0ab[]", ErrorCode.INVALID_PAYLOAD),
        (0x60, b"\x02\0ab{" + b"[" * 9_000, ErrorCode.INVALID_PAYLOAD),
        (0x60, b"\x02\0ab" + b" " * (TOPIC_SETTINGS_SIZE_MAX - 1) + b"{}", ErrorCode.INVALID_PAYLOAD),
        (0x61, b"\x07\0\0", ErrorCode.INVALID_PAYLOAD),
        (0x61, b"\x07\0\0\0", ErrorCode.INVALID_PAYLOAD),
        (0x62, b"\x07\0\0\0\0", ErrorCode.INVALID_PAYLOAD),
        (0x63, b"", ErrorCode.TOPIC_NAME),
        (0x63, b"x" * 256, ErrorCode.TOPIC_NAME),
        (0x64, bytes(15), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes(16), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("07000000060000000000000000000000"), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("07000000080000000000000000000000"), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("07000000010100000900000000000000"), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("07000000020000000900000000000000"), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("0700000001000100090000000000000074"), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("0700000002000200000000000000000074"), ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("07000000020001010000000000000000") + b"t" * 257, ErrorCode.INVALID_PAYLOAD),
        (0x64, bytes.fromhex("07000000020001000000000000000000ff"), ErrorCode.INVALID_PAYLOAD),
        (0x65, bytes(8), ErrorCode.UNKNOWN_COMMAND),
    ],
)
def test_malformed_requests_are_refused_without_ending_the_connection(
    command: int, payload: bytes, code: ErrorCode
) -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(command, payload)
    assert (refused.value.code, refused.value.closes) == (code, False)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (TopicCreate("", {}), InvalidInputError),
        (TopicCreate("events", {"dead_letter": "x" * TOPIC_SETTINGS_SIZE_MAX}), LimitError),
        (TopicConfigure(-1, {}), InvalidInputError),
        (RecordsDelete(1), InvalidInputError),
        (RecordsDelete(1, tag="a", tag_prefix="a"), InvalidInputError),
        (RecordsDelete(1, before_seq=-1), InvalidInputError),
    ],
    ids=repr,
)
def test_unencodable_values_are_errors_of_the_caller(request_: TopicRequest, error: type[Exception]) -> None:
    with pytest.raises(error):
        request_.encode()


def test_version_1_refuses_topic_commands() -> None:
    from seawall.wire.lwp1 import requests as lwp1_requests

    for command in range(Command.TOPIC_CREATE, Command.RECORDS_DELETED + 1):
        with pytest.raises(ProtocolError, match="unknown"):
            lwp1_requests.parse_request(command, bytes(24))
