"""Version 1: every payload both ways, the flags, and what is refused without ending the connection."""

import dataclasses
import json
import zlib
from collections.abc import Callable

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.wire.format.codes import ErrorCode, V1Command, V1Flags, V1Kind
from seawall.wire.format.frames import parse_frame_header, payload_size_max
from seawall.wire.lwp1 import frames as lwp1
from seawall.wire.lwp1 import replies as lwp1_replies
from seawall.wire.lwp1.replies import (
    AuthenticateReply,
    BrokerStatus,
    CatchingUp,
    ClusterStatusReply,
    CommitReply,
    ErrorReply,
    FetchReply,
    Reply,
    Retention,
    RetentionReply,
    SubscribeReply,
    TopicDeletedReply,
    TopicListReply,
    TopicReply,
    leader_redirect,
)
from seawall.wire.lwp1.requests import (
    Authenticate,
    CommitOffset,
    CreateTopic,
    CreateTopicWithRetention,
    DeleteTopic,
    Fetch,
    GetClusterStatus,
    GetTopic,
    ListTopics,
    Request,
    SetRetention,
    Subscribe,
    Unsubscribe,
    parse_request,
    parse_shared_request,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)

REQUESTS = st.one_of(
    st.builds(CreateTopic, NAMES),
    st.builds(DeleteTopic, U32),
    st.just(ListTopics()),
    st.builds(GetTopic, U32),
    st.builds(SetRetention, U32, U64, U64),
    st.builds(CreateTopicWithRetention, NAMES, U64, U64),
    st.just(GetClusterStatus()),
    st.builds(Authenticate, TEXT),
    st.builds(Fetch, U32, U64, U32),
    st.builds(Subscribe, U32, U64, U32, U64),
    st.builds(Unsubscribe, U32, U64),
    st.builds(CommitOffset, U32, U64, U64),
)
RETENTIONS = st.builds(Retention, U64, U64)
TOPICS = st.builds(TopicReply, U32, NAMES, U64, U64, st.none() | RETENTIONS, st.none() | RETENTIONS)
BROKERS = st.builds(
    BrokerStatus, U32, st.lists(st.from_regex(r"[a-z0-9.:]+", fullmatch=True), min_size=1).map(tuple), U32
)
STATUSES = st.builds(
    ClusterStatusReply,
    U64,
    st.booleans(),
    st.none() | U64,
    U32,
    U32,
    U32,
    st.booleans(),
    st.dictionaries(U64, TEXT, max_size=3).map(lambda states: tuple(states.items())),
    st.none() | TEXT,
    st.lists(BROKERS, max_size=3, unique_by=lambda broker: broker.number).map(tuple),
)
ERRORS = st.builds(
    ErrorReply, st.integers(0, 0xFFFF), TEXT, st.dictionaries(TEXT, U64 | TEXT | st.lists(U32, max_size=2), max_size=3)
)
REPLIES: dict[Callable[[bytes], object], st.SearchStrategy[Reply]] = {
    lwp1_replies.parse_authenticate_reply: st.builds(AuthenticateReply, st.booleans(), TEXT),
    lwp1_replies.parse_catching_up: st.builds(CatchingUp, U64),
    lwp1_replies.parse_subscribe_reply: st.builds(SubscribeReply, U64, U64),
    lwp1_replies.parse_commit_reply: st.builds(CommitReply, U64, U64),
    lwp1_replies.parse_topic_reply: TOPICS,
    lwp1_replies.parse_topic_list_reply: st.lists(TOPICS, max_size=3).map(lambda all_: TopicListReply(tuple(all_))),
    lwp1_replies.parse_topic_deleted_reply: st.builds(TopicDeletedReply, U32),
    lwp1_replies.parse_retention_reply: st.builds(RetentionReply, U32, RETENTIONS),
    lwp1_replies.parse_cluster_status_reply: STATUSES,
    lwp1_replies.parse_error_reply: ERRORS,
}


def refused(code: int, parse: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse(*arguments)
    assert (caught.value.code, caught.value.closes, caught.value.answered) == (code, False, True)
    return str(caught.value)


@given(REQUESTS)
def test_request_round_trip(request_: Request) -> None:
    frame = lwp1.encode_request(request_)
    header = parse_frame_header(frame)
    assert (header.kind, header.id, header.command) == (V1Flags.CONTROL, request_.COMMAND, 0)
    assert header.payload_crc == zlib.crc32(frame[44:])
    assert parse_request(header.id, frame[44:]) == request_
    shared = parse_shared_request(header.id, memoryview(frame)[44:])
    assert shared == (request_ if header.id <= V1Command.AUTHENTICATE else None)


@pytest.mark.parametrize("parse", REPLIES, ids=lambda parse: parse.__name__)
@given(data=st.data())
def test_reply_round_trip(parse: Callable[[bytes], object], data: st.DataObject) -> None:
    reply = data.draw(REPLIES[parse])
    frame = lwp1.encode_reply(reply)
    assert parse_frame_header(frame).id == reply.COMMAND
    assert parse(frame[44:]) == reply
    assert parse(memoryview(frame)[44:]) == reply


@given(U64, U32, st.binary(max_size=50), st.binary(max_size=5))
def test_fetch_reply_round_trip(next_offset: int, records: int, data: bytes, rest: bytes) -> None:
    reply = FetchReply(next_offset, records, data)
    start, view = lwp1.encode_fetch_reply(reply)
    assert view is data
    header = parse_frame_header(start)
    payload = start[44:] + data
    assert (header.payload_length, header.payload_crc) == (len(payload), zlib.crc32(payload))
    assert lwp1_replies.parse_fetch_reply(payload + rest) == reply


FIXED = [
    DeleteTopic(3),
    GetTopic(3),
    SetRetention(3, 4, 5),
    Fetch(1, 2, 3),
    Subscribe(1, 2, 3, 4),
    Unsubscribe(1, 2),
    CommitOffset(1, 2, 3),
]


@pytest.mark.parametrize("request_", FIXED, ids=lambda request_: type(request_).__name__)
def test_row_short_control_payload(request_: Request) -> None:
    payload = request_.encode()
    for size in range(len(payload)):
        refused(0x04, parse_request, request_.COMMAND, payload[:size])
    assert parse_request(request_.COMMAND, payload + b"ignored") == request_


def test_create_with_retention_must_match_its_name_length() -> None:
    payload = CreateTopicWithRetention("events", 3600, 0).encode()
    assert payload[:2] == b"\x06\0"
    for size in range(len(payload)):
        refused(0x04, parse_request, 0x06, payload[:size])
    refused(0x04, parse_request, 0x06, payload + b"\0")
    # The u32 length of some published examples is distinguished from a name.
    refused(0x04, parse_request, 0x06, b"\x06\0\0\0" + payload[2:])


@pytest.mark.parametrize("command", [0, 0x09, 0x11, 0x12, 0x13, 0x23, 0x24, 0x80, 0x81, 0xFF, 0x40, 2**64 - 1])
def test_row_unknown_or_server_only_command(command: int) -> None:
    assert "unknown" in refused(0x04, parse_request, command, b"")


@pytest.mark.parametrize("name", [b"", b"x" * 256, b"\xff\xfe"])
def test_topic_name_outside_its_bytes(name: bytes) -> None:
    refused(0x12, parse_request, 0x01, name)
    payload = len(name).to_bytes(2, "little") + name + bytes(16)
    refused(0x12, parse_request, 0x06, payload)


def test_token_bounds() -> None:
    refused(0x04, parse_request, 0x08, b"x" * (limits.TOKEN_SIZE_MAX + 1))
    refused(0x04, parse_request, 0x08, b"\xff")
    with pytest.raises(LimitError):
        Authenticate("x" * (limits.TOKEN_SIZE_MAX + 1)).encode()
    assert "secret" not in repr(Authenticate("secret"))


@pytest.mark.parametrize(
    ("flags", "length", "kind"),
    [
        (0x40, 0, V1Kind.CONTROL),
        (0x7D, 9, V1Kind.CONTROL),
        (0x20, 0, V1Kind.KEEPALIVE),
        (0x3D, 9, V1Kind.KEEPALIVE),
        (0x1C, 0, V1Kind.ACK),
        (0x14, 0, V1Kind.BACKPRESSURE),
        (0x04, 0, V1Kind.INGEST),
        (0x05, 9, V1Kind.INGEST),
        (0x00, 9, V1Kind.INGEST),
        (0x01, 9, V1Kind.INGEST),
        (0x00, 0, V1Kind.IGNORED),
        (0x01, 0, V1Kind.IGNORED),
    ],
)
def test_kind_by_precedence(flags: int, length: int, kind: V1Kind) -> None:
    assert lwp1.frame_kind(flags, length) is kind


@pytest.mark.parametrize("flags", [0x02, 0x80, 0x06, 0x84, 0x42])
def test_row_flags_02_or_80(flags: int) -> None:
    refused(0x04, lwp1.frame_kind, flags, 10)


def ingest(flags: int, payload: bytes) -> lwp1.Ingest:
    frame = lwp1.encode_frame(flags, payload, batch_id=5, topic_id=2, timestamp_ns=7, record_count=99)
    return lwp1.parse_ingest(parse_frame_header(frame), frame[44:])


def test_row_wrong_record_count_and_unframed_payload_are_stored() -> None:
    assert ingest(0x04, b"not records") == lwp1.Ingest(5, 2, 7, b"not records")


def test_compressed_ingest() -> None:
    plain = b"hello" * 50
    packed = lz4.block.compress(plain, store_size=False)
    assert ingest(0x05, packed).payload == plain
    frame = lwp1.encode_ingest(packed, batch_id=1, topic_id=1, timestamp_ns=0, record_count=1, compressed=True)
    header = parse_frame_header(frame)
    assert header.kind == 0x05
    assert lwp1.parse_ingest(header, frame[44:]).payload == plain


def test_row_empty_ingest_and_bad_lz4() -> None:
    refused(0x04, ingest, 0x04, b"")
    refused(0x04, ingest, 0x05, b"")
    refused(0x04, ingest, 0x05, b"\x00")
    refused(0x04, ingest, 0x05, b"\xff\xff\xff")
    with pytest.raises(InvalidInputError):
        lwp1.encode_ingest(b"", batch_id=1, topic_id=1, timestamp_ns=0, record_count=0)


def test_backpressure_frame() -> None:
    header = parse_frame_header(lwp1.encode_backpressure(8))
    assert (header.kind, header.id, header.payload_length) == (0x10, 8, 0)


T = TopicReply(3, "events", 1_700_000_000, 1)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (T, '{"id":3,"name":"events","created_at":1700000000,"topic_epoch":1}'),
        (
            dataclasses.replace(T, retention=Retention(3600, 0)),
            '{"id":3,"name":"events","created_at":1700000000,"topic_epoch":1,'
            '"retention":{"max_age_secs":3600,"max_bytes":0}}',
        ),
        (
            dataclasses.replace(T, created_with=Retention(3600, 0)),
            '{"id":3,"name":"events","created_at":1700000000,"topic_epoch":1,"max_age_secs":3600,"max_bytes":0}',
        ),
        (TopicListReply(()), '{"topics":[]}'),
        (
            TopicListReply((T,)),
            '{"topics":[{"id":3,"name":"events","created_at":1700000000,"topic_epoch":1}]}',
        ),
        (TopicDeletedReply(3), '{"deleted":3}'),
        (RetentionReply(3, Retention(3600, 0)), '{"topic_id":3,"max_age_secs":3600,"max_bytes":0}'),
        (
            ClusterStatusReply(0, True, 0, 0, 1, 1, True, (), "standalone"),
            '{"node_id":0,"is_leader":true,"leader_id":0,"current_term":0,"node_count":1,"healthy_nodes":1,'
            '"quorum_available":true,"peer_states":{},"mode":"standalone"}',
        ),
        (
            ClusterStatusReply(1, False, None, 4, 3, 2, True, ((2, "healthy"),)),
            '{"node_id":1,"is_leader":false,"leader_id":null,"current_term":4,"node_count":3,"healthy_nodes":2,'
            '"quorum_available":true,"peer_states":{"2":"healthy"}}',
        ),
        (
            ClusterStatusReply(
                0, True, 0, 1, 1, 1, True, brokers=(BrokerStatus(0, ("[::1]:1992", "10.0.0.1:1992"), 3),)
            ),
            '{"node_id":0,"is_leader":true,"leader_id":0,"current_term":1,"node_count":1,"healthy_nodes":1,'
            '"quorum_available":true,"peer_states":{},'
            '"brokers":{"0":{"addresses":"[::1]:1992,10.0.0.1:1992","connections":3}}}',
        ),
        (ErrorReply(ErrorCode.TOPIC_NOT_FOUND, "Topic not found"), '{"code":16,"message":"Topic not found"}'),
        (
            ErrorReply(ErrorCode.UNSUPPORTED_VERSION, "Größe", {"supported": [1, 2]}),
            '{"code":6,"message":"Größe","details":{"supported":[1,2]}}',
        ),
        (leader_redirect("10.0.0.1:1992"), "NOT_LEADER: redirect to 10.0.0.1:1992"),
        (leader_redirect(None), "NOT_LEADER: leader unknown"),
    ],
)
def test_exact_text(reply: Reply, text: str) -> None:
    assert reply.encode() == text.encode()


def test_errors_are_json_or_else_text() -> None:
    parse = lwp1_replies.parse_error_reply
    for text in ("NOT_LEADER: leader unknown", "[1]", '{"code":"x","message":"y"}', '{"code":1,"details":3}', ""):
        assert parse(text.encode()) == ErrorReply(None, text)
    refused(0x04, parse, b"\xff")
    assert parse(b'{"code":1,"message":"m","more":2}') == ErrorReply(1, "m")


def test_unknown_keys_are_ignored_and_a_null_policy_is_none() -> None:
    document = json.loads(T.encode()) | {"retention": None, "color": "blue"}
    assert lwp1_replies.parse_topic_reply(json.dumps(document).encode()) == T


@pytest.mark.parametrize(
    ("parse", "payload"),
    [
        (lwp1_replies.parse_authenticate_reply, b""),
        (lwp1_replies.parse_authenticate_reply, b"\x02ok"),
        (lwp1_replies.parse_authenticate_reply, b"\x01\xff"),
        (lwp1_replies.parse_fetch_reply, bytes(15)),
        (lwp1_replies.parse_fetch_reply, bytes(8) + b"\xff\xff\xff\xff" + bytes(20)),
        (lwp1_replies.parse_catching_up, bytes(7)),
        (lwp1_replies.parse_subscribe_reply, bytes(15)),
        (lwp1_replies.parse_commit_reply, bytes(15)),
        (lwp1_replies.parse_topic_reply, b""),
        (lwp1_replies.parse_topic_reply, b"[]"),
        (lwp1_replies.parse_topic_reply, b"\xff"),
        (lwp1_replies.parse_topic_reply, b"{}"),
        (lwp1_replies.parse_topic_reply, T.encode().replace(b'"id":3', b'"id":true')),
        (lwp1_replies.parse_topic_reply, T.encode().replace(b'"id":3', b'"id":4294967296')),
        (lwp1_replies.parse_topic_reply, T.encode().replace(b'"id":3', b'"id":-1')),
        (lwp1_replies.parse_topic_reply, T.encode().replace(b'"id":3', b'"id":' + b"9" * 5000)),
        (lwp1_replies.parse_topic_reply, T.encode().replace(b'"events"', b"7")),
        (lwp1_replies.parse_topic_reply, T.encode()[:-1] + b',"retention":7}'),
        (lwp1_replies.parse_topic_reply, b"[" * 200_000),
        (lwp1_replies.parse_topic_list_reply, b'{"topics":{}}'),
        (lwp1_replies.parse_topic_list_reply, b'{"topics":[7]}'),
        (lwp1_replies.parse_topic_deleted_reply, b'{"deleted":1.5}'),
        (lwp1_replies.parse_retention_reply, b'{"topic_id":1}'),
        (lwp1_replies.parse_cluster_status_reply, b'{"node_id":0}'),
        (
            lwp1_replies.parse_cluster_status_reply,
            ClusterStatusReply(1, True, 1, 1, 1, 1, True, ((1, "up"),)).encode().replace(b'"1":', b'"one":'),
        ),
    ],
)
def test_malformed_reply(parse: Callable[[bytes], object], payload: bytes) -> None:
    refused(0x04, parse, payload)


def test_caller_values_that_do_not_fit() -> None:
    with pytest.raises(InvalidInputError):
        Fetch(2**32, 0, 0).encode()
    with pytest.raises(InvalidInputError):
        CreateTopic("").encode()
    with pytest.raises(InvalidInputError):
        CreateTopic("\ud800").encode()
    with pytest.raises(LimitError):
        CreateTopic("x" * 256).encode()
    with pytest.raises(LimitError):
        ErrorReply(1, "x" * (limits.ERROR_TEXT_SIZE_MAX + 1)).encode()
    with pytest.raises(InvalidInputError):
        ErrorReply(1, "x", {"ratio": float("nan")}).encode()
    with pytest.raises(LimitError):
        FetchReply(0, 0, bytes(limits.V1_FETCH_DATA_SIZE_MAX + 1)).prefix()
    with pytest.raises(LimitError):
        lwp1.encode_frame(0x04, bytes(limits.V1_PAYLOAD_SIZE_MAX + 1))
    assert payload_size_max(1, 0x04, 0) == limits.V1_PAYLOAD_SIZE_MAX


def test_the_largest_fetch_reply_frame_is_16_mib() -> None:
    start, data = lwp1.encode_fetch_reply(FetchReply(0, 1, bytes(limits.V1_FETCH_DATA_SIZE_MAX)))
    assert len(start) + len(data) == 16 * limits.MIB
