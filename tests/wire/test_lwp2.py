"""Version 2: every payload encoded and parsed, truncated, too long, and with nonzero reserved bytes."""

import dataclasses
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import ChecksumError, CorruptionError, InvalidInputError, LimitError, ProtocolError
from seawall.wire.format.batches import BatchHeader, batch_header, encode_batch
from seawall.wire.format.codes import (
    ALL_TOPICS,
    POSITION_UNKNOWN,
    AckLevel,
    AckStatus,
    Command,
    DataFlags,
    ErrorClass,
    ErrorCode,
    GapReason,
    GapUnit,
    HelloFlags,
    Kind,
    ReadBy,
    ReadFlags,
    SessionStatus,
)
from seawall.wire.format.frames import checksum, header_crc_v2, parse_frame_header, payload_size_max
from seawall.wire.format.records import Record, encode_block
from seawall.wire.lwp1.replies import TopicDeletedReply
from seawall.wire.lwp1.requests import CreateTopic, GetTopic
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.reading import (
    Bounds,
    BoundsReply,
    Commit,
    Committed,
    DataPrefix,
    Fetch,
    Gap,
    iter_chunks,
    parse_data_prefix,
)
from seawall.wire.lwp2.session import (
    Ack,
    AckEntry,
    Error,
    Goodbye,
    Hello,
    Welcome,
    choose_version,
    parse_ack,
    parse_hello,
)
from seawall.wire.lwp2.subscriptions import CaughtUp, Credit, Subscribe, Subscribed, Unsubscribe, Unsubscribed

U64 = st.integers(0, 2**64 - 1)
POSITIVE = st.integers(1, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
U16 = st.integers(0, 0xFFFF)
SIZES = st.integers(limits.PAYLOAD_SIZE_MIN, limits.PAYLOAD_SIZE_MAX)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TOPIC = st.integers(0, ALL_TOPICS - 1)
READ_FLAGS = st.integers(0, 3).map(lambda bits: ReadFlags(bits << 1))
HELLO_FLAGS = st.sampled_from([0, 1, 2, 3, 4, 6]).map(HelloFlags)

HELLOS = st.builds(
    Hello,
    st.integers(1, 2),
    st.integers(2, 255),
    HELLO_FLAGS,
    SIZES,
    U64,
    POSITIVE,
    POSITIVE,
    POSITIVE,
    U32,
    U32,
    U32,
    TEXT,
    TEXT,
)
WELCOMES = st.builds(
    Welcome,
    st.just(2),
    st.sampled_from(SessionStatus),
    SIZES,
    U64,
    U64,
    U64,
    U64,
    U32,
    U32,
    U32,
    U32,
    U64,
    U64,
    U32,
)
ERRORS = st.builds(Error, U16, st.sampled_from(ErrorClass), st.booleans(), TEXT, U32, U64, U32)
FETCHES = st.builds(
    Fetch, TOPIC, st.sampled_from(ReadBy), POSITIVE, U32, U32, U32, st.integers(0, limits.FETCH_WAIT_MS_MAX), READ_FLAGS
)
SUBSCRIBES = st.builds(Subscribe, TOPIC, st.sampled_from(ReadBy), U64, U64, U64, U32, U32, POSITIVE, READ_FLAGS)
RANGES = st.tuples(U64, U64).map(sorted)
GAPS = st.builds(
    lambda range_, **rest: Gap(first=range_[0], last=range_[1], **rest),
    RANGES,
    topic_id=U32,
    reason=st.sampled_from(GapReason),
    unit=st.sampled_from(GapUnit),
    client_id=U64,
    position=U64,
    at_ns=U64,
)
REQUESTS = st.one_of(
    HELLOS,
    st.builds(Goodbye, U16, U32),
    FETCHES,
    SUBSCRIBES,
    st.builds(Credit, U64, U64),
    st.just(Unsubscribe()),
    st.builds(Commit, U32, U64, U64, U64),
    st.builds(Bounds, U32),
    st.builds(GetTopic, U32),
)
ANSWERS = st.one_of(
    WELCOMES,
    st.builds(Goodbye, U16, U32),
    st.builds(Subscribed, U32, U64, U64, U64, U64),
    st.builds(Unsubscribed, U64, U64),
    GAPS,
    st.builds(CaughtUp, U64, U64),
    st.builds(Committed, U32, U64, U64, U64),
    st.builds(BoundsReply, *[U64] * 8),
    ERRORS,
)
ENTRIES = st.builds(
    AckEntry,
    st.just(0),
    U64,
    U64 | st.just(POSITION_UNKNOWN),
    U64,
    U32,
    st.just(1),
    U32,
    st.sampled_from([AckStatus.REJECTED, AckStatus.UNKNOWN, AckStatus.RETRY]),
    st.sampled_from(AckLevel),
    U16,
) | st.builds(
    AckEntry, st.just(0), U64, U64, U64, U32, st.integers(1, 256), U32, st.just(AckStatus.OK), st.sampled_from(AckLevel)
)


def numbered(entries: list[AckEntry]) -> tuple[AckEntry, ...]:
    return tuple(dataclasses.replace(entry, client_seq=index + 1) for index, entry in enumerate(entries))


ACKS = st.builds(Ack, U64, U32, U32, st.lists(ENTRIES, max_size=4).map(numbered))


def refused(code: int, parse: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse(*arguments)
    assert (caught.value.code, caught.value.closes, caught.value.answered) == (code, False, True)
    return str(caught.value)


@given(REQUESTS, U64, U64)
def test_request_round_trip(request_: lwp2.Request, request_id: int, timestamp_ns: int) -> None:
    frame = lwp2.encode_control(request_, request_id=request_id, timestamp_ns=timestamp_ns)
    header = parse_frame_header(frame)
    assert (header.kind, header.command, header.id) == (Kind.CONTROL, request_.COMMAND, request_id)
    assert header.timestamp_ns == timestamp_ns
    assert header_crc_v2(frame[:44]) == int.from_bytes(frame[8:12], "little")
    assert header.payload_crc == checksum(frame[44:])
    assert lwp2.parse_request(header.command, frame[44:]) == request_
    assert lwp2.parse_request(header.command, memoryview(frame)[44:]) == request_


@given(ANSWERS, U64)
def test_answer_round_trip(answer: lwp2.Answer, request_id: int) -> None:
    frame = lwp2.encode_control(answer, request_id=request_id)
    assert lwp2.parse_answer(parse_frame_header(frame).command, memoryview(frame)[44:]) == answer


@given(ACKS, U64)
def test_ack_round_trip(ack: Ack, through: int) -> None:
    frame = lwp2.encode_ack(ack, through=through)
    header = parse_frame_header(frame)
    assert (header.kind, header.id, header.record_count) == (Kind.ACK, through, len(ack.entries))
    assert parse_ack(frame[44:], header.record_count) == ack


#: One payload of each kind, with the bytes that must be 0 in it.
SAMPLES: list[tuple[lwp2.Request | lwp2.Answer, list[int]]] = [
    (Hello(token="token", name="name"), []),
    (Welcome(2, SessionStatus.NEW, limits.PAYLOAD_SIZE_MIN, 3, 7, 1, 1, 256, 9, 10, 30, 1, 5, 2), [2, 3, 76, 79]),
    (Goodbye(0x70, 1000), [2, 3]),
    (Error(0x10, ErrorClass.CALLER, False, "no such topic"), [22, 23]),
    (Fetch(1, ReadBy.SEQ, 1, 65_536, 100), [28, 31]),
    (Subscribe(1, ReadBy.EARLIEST, 0, 1, 2, 3), [6, 7]),
    (Subscribed(1, 2, 3, 4, 5), [4, 7]),
    (Credit(1, 2), []),
    (Unsubscribe(), []),
    (Unsubscribed(1, 2), []),
    (Gap(1, GapReason.CRASH, GapUnit.TOPIC_SEQ, 5, 9, 0, 3, 4), [6, 7]),
    (CaughtUp(1, 2), []),
    (Commit(1, 2, 3, 4), [4, 7]),
    (Committed(1, 2, 3, 4), [4, 7]),
    (Bounds(1), [4, 7]),
    (BoundsReply(1, 2, 3, 4, 5, 6, 7, 8), []),
]
NAMES = [type(sample).__name__ for sample, _ in SAMPLES]
LENGTHS = {
    "Hello": 65, "Welcome": 80, "Goodbye": 8, "Error": 37, "Fetch": 32, "Subscribe": 48, "Subscribed": 40,
    "Credit": 16, "Unsubscribe": 0, "Unsubscribed": 16, "Gap": 48, "CaughtUp": 16, "Commit": 32, "Committed": 32,
    "Bounds": 8, "BoundsReply": 64,
}  # fmt: skip


def parser_of(sample: lwp2.Request | lwp2.Answer) -> Callable[[int, bytes], object]:
    try:
        lwp2.parse_request(sample.COMMAND, sample.encode())
    except ProtocolError:
        return lwp2.parse_answer
    return lwp2.parse_request


@pytest.mark.parametrize(("sample", "zeros"), SAMPLES, ids=NAMES)
def test_row_short_or_malformed_control_payload(sample: lwp2.Request | lwp2.Answer, zeros: list[int]) -> None:
    parse, payload = parser_of(sample), sample.encode()
    assert len(payload) == LENGTHS[type(sample).__name__]
    for size in range(len(payload)):
        refused(0x04, parse, sample.COMMAND, payload[:size])
    refused(0x04, parse, sample.COMMAND, payload + b"\0")
    for at in zeros:
        damaged = bytearray(payload)
        damaged[at] = 1
        assert "reserved" in refused(0x04, parse, sample.COMMAND, damaged)


@pytest.mark.parametrize("sample", [sample for sample, _ in SAMPLES], ids=NAMES)
def test_one_damaged_byte_gives_a_payload_or_a_typed_error(sample: lwp2.Request | lwp2.Answer) -> None:
    parse, payload = parser_of(sample), sample.encode()
    for at in range(len(payload)):
        for bit in (0x01, 0x08, 0x80):
            damaged = bytearray(payload)
            damaged[at] ^= bit
            try:
                parsed = parse(sample.COMMAND, damaged)
            except ProtocolError:
                continue
            assert parsed != sample


@pytest.mark.parametrize("command", [0, 0x09, 0x41, 0x51, 0x53, 0x54, 0x57, 0x58, 0x59, 0x5B, 0x5D, 0x80, 0xFF, 0x10])
def test_row_unknown_or_server_only_command(command: int) -> None:
    refused(0x07, lwp2.parse_request, command, b"")


@pytest.mark.parametrize("command", [0, 0x01, 0x40, 0x50, 0x52, 0x55, 0x56, 0x5A, 0x5C])
def test_unknown_or_client_only_command_in_an_answer(command: int) -> None:
    refused(0x07, lwp2.parse_answer, command, b"")


def test_shared_commands_keep_their_v1_payloads() -> None:
    assert lwp2.parse_request(0x01, b"events") == CreateTopic("events")
    refused(0x04, lwp2.parse_request, 0x02, b"\0")
    refused(0x12, lwp2.parse_request, 0x01, b"")
    frame = lwp2.encode_control(TopicDeletedReply(3), request_id=4)
    header = parse_frame_header(frame)
    assert (header.command, header.id, frame[44:]) == (0x80, 4, b'{"deleted":3}')


def hello_with(at: int, value: bytes) -> bytes:
    payload = bytearray(Hello(flags=HelloFlags.OPEN, token="t", name="n").encode())
    payload[at : at + len(value)] = value
    return bytes(payload)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\0"),
        (0, b"\x03\x02"),
        (2, b"\x08"),
        (2, b"\x05"),
        (2, b"\x04"),
        (4, struct.pack("<I", limits.PAYLOAD_SIZE_MIN - 1)),
        (4, struct.pack("<I", limits.PAYLOAD_SIZE_MAX + 1)),
        (32, bytes(8)),
        (48, struct.pack("<H", limits.TOKEN_SIZE_MAX + 1)),
        (50, struct.pack("<H", limits.CLIENT_NAME_SIZE_MAX + 1)),
        (48, b"\x02"),
        (56, b"\xff"),
        (57, b"\xff"),
    ],
    ids=[
        "version 0", "versions swapped", "unknown flag", "open and join", "join without client", "payload too small",
        "payload too large", "start_seq 0", "token too long", "name too long", "lengths do not add up",
        "token is not UTF-8", "name is not UTF-8",
    ],
)  # fmt: skip
def test_malformed_hello(at: int, value: bytes) -> None:
    refused(0x04, parse_hello, hello_with(at, value))


def test_join_names_client_and_epoch() -> None:
    join = Hello(flags=HelloFlags.JOIN, client_id=7, session_epoch=3)
    assert parse_hello(join.encode()) == join
    refused(0x04, parse_hello, dataclasses.replace(join, session_epoch=0).encode())
    refused(0x04, parse_hello, dataclasses.replace(join, client_id=0).encode())
    refused(0x04, parse_hello, dataclasses.replace(join, flags=HelloFlags.OPEN | HelloFlags.JOIN).encode())


def test_hello_ignores_unknown_features_and_hides_its_token() -> None:
    hello = Hello(features=2**63, token="secret")
    assert parse_hello(hello.encode()).features == 2**63
    assert "secret" not in repr(hello)


@pytest.mark.parametrize("versions", [(1, 1), (3, 9)])
def test_no_common_version_ends_the_connection(versions: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError) as caught:
        choose_version(parse_hello(Hello(*versions).encode()))
    assert (caught.value.code, caught.value.closes) == (0x06, True)
    assert choose_version(Hello(1, 3)) == 2


def test_welcome_with_unknown_status_or_payload_bound() -> None:
    payload = bytearray(SAMPLES[1][0].encode())
    payload[1] = 6
    assert "RESUMED" in refused(0x04, lwp2.parse_answer, Command.WELCOME, payload)
    payload[1] = 1
    payload[4:8] = bytes(4)
    refused(0x04, lwp2.parse_answer, Command.WELCOME, payload)


ENTRY = AckEntry(5, 1, 0, 9, 1, 1, 1, AckStatus.OK, AckLevel.DURABLE)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (16 + 36, bytes(4)),
        (16 + 44, b"\x05"),
        (16 + 45, b"\x03"),
        (16 + 46, b"\x01"),
        (64 + 36, b"\x02"),
        (64, b"\x04"),
    ],
    ids=["run 0", "status 5", "level 3", "reason of OK", "run of rejected", "order"],
)
def test_malformed_ack(at: int, value: bytes) -> None:
    rejected = dataclasses.replace(ENTRY, client_seq=6, status=AckStatus.REJECTED, reason=0x28)
    payload = bytearray(Ack(3, 256, 1, (ENTRY, rejected)).encode())
    parse_ack(payload, 2)
    payload[at : at + len(value)] = value
    refused(0x04, parse_ack, payload, 2)


def test_ack_length_must_match_its_count() -> None:
    payload = Ack(3, 256, 1, (ENTRY,)).encode()
    for size in range(len(payload)):
        refused(0x04, parse_ack, payload[:size], 1)
    refused(0x04, parse_ack, payload, 2)
    refused(0x04, parse_ack, payload, 0)
    refused(0x04, parse_ack, b"", 2**32 - 1)


def test_the_encoder_of_acks_enforces_the_rules_of_the_parser() -> None:
    for entry in (dataclasses.replace(ENTRY, run=0), dataclasses.replace(ENTRY, reason=1)):
        with pytest.raises(InvalidInputError):
            Ack(3, 256, 1, (entry,)).encode()


def test_a_second_entry_of_the_same_batch_may_follow() -> None:
    # Order 0 acks early; a later refusal of the same batch is a second entry.
    ack = Ack(3, 256, 1, (ENTRY, dataclasses.replace(ENTRY, status=AckStatus.REJECTED, reason=0x10)))
    assert parse_ack(ack.encode(), 2) == ack


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        (Command.FETCH, struct.pack("<IBBHQIIII", 1, 7, 0, 0, 1, 1, 1, 0, 0)),
        (Command.FETCH, struct.pack("<IBBHQIIII", 1, 0, 1, 0, 1, 1, 1, 0, 0)),
        (Command.FETCH, struct.pack("<IBBHQIIII", 1, 0, 0, 30_001, 1, 1, 1, 0, 0)),
        (Command.FETCH, struct.pack("<IBBHQIIII", ALL_TOPICS, 0, 0, 0, 1, 1, 1, 0, 0)),
        (Command.FETCH, struct.pack("<IBBHQIIII", 1, 6, 0, 0, 0, 1, 1, 0, 0)),
        (Command.SUBSCRIBE, struct.pack("<IBBHQQQQII", 1, 6, 0, 0, 1, 0, 1, 1, 1, 0)),
        (Command.SUBSCRIBE, struct.pack("<IBBHQQQQII", ALL_TOPICS, 3, 0, 0, 1, 0, 1, 1, 1, 0)),
        (Command.SUBSCRIBE, struct.pack("<IBBHQQQQII", 1, 0, 8, 0, 1, 0, 1, 1, 1, 0)),
    ],
    ids=[
        "fetch by 7", "fetch flag 1", "wait over 30 s", "all topics by seq", "committed without consumer",
        "subscribe committed without consumer", "subscribe to all by offset", "subscribe flag 8",
    ],
)  # fmt: skip
def test_malformed_read(command: Command, payload: bytes) -> None:
    refused(0x04, lwp2.parse_request, command, payload)


@pytest.mark.parametrize("by", [ReadBy.POSITION, ReadBy.TIME, ReadBy.EARLIEST, ReadBy.LATEST])
def test_all_topics_are_read_in_position_order(by: ReadBy) -> None:
    fetch = Fetch(ALL_TOPICS, by, 0, 1, 1)
    assert lwp2.parse_request(Command.FETCH, fetch.encode()) == fetch


def test_malformed_gap() -> None:
    good = Gap(1, GapReason.TTL, GapUnit.POSITION, 5, 5, 0, 0, 0).encode()
    for at, value in ((4, 0), (4, 8), (5, 3), (8, 6)):
        damaged = bytearray(good)
        damaged[at] = value
        refused(0x04, lwp2.parse_answer, Command.GAP, damaged)


def test_error_with_unknown_code_is_read_and_with_unknown_class_is_not() -> None:
    payload = bytearray(Error(0x7777, ErrorClass.RETRYABLE, True, "later", 250, 4, 1).encode())
    assert lwp2.parse_answer(Command.ERROR, payload) == Error(0x7777, ErrorClass.RETRYABLE, True, "later", 250, 4, 1)
    for at, value in ((2, 5), (3, 2), (24, 0xFF)):
        damaged = bytearray(payload)
        damaged[at] = value
        refused(0x04, lwp2.parse_answer, Command.ERROR, damaged)


def test_caller_values_that_do_not_fit() -> None:
    for wrong in (
        lambda: Hello(max_payload=1).encode(),
        lambda: dataclasses.replace(SAMPLES[1][0], max_payload=2**31).encode(),
        lambda: Hello(token="x" * 4097).encode(),
        lambda: Hello(name="ä" * 128).encode(),
        lambda: Error(1, ErrorClass.FATAL, True, "x" * 4097).encode(),
        lambda: lwp2.encode_data_start(
            Command.DATA, PREFIX, request_id=1, record_count=1, chunks_length=limits.PAYLOAD_SIZE_MAX + 97
        ),
    ):
        with pytest.raises(LimitError):
            wrong()
    for wrong in (
        lambda: Fetch(1, ReadBy.SEQ, 1, 1, 1, wait_ms=30_001).encode(),
        lambda: Subscribe(1, ReadBy.COMMITTED, 0, 1, 1, 1).encode(),
        lambda: Gap(1, GapReason.CAP, GapUnit.TOPIC_SEQ, 2, 1, 0, 0, 0).encode(),
        lambda: PREFIX._replace(first_seq=9).encode(),
        lambda: Commit(-1, 0, 0, 0).encode(),
        lambda: lwp2.encode_data_start(Command.GAP, PREFIX, request_id=1, record_count=1, chunks_length=0),
    ):
        with pytest.raises(InvalidInputError):
            wrong()


def stored_batch(seq: int, count: int) -> tuple[BatchHeader, bytes]:
    block = encode_block([Record(1, b"hello")] * count)
    header = batch_header(
        block, topic_id=1, client_id=7, client_seq=seq, session_epoch=1, record_count=count, timestamp_ns=5
    )
    header = dataclasses.replace(header, base_seq=seq, position=seq)
    return header, encode_batch(header, block)


PREFIX = DataPrefix(1, DataFlags.CAUGHT_UP, 2, 1, 4, 9, 4, 1)
CHUNKS = [stored_batch(1, 1), stored_batch(2, 2)]
RUN = b"".join(data for _, data in CHUNKS)


def data_payload(prefix: DataPrefix = PREFIX, run: bytes = RUN) -> bytes:
    start = lwp2.encode_data_start(Command.FETCH_DATA, prefix, request_id=6, record_count=3, chunks_length=len(run))
    header = parse_frame_header(start)
    assert (header.payload_crc, header.record_count, header.id) == (0, 3, 6)
    assert header.payload_length == len(start) - 44 + len(run)
    return start[44:] + run


def test_data_carries_whole_stored_batches() -> None:
    payload = data_payload()
    assert parse_data_prefix(payload) == PREFIX
    found = list(iter_chunks(payload, 3))
    assert [header for header, _ in found] == [header for header, _ in CHUNKS]
    assert b"".join(header.header_bytes() + block for header, block in found) == RUN


def test_empty_data() -> None:
    empty = DataPrefix(1, DataFlags.CAUGHT_UP, 0, 4, 4, 9, 4, 1)
    assert list(iter_chunks(data_payload(empty, b""), 0)) == []


def test_data_counts_must_match() -> None:
    refused(0x04, lambda: list(iter_chunks(data_payload(), 4)))
    refused(0x04, lambda: list(iter_chunks(data_payload(PREFIX._replace(chunk_count=3)), 3)))


def test_data_cut_or_damaged_gives_only_typed_errors() -> None:
    payload = data_payload()
    for size in range(len(payload)):
        with pytest.raises((ProtocolError, CorruptionError)):
            list(iter_chunks(payload[:size], 3))
    for at in range(48, len(payload)):
        damaged = bytearray(payload)
        damaged[at] ^= 0x40
        with pytest.raises(CorruptionError):
            list(iter_chunks(damaged, 3))
    damaged = bytearray(payload)
    damaged[-1] ^= 1
    with pytest.raises(ChecksumError):
        list(iter_chunks(damaged, 3))


@pytest.mark.parametrize(("at", "value"), [(4, 8), (5, 1), (8, 5)], ids=["flag 8", "reserved", "first above next"])
def test_malformed_data_prefix(at: int, value: int) -> None:
    payload = bytearray(data_payload())
    payload[at] = value
    refused(0x04, parse_data_prefix, payload)


def test_payload_bounds_by_kind() -> None:
    agreed = 16 * limits.MIB
    assert payload_size_max(2, Kind.BATCH, 0) == agreed + 52
    assert payload_size_max(2, Kind.CONTROL, Command.DATA) == agreed + 144
    assert payload_size_max(2, Kind.CONTROL, Command.FETCH_DATA, 64 * limits.MIB) == 64 * limits.MIB + 144
    assert payload_size_max(2, Kind.CONTROL, Command.HELLO) == agreed
    assert payload_size_max(2, Kind.ACK, 0) == agreed


def test_error_codes_have_one_class_each() -> None:
    retryable = {0x14, 0x20, 0x21, 0x22, 0x23, 0x30, 0x31, 0x62, 0x70}
    for code in ErrorCode:
        assert code.is_retryable is (code in retryable)
        assert code.is_retryable is (code.error_class is ErrorClass.RETRYABLE)
    assert ErrorCode.OUTCOME_UNKNOWN.error_class is ErrorClass.OUTCOME_UNKNOWN
    assert ErrorCode.CRC_MISMATCH.error_class is ErrorClass.CORRUPTION
    assert ErrorCode.READ_ONLY.error_class is ErrorClass.FATAL
    assert ErrorCode.FENCED.error_class is ErrorClass.CALLER


@pytest.mark.parametrize(
    ("header", "code", "answered"),
    [(b"GET / HTTP/1.1".ljust(44), 0x02, False), (b"LANC\x03".ljust(44), 0x06, True), (b"LANC\x02", 0x04, False)],
    ids=["bad magic", "version not 1 or 2", "short"],
)
def test_row_frame_header(header: bytes, code: int, answered: bool) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_frame_header(header)
    assert (caught.value.code, caught.value.closes, caught.value.answered) == (code, True, answered)


def test_v1_reserved_bytes_are_ignored() -> None:
    frame = b"LANC\x01\x20\xff\xff" + bytes(36)
    assert parse_frame_header(frame).command == 0
