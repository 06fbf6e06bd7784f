"""Version 2 payloads of the session life cycle: HELLO, WELCOME, GOODBYE, ACK and ERROR.

HELLO is the first frame of a connection, 56 bytes and two strings; WELCOME is its answer, 80 bytes:

| at | HELLO                                         | at | WELCOME                                   |
|----|-----------------------------------------------|----|-------------------------------------------|
| 0  | min_version u8, max_version u8                | 0  | version u8                                |
| 2  | flags u16 (`HelloFlags`)                      | 1  | status u8 (`SessionStatus`), 0 u16        |
| 4  | max_payload u32, 16 to 64 MiB                 | 4  | max_payload u32, 16 to 64 MiB             |
| 8  | features offered u64                          | 8  | features agreed u64                       |
| 16 | client_id u64, 0 = assign one                 | 16 | client_id u64                             |
| 24 | session_epoch u64 last known, 0 = none        | 24 | session_epoch u64 granted                 |
| 32 | start_seq u64, from 1                         | 32 | next_seq u64: lowest not decided          |
| 40 | window_batches u32 wanted                     | 40 | window_batches u32, window_bytes u32      |
| 44 | keepalive_ms u32, 0 = 10,000                  | 48 | keepalive_ms u32, idle_ms u32             |
| 48 | token length u16, name length u16             | 56 | term u64, server_time_ns u64              |
| 52 | gap_timeout_ms u32, 0 = while it lives        | 72 | node_id u32, 0 u32                        |
| 56 | token, client name (UTF-8)                    |    |                                           |

GOODBYE, 8 bytes: code u16, 0 u16, drain_ms u32.
ACK: session_epoch u64, window_batches u32, window_bytes u32, then record_count entries of 48 bytes: client_seq u64,
base_seq u64, position u64, timestamp_ns u64, topic u32, run u32, records u32, status u8, level u8, reason u16.
ERROR, 24 bytes and a text: code u16, class u8, closes u8, retry_after_ms u32, ref u64, topic u32, text length u16,
0 u16.

A payload is valid if it has exactly this length, zeros in fields specified as 0, known flags and codes, and if:
- HELLO does not open and join at once, and a join names client and epoch;
- ACK entries are in client_seq order, a run covers at least one batch, and more than one only with status OK, and only
  statuses from REJECTED up have a reason.
Features may have unknown bits, since both sides use the common ones. An error code may be unknown, since its class
decides what to do. Other payloads are refused with error 04; the connection stays open. If there is no common version,
the server sends error 06 and closes the connection.

This module must not know which sessions exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final

from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, Term, TimestampNs, TopicId
from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.limits import (
    CLIENT_NAME_SIZE_MAX,
    ERROR_TEXT_SIZE_MAX,
    PAYLOAD_SIZE_MAX,
    PAYLOAD_SIZE_MIN,
    TOKEN_SIZE_MAX,
)
from seawall.wire.format.codes import (
    VERSION_2,
    AckLevel,
    AckStatus,
    Command,
    ErrorClass,
    ErrorCode,
    HelloFlags,
    SessionStatus,
)
from seawall.wire.format.fields import (
    Buffer,
    malformed,
    pack,
    read_enum,
    read_flags,
    read_text,
    require_at_least,
    require_exact,
    require_zero,
    write_text,
)

_HELLO: Final = Struct("<BBHIQQQQIIHHI")
_WELCOME: Final = Struct("<BBHIQQQQIIIIQQII")
_GOODBYE: Final = Struct("<HHI")
_ACK: Final = Struct("<QII")
_ACK_ENTRY: Final = Struct("<QQQQIIIBBH")
_ERROR: Final = Struct("<HBBIQIHH")

_NO_CLIENT: Final = ClientId(0)
_NO_EPOCH: Final = SessionEpoch(0)
_FIRST_SEQ: Final = ClientSeq(1)
_NO_TOPIC: Final = TopicId(0)

assert (_HELLO.size, _WELCOME.size, _GOODBYE.size) == (56, 80, 8)
assert (_ACK.size, _ACK_ENTRY.size, _ERROR.size) == (16, 48, 24)


@dataclass(frozen=True, slots=True)
class Hello:
    """The identity of a client, and the session and features that it requests."""

    COMMAND: ClassVar[Command] = Command.HELLO
    min_version: int = VERSION_2
    max_version: int = VERSION_2
    flags: HelloFlags = HelloFlags.NONE
    max_payload: int = PAYLOAD_SIZE_MIN
    features: int = 0
    client_id: ClientId = _NO_CLIENT
    session_epoch: SessionEpoch = _NO_EPOCH
    start_seq: ClientSeq = _FIRST_SEQ
    window_batches: int = 0
    keepalive_ms: int = 0
    gap_timeout_ms: int = 0
    token: str = field(default="", repr=False)
    name: str = ""

    def encode(self) -> bytes:
        """The payload."""
        if not PAYLOAD_SIZE_MIN <= self.max_payload <= PAYLOAD_SIZE_MAX:
            raise LimitError(f"max_payload {self.max_payload}, {PAYLOAD_SIZE_MIN} to {PAYLOAD_SIZE_MAX}")
        token = write_text(self.token, TOKEN_SIZE_MAX, "token")
        name = write_text(self.name, CLIENT_NAME_SIZE_MAX, "client name")
        fixed = pack(
            _HELLO,
            "HELLO",
            self.min_version,
            self.max_version,
            self.flags,
            self.max_payload,
            self.features,
            self.client_id,
            self.session_epoch,
            self.start_seq,
            self.window_batches,
            self.keepalive_ms,
            len(token),
            len(name),
            self.gap_timeout_ms,
        )
        return fixed + token + name


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session, features and limits that the server grants."""

    COMMAND: ClassVar[Command] = Command.WELCOME
    version: int
    status: SessionStatus
    max_payload: int
    features: int
    client_id: ClientId
    session_epoch: SessionEpoch
    next_seq: ClientSeq
    window_batches: int
    window_bytes: int
    keepalive_ms: int
    idle_ms: int
    term: Term
    server_time_ns: TimestampNs
    node_id: int

    def encode(self) -> bytes:
        """The payload."""
        if not PAYLOAD_SIZE_MIN <= self.max_payload <= PAYLOAD_SIZE_MAX:
            raise LimitError(f"max_payload {self.max_payload}, {PAYLOAD_SIZE_MIN} to {PAYLOAD_SIZE_MAX}")
        return pack(
            _WELCOME,
            "WELCOME",
            self.version,
            self.status,
            0,
            self.max_payload,
            self.features,
            self.client_id,
            self.session_epoch,
            self.next_seq,
            self.window_batches,
            self.window_bytes,
            self.keepalive_ms,
            self.idle_ms,
            self.term,
            self.server_time_ns,
            self.node_id,
            0,
        )


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender accepts no new requests and closes within `drain_ms`; code 0 = no error."""

    COMMAND: ClassVar[Command] = Command.GOODBYE
    code: int
    drain_ms: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_GOODBYE, "GOODBYE", self.code, 0, self.drain_ms)


@dataclass(frozen=True, slots=True)
class AckEntry:
    """The outcome of a batch, or of a run of `run` batches that ends with it."""

    client_seq: ClientSeq
    base_seq: Seq
    position: Position
    timestamp_ns: TimestampNs
    topic_id: TopicId
    run: int
    record_count: int
    status: AckStatus
    level: AckLevel
    reason: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """The current window of a session, and the outcomes decided since the last ACK."""

    session_epoch: SessionEpoch
    window_batches: int
    window_bytes: int
    entries: tuple[AckEntry, ...]

    def encode(self) -> bytes:
        """The payload; the header carries the number of entries as record_count."""
        pieces = [pack(_ACK, "ACK", self.session_epoch, self.window_batches, self.window_bytes)]
        for entry in self.entries:
            if problem := _entry_problem(entry):
                raise InvalidInputError(f"ACK entry: {problem}")
            pieces.append(
                pack(
                    _ACK_ENTRY,
                    "ACK entry",
                    entry.client_seq,
                    entry.base_seq,
                    entry.position,
                    entry.timestamp_ns,
                    entry.topic_id,
                    entry.run,
                    entry.record_count,
                    entry.status,
                    entry.level,
                    entry.reason,
                )
            )
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Error:
    """An error: its code, its class, and whether the connection closes."""

    COMMAND: ClassVar[Command] = Command.ERROR
    code: int
    error_class: ErrorClass
    closes: bool
    text: str
    retry_after_ms: int = 0
    ref: int = 0
    topic_id: TopicId = _NO_TOPIC

    def encode(self) -> bytes:
        """The payload."""
        text = write_text(self.text, ERROR_TEXT_SIZE_MAX, "error text")
        fixed = pack(
            _ERROR,
            "ERROR",
            self.code,
            self.error_class,
            self.closes,
            self.retry_after_ms,
            self.ref,
            self.topic_id,
            len(text),
            0,
        )
        return fixed + text


def parse_hello(payload: Buffer) -> Hello:
    """Parse HELLO, the first frame of a client."""
    require_at_least(_HELLO.size, "HELLO", payload)
    *fields, token_length, name_length, gap_timeout_ms = _HELLO.unpack_from(payload)
    min_version, max_version, flag_bits, max_payload, features, client_id, session_epoch, start_seq, *rest = fields
    if token_length > TOKEN_SIZE_MAX or name_length > CLIENT_NAME_SIZE_MAX:
        raise malformed(f"HELLO: token of {token_length} bytes, name of {name_length}: too long")
    if len(payload) != _HELLO.size + token_length + name_length:
        raise malformed(f"HELLO: {len(payload)} bytes, token and name need {token_length} + {name_length}")
    flags = read_flags(HelloFlags, flag_bits, "HELLO")
    if not 0 < min_version <= max_version or not start_seq:
        raise malformed(f"HELLO: versions {min_version} to {max_version}, start_seq {start_seq}")
    if flags & HelloFlags.JOIN and (flags & HelloFlags.OPEN or not client_id or not session_epoch):
        raise malformed("HELLO: a join names client and session epoch, and does not open")
    _check_max_payload(max_payload, "HELLO")
    token_end = _HELLO.size + token_length
    token = read_text(payload[_HELLO.size : token_end], "HELLO token")
    name = read_text(payload[token_end:], "HELLO name")
    window_batches, keepalive_ms = rest
    return Hello(
        min_version,
        max_version,
        flags,
        max_payload,
        features,
        client_id,
        session_epoch,
        start_seq,
        window_batches,
        keepalive_ms,
        gap_timeout_ms,
        token,
        name,
    )


def choose_version(hello: Hello) -> int:
    """The common protocol version; `ProtocolError` if there is none."""
    if not hello.min_version <= VERSION_2 <= hello.max_version:
        raise ProtocolError(
            f"HELLO: versions {hello.min_version} to {hello.max_version}, supported is {VERSION_2}",
            code=ErrorCode.UNSUPPORTED_VERSION,
            closes=True,
        )
    return VERSION_2


def parse_welcome(payload: Buffer) -> Welcome:
    """Parse the answer to HELLO."""
    require_exact(_WELCOME, "WELCOME", payload)
    version, status, reserved, max_payload, *rest, reserved_end = _WELCOME.unpack(payload)
    require_zero("WELCOME", reserved, reserved_end)
    _check_max_payload(max_payload, "WELCOME")
    return Welcome(version, read_enum(SessionStatus, status, "WELCOME status"), max_payload, *rest)


def parse_goodbye(payload: Buffer) -> Goodbye:
    """Parse GOODBYE, which announces the end of a connection."""
    require_exact(_GOODBYE, "GOODBYE", payload)
    code, reserved, drain_ms = _GOODBYE.unpack(payload)
    require_zero("GOODBYE", reserved)
    return Goodbye(code, drain_ms)


def parse_ack(payload: Buffer, record_count: int) -> Ack:
    """Parse the payload of an ACK frame with `record_count` entries."""
    if len(payload) != _ACK.size + record_count * _ACK_ENTRY.size:
        raise malformed(f"ACK: {len(payload)} bytes for {record_count} entries")
    session_epoch, window_batches, window_bytes = _ACK.unpack_from(payload)
    entries = []
    last_seq = 0
    for client_seq, base_seq, position, timestamp_ns, topic_id, run, records, *outcome in _ACK_ENTRY.iter_unpack(
        memoryview(payload)[_ACK.size :]
    ):
        status, level, reason = outcome
        entry = AckEntry(
            client_seq,
            base_seq,
            position,
            timestamp_ns,
            topic_id,
            run,
            records,
            read_enum(AckStatus, status, "ACK status"),
            read_enum(AckLevel, level, "ACK level"),
            reason,
        )
        if problem := _entry_problem(entry):
            raise malformed(f"ACK entry: {problem}")
        if entry.client_seq < last_seq:
            raise malformed(f"ACK: entry {entry.client_seq} follows {last_seq}")
        last_seq = entry.client_seq
        entries.append(entry)
    return Ack(session_epoch, window_batches, window_bytes, tuple(entries))


def parse_error(payload: Buffer) -> Error:
    """Parse ERROR."""
    require_at_least(_ERROR.size, "ERROR", payload)
    code, error_class, closes, retry_after_ms, ref, topic_id, length, reserved = _ERROR.unpack_from(payload)
    require_zero("ERROR", reserved)
    if length > ERROR_TEXT_SIZE_MAX or len(payload) != _ERROR.size + length or closes > 1:
        raise malformed(f"ERROR: {len(payload)} bytes, text of {length}, closes {closes}")
    return Error(
        code=code,
        error_class=read_enum(ErrorClass, error_class, "ERROR class"),
        closes=closes == 1,
        text=read_text(payload[_ERROR.size :], "ERROR text"),
        retry_after_ms=retry_after_ms,
        ref=ref,
        topic_id=topic_id,
    )


def _check_max_payload(max_payload: int, what: str) -> None:
    if not PAYLOAD_SIZE_MIN <= max_payload <= PAYLOAD_SIZE_MAX:
        raise malformed(f"{what}: max_payload {max_payload}, {PAYLOAD_SIZE_MIN} to {PAYLOAD_SIZE_MAX}")


def _entry_problem(entry: AckEntry) -> str | None:
    """What is wrong with an entry, or None; for encoding and parsing."""
    if entry.run < 1 or (entry.run > 1 and entry.status is not AckStatus.OK):
        return f"run of {entry.run} with status {entry.status.name}"
    if entry.reason and entry.status < AckStatus.REJECTED:
        return f"reason {entry.reason} with status {entry.status.name}"
    return None
