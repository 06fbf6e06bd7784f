"""Named constants for all codes of LWP version 1 and version 2.

This module defines names, not layouts: the parsers decide which field holds a code and what it means there.

Rules
- A code keeps its number for ever; a number never gets a second meaning.
- Every error code has exactly one class, and the class alone decides what a peer may do next.
- Version 1 numbers are those of the published clients; version 2 uses the same numbers wherever both have the code.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, unique
from typing import Final

MAGIC: Final = b"LANC"
VERSION_1: Final = 1
VERSION_2: Final = 2

#: Largest u64: "position unknown" in an ACK, "the end" as the start of a version 1 fetch.
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
POSITION_UNKNOWN: Final = U64_MAX

#: Version 1 start offsets from here up mean "the end"; a published client sends the largest signed number.
V1_OFFSET_END: Final = 0x7FFF_FFFF_FFFF_FFFF

#: Topic id in FETCH and SUBSCRIBE for "every topic this peer may read", in position order.
ALL_TOPICS: Final = 0xFFFF_FFFF

#: As order or ack level of a batch: use the topic's.
AS_TOPIC: Final = 0xFF


class ErrorClass(IntEnum):
    """What the receiver of an error may do; the branches of `seawall.errors`."""

    CALLER = 0
    RETRYABLE = 1
    CORRUPTION = 2
    FATAL = 3
    OUTCOME_UNKNOWN = 4


@unique
class ErrorCode(IntEnum):
    """Error codes of both versions; those without a published meaning are sent to version 2 peers only."""

    UNKNOWN = 0x01
    BAD_MAGIC = 0x02
    PAYLOAD_TOO_LARGE = 0x03
    INVALID_PAYLOAD = 0x04
    CRC_MISMATCH = 0x05
    UNSUPPORTED_VERSION = 0x06
    UNKNOWN_COMMAND = 0x07
    WRONG_STATE = 0x08
    LIMIT = 0x09
    TOO_SLOW = 0x0A
    TOPIC_NOT_FOUND = 0x10
    TOPIC_EXISTS = 0x11
    TOPIC_NAME = 0x12
    TOPIC_DELETED = 0x13
    CATCHING_UP = 0x14
    TOPIC_SETTINGS = 0x15
    TOPIC_CONFLICT = 0x16
    NOT_LEADER = 0x20
    NO_QUORUM = 0x21
    LEADER_UNKNOWN = 0x22
    CLUSTER_NOT_READY = 0x23
    FENCED = 0x24
    OUTSIDE_SESSION_WINDOW = 0x25
    CLIENT_SEQ_SKIPPED = 0x26
    NOT_ALLOWED_BY_TOPIC = 0x27
    PAYLOAD_MISMATCH = 0x28
    RATE_LIMITED = 0x30
    BACKPRESSURE = 0x31
    CONNECTION_LIMIT = 0x32
    AUTHENTICATION_REQUIRED = 0x40
    AUTHENTICATION_FAILED = 0x41
    ACCESS_DENIED = 0x42
    INVALID_OFFSET = 0x50
    OFFSET_OUT_OF_RANGE = 0x51
    CONSUMER = 0x52
    INTERNAL = 0x60
    STORAGE = 0x61
    TIMEOUT = 0x62
    READ_ONLY = 0x63
    OUTCOME_UNKNOWN = 0x64
    SHUTTING_DOWN = 0x70

    @property
    def error_class(self) -> ErrorClass:
        """The class of this code; codes in no set below are caller errors."""
        if self in _RETRYABLE:
            return ErrorClass.RETRYABLE
        return _OTHER_CLASSES.get(self, ErrorClass.CALLER)

    @property
    def is_retryable(self) -> bool:
        """True if nothing happened and the same request may succeed later."""
        return self in _RETRYABLE


_RETRYABLE: Final = frozenset(
    {
        ErrorCode.CATCHING_UP,
        ErrorCode.NOT_LEADER,
        ErrorCode.NO_QUORUM,
        ErrorCode.LEADER_UNKNOWN,
        ErrorCode.CLUSTER_NOT_READY,
        ErrorCode.RATE_LIMITED,
        ErrorCode.BACKPRESSURE,
        ErrorCode.TIMEOUT,
        # The refused request had no effect, and the next process or node can answer it.
        ErrorCode.SHUTTING_DOWN,
    }
)

_OTHER_CLASSES: Final = {
    ErrorCode.CRC_MISMATCH: ErrorClass.CORRUPTION,
    ErrorCode.UNKNOWN: ErrorClass.FATAL,
    ErrorCode.INTERNAL: ErrorClass.FATAL,
    ErrorCode.STORAGE: ErrorClass.FATAL,
    # A failed sync needs a restart, a full disk needs an operator. Sending again does not help.
    ErrorCode.READ_ONLY: ErrorClass.FATAL,
    ErrorCode.OUTCOME_UNKNOWN: ErrorClass.OUTCOME_UNKNOWN,
}


class V1Flags(IntFlag):
    """Byte 5 of a version 1 header."""

    LZ4 = 0x01
    ENCRYPTED = 0x02
    BATCH = 0x04
    ACK = 0x08
    BACKPRESSURE = 0x10
    KEEPALIVE = 0x20
    CONTROL = 0x40
    RESERVED = 0x80


class V1Kind(IntEnum):
    """The kind of a version 1 frame, after the precedence of its flags is applied (`lwp1/frames.py`, `frame_kind`)."""

    IGNORED = 0
    INGEST = 1
    ACK = 2
    BACKPRESSURE = 3
    KEEPALIVE = 4
    CONTROL = 5


@unique
class V1Command(IntEnum):
    """Command codes of version 1; version 2 keeps 01 to 09 with their payloads, and the two replies 80 and 81."""

    CREATE_TOPIC = 0x01
    DELETE_TOPIC = 0x02
    LIST_TOPICS = 0x03
    GET_TOPIC = 0x04
    SET_RETENTION = 0x05
    CREATE_TOPIC_WITH_RETENTION = 0x06
    GET_CLUSTER_STATUS = 0x07
    AUTHENTICATE = 0x08
    AUTHENTICATE_REPLY = 0x09
    FETCH = 0x10
    FETCH_REPLY = 0x11
    CATCHING_UP = 0x12
    SUBSCRIBE = 0x20
    UNSUBSCRIBE = 0x21
    COMMIT_OFFSET = 0x22
    SUBSCRIBE_REPLY = 0x23
    COMMIT_REPLY = 0x24
    TOPIC_REPLY = 0x80
    CLUSTER_STATUS_REPLY = 0x81
    ERROR_REPLY = 0xFF


class Kind(IntEnum):
    """Byte 5 of a version 2 header: exactly one of these, no other bit."""

    BATCH = 0x04
    ACK = 0x08
    KEEPALIVE = 0x20
    CONTROL = 0x40


@unique
class Command(IntEnum):
    """Control commands that only version 2 has, and ERROR."""

    HELLO = 0x40
    WELCOME = 0x41
    GOODBYE = 0x42
    FETCH = 0x50
    FETCH_DATA = 0x51
    SUBSCRIBE = 0x52
    SUBSCRIBED = 0x53
    DATA = 0x54
    CREDIT = 0x55
    UNSUBSCRIBE = 0x56
    UNSUBSCRIBED = 0x57
    GAP = 0x58
    CAUGHT_UP = 0x59
    COMMIT = 0x5A
    COMMITTED = 0x5B
    BOUNDS = 0x5C
    BOUNDS_REPLY = 0x5D
    FILES = 0x5E
    FILES_REPLY = 0x5F
    TOPIC_CREATE = 0x60
    TOPIC_CONFIGURE = 0x61
    TOPIC_DESCRIBE = 0x62
    TOPIC_FIND = 0x63
    RECORDS_DELETE = 0x64
    RECORDS_DELETED = 0x65
    STAGING_FIND = 0x66
    TRANSACTION_COMMIT = 0x67
    TRANSACTION_STATUS = 0x68
    TRANSACTION_ABORT = 0x69
    TRANSACTION_STATE = 0x6A
    PUBLISH_KEYED = 0x6B
    PUBLISHED_KEYED = 0x6C
    SUM = 0x6D
    SESSION_LIST = 0x6E
    SESSIONS = 0x6F
    SESSION_RETIRE = 0x70
    ROUTER_PUT = 0x71
    ROUTER_DESCRIBE = 0x72
    ROUTER_LIST = 0x73
    ROUTER_DELETE = 0x74
    ROUTERS = 0x75
    WATCH = 0x76
    WATCHED = 0x77
    JOB_CLAIM = 0x90
    JOBS = 0x91
    JOB_ACK = 0x92
    JOB_NACK = 0x93
    JOB_EXTEND = 0x94
    JOB_OUTCOME = 0x95
    JOB_PEEK = 0x96
    QUEUE_COUNTS = 0x97
    QUEUE_COUNTS_REPLY = 0x98
    QUEUE_PURGE = 0x99
    QUEUE_REDRIVE = 0x9A
    JOB_PUSH_UNIQUE = 0x9B
    JOB_PUSHED = 0x9C
    ERROR = 0xFF


class KeepaliveCommand(IntEnum):
    """The command field of a version 2 keepalive frame."""

    PING = 0
    PONG = 1


class Features(IntFlag):
    """Features that a client offers in HELLO and a server grants in WELCOME. The server's `and` drops unknown bits."""

    LZ4 = 0x01
    ZSTD = 0x02
    ACK_RUNS = 0x08
    PUSH = 0x10
    READ_BY_POSITION = 0x20
    LONG_POLL = 0x40
    STORED_BLOCKS = 0x80
    IDEMPOTENCY_KEYS = 0x100
    TRAILING_CHECKSUM = 0x200


class HelloFlags(IntFlag):
    """The client's requests about its session."""

    NONE = 0x00
    OPEN = 0x01
    ABANDON = 0x02
    JOIN = 0x04


class SessionStatus(IntEnum):
    """The outcome of the session request in HELLO."""

    NONE = 0
    NEW = 1
    RESUMED = 2
    REFUSED_GAP = 3
    REFUSED_SUPERSEDED = 4
    JOINED = 5


class AckStatus(IntEnum):
    """The outcome of a batch. From REJECTED up an ACK entry carries a reason."""

    OK = 0
    DUPLICATE = 1
    REJECTED = 2
    UNKNOWN = 3
    RETRY = 4


class AckLevel(IntEnum):
    """What an ack guarantees: reports failures only, ordered, durable. In a batch AS_TOPIC means the topic's level."""

    FAILURES = 0
    ORDERED = 1
    DURABLE = 2


class Codec(IntEnum):
    """The compression of a batch's block."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class BatchFlags(IntFlag):
    """The flags byte of a batch header."""

    OPAQUE = 0x02  #: the block is one unit of bytes
    KEYED = 0x04  #: stored only: client_id and client_seq are the digest of an idempotency key
    TRAILING_CHECKSUM = 0x08  #: on the wire only: the block checksum follows in a SUM frame


class ReadBy(IntEnum):
    """The unit or meaning of the start of a read."""

    SEQ = 0
    POSITION = 1
    TIME = 2
    OFFSET = 3
    EARLIEST = 4
    LATEST = 5
    COMMITTED = 6


class ReadFlags(IntFlag):
    """What a reader accepts besides plain durable blocks."""

    NONE = 0x00
    STORED_CODEC = 0x02
    NOT_YET_DURABLE = 0x04


class DeleteBy(IntFlag):
    """The conditions of RECORDS_DELETE; a record must match all of them."""

    NONE = 0x00
    BEFORE = 0x01
    TAG = 0x02
    TAG_PREFIX = 0x04


class ClaimFlags(IntFlag):
    """What a claim asks for."""

    NONE = 0x00
    BOUND = 0x01  #: the leases end with the connection


class DataFlags(IntFlag):
    """What follows after these batches."""

    CAUGHT_UP = 0x01
    MORE = 0x02
    PART = 0x04  #: the next batch has the same position as the last one here


class GapReason(IntEnum):
    """Why a range is lost."""

    CAP = 1
    TTL = 2
    CRASH = 3
    RECREATED = 4
    SKIPPED = 5
    CORRUPTION = 6
    SOURCE_TRIM = 7


class GapUnit(IntEnum):
    """The unit of a gap's range."""

    TOPIC_SEQ = 0
    CLIENT_SEQ = 1
    POSITION = 2
