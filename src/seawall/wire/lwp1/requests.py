"""Encode and parse the payloads of version 1 requests, exactly as the published clients send them.

Integers are little-endian. A control frame names its command in the id of the header (`V1Command`).

| code | request                  | payload                                                                    |
|------|--------------------------|----------------------------------------------------------------------------|
| 01   | CreateTopic              | name, UTF-8, no length prefix                                              |
| 02   | DeleteTopic              | topic u32                                                                  |
| 03   | ListTopics               | –                                                                          |
| 04   | GetTopic                 | topic u32                                                                  |
| 05   | SetRetention             | topic u32, max_age_secs u64, max_bytes u64; 0 = no limit                   |
| 06   | CreateTopicWithRetention | name length u16, name, max_age_secs u64, max_bytes u64                     |
| 07   | GetClusterStatus         | –                                                                          |
| 08   | Authenticate             | token, UTF-8                                                               |
| 10   | Fetch                    | topic u32, start_offset u64, max_bytes u32                                 |
| 20   | Subscribe                | topic u32, start_offset u64, max_batch_bytes u32, consumer u64             |
| 21   | Unsubscribe              | topic u32, consumer u64                                                    |
| 22   | CommitOffset             | topic u32, consumer u64, offset u64                                        |

A longer payload is valid and its rest is ignored, except for 06, whose length must match. A shorter payload and an
unknown or server-only command are refused with error 04, a name outside 1 to 255 bytes of UTF-8 with error 12; the
connection stays open. Version 2 keeps 01 to 08 unchanged.

This module must not know topics, offsets or what a request does. `core/identifiers.py` checks the characters of topic
names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final, TypeAlias

from seawall.core.types import Offset, TopicId
from seawall.errors import InvalidInputError
from seawall.limits import TOKEN_SIZE_MAX, TOPIC_NAME_SIZE_MAX
from seawall.wire.format.codes import ErrorCode, V1Command
from seawall.wire.format.fields import Buffer, malformed, pack, read_text, require_at_least, write_text

_TOPIC: Final = Struct("<I")
_RETENTION: Final = Struct("<QQ")
_TOPIC_RETENTION: Final = Struct("<IQQ")
_NAME_LENGTH: Final = Struct("<H")
_FETCH: Final = Struct("<IQI")
_SUBSCRIBE: Final = Struct("<IQIQ")
_UNSUBSCRIBE: Final = Struct("<IQ")
_COMMIT: Final = Struct("<IQQ")


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic without retention."""

    COMMAND: ClassVar[V1Command] = V1Command.CREATE_TOPIC
    name: str

    def encode(self) -> bytes:
        """The payload."""
        return write_name(self.name)


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic; its id is never used again."""

    COMMAND: ClassVar[V1Command] = V1Command.DELETE_TOPIC
    topic_id: TopicId

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "DeleteTopic", self.topic_id)


@dataclass(frozen=True, slots=True)
class ListTopics:
    """List all topics except topic 0."""

    COMMAND: ClassVar[V1Command] = V1Command.LIST_TOPICS

    def encode(self) -> bytes:
        """The payload."""
        return b""


@dataclass(frozen=True, slots=True)
class GetTopic:
    """Describe one topic."""

    COMMAND: ClassVar[V1Command] = V1Command.GET_TOPIC
    topic_id: TopicId

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "GetTopic", self.topic_id)


@dataclass(frozen=True, slots=True)
class SetRetention:
    """Replace both retention bounds of a topic; 0 = no limit."""

    COMMAND: ClassVar[V1Command] = V1Command.SET_RETENTION
    topic_id: TopicId
    max_age_secs: int
    max_bytes: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC_RETENTION, "SetRetention", self.topic_id, self.max_age_secs, self.max_bytes)


@dataclass(frozen=True, slots=True)
class CreateTopicWithRetention:
    """Create a topic with both retention bounds; 0 = no limit."""

    COMMAND: ClassVar[V1Command] = V1Command.CREATE_TOPIC_WITH_RETENTION
    name: str
    max_age_secs: int
    max_bytes: int

    def encode(self) -> bytes:
        """The payload."""
        name = write_name(self.name)
        retention = pack(_RETENTION, "CreateTopicWithRetention", self.max_age_secs, self.max_bytes)
        return _NAME_LENGTH.pack(len(name)) + name + retention


@dataclass(frozen=True, slots=True)
class GetClusterStatus:
    """Ask for the leader and the health of the nodes."""

    COMMAND: ClassVar[V1Command] = V1Command.GET_CLUSTER_STATUS

    def encode(self) -> bytes:
        """The payload."""
        return b""


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Present a token. It must not appear in log lines, so it is not in the repr."""

    COMMAND: ClassVar[V1Command] = V1Command.AUTHENTICATE
    token: str = field(repr=False)

    def encode(self) -> bytes:
        """The payload."""
        return write_text(self.token, TOKEN_SIZE_MAX, "token")


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the byte stream of a topic from an offset."""

    COMMAND: ClassVar[V1Command] = V1Command.FETCH
    topic_id: TopicId
    start_offset: Offset
    max_bytes: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_FETCH, "Fetch", self.topic_id, self.start_offset, self.max_bytes)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Register a consumer, which then polls with Fetch."""

    COMMAND: ClassVar[V1Command] = V1Command.SUBSCRIBE
    topic_id: TopicId
    start_offset: Offset
    max_batch_bytes: int
    consumer: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_SUBSCRIBE, "Subscribe", self.topic_id, self.start_offset, self.max_batch_bytes, self.consumer)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Remove a registration; the committed offset stays."""

    COMMAND: ClassVar[V1Command] = V1Command.UNSUBSCRIBE
    topic_id: TopicId
    consumer: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_UNSUBSCRIBE, "Unsubscribe", self.topic_id, self.consumer)


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """Store the offset of a consumer."""

    COMMAND: ClassVar[V1Command] = V1Command.COMMIT_OFFSET
    topic_id: TopicId
    consumer: int
    offset: Offset

    def encode(self) -> bytes:
        """The payload."""
        return pack(_COMMIT, "CommitOffset", self.topic_id, self.consumer, self.offset)


#: Requests that version 2 keeps with the same codes and payloads.
SharedRequest: TypeAlias = (
    CreateTopic
    | DeleteTopic
    | ListTopics
    | GetTopic
    | SetRetention
    | CreateTopicWithRetention
    | GetClusterStatus
    | Authenticate
)
Request: TypeAlias = SharedRequest | Fetch | Subscribe | Unsubscribe | CommitOffset


def parse_request(command: int, payload: Buffer) -> Request:
    """Parse the request of a control frame."""
    parse = _SHARED_PARSERS.get(command) or _OFFSET_PARSERS.get(command)
    if parse is None:
        raise malformed(f"command {command:#x} is unknown or only for servers")
    return parse(payload)


def parse_shared_request(command: int, payload: Buffer) -> SharedRequest | None:
    """Parse the request of a command that both versions have; None for any other command."""
    parse = _SHARED_PARSERS.get(command)
    return None if parse is None else parse(payload)


def _create_topic(payload: Buffer) -> CreateTopic:
    return CreateTopic(read_name(payload))


def _delete_topic(payload: Buffer) -> DeleteTopic:
    require_at_least(_TOPIC.size, "DeleteTopic", payload)
    return DeleteTopic(*_TOPIC.unpack_from(payload))


def _list_topics(_payload: Buffer) -> ListTopics:
    return ListTopics()


def _get_topic(payload: Buffer) -> GetTopic:
    require_at_least(_TOPIC.size, "GetTopic", payload)
    return GetTopic(*_TOPIC.unpack_from(payload))


def _set_retention(payload: Buffer) -> SetRetention:
    require_at_least(_TOPIC_RETENTION.size, "SetRetention", payload)
    return SetRetention(*_TOPIC_RETENTION.unpack_from(payload))


def _create_topic_with_retention(payload: Buffer) -> CreateTopicWithRetention:
    require_at_least(_NAME_LENGTH.size, "CreateTopicWithRetention", payload)
    (length,) = _NAME_LENGTH.unpack_from(payload)
    name_end = _NAME_LENGTH.size + length
    # Detects a client that sends the name length as a u32; otherwise it would create a topic with a garbled name.
    if len(payload) != name_end + _RETENTION.size:
        raise malformed(f"CreateTopicWithRetention: {len(payload)} bytes for a name of {length}")
    max_age_secs, max_bytes = _RETENTION.unpack_from(payload, name_end)
    return CreateTopicWithRetention(read_name(payload[_NAME_LENGTH.size : name_end]), max_age_secs, max_bytes)


def _get_cluster_status(_payload: Buffer) -> GetClusterStatus:
    return GetClusterStatus()


def _authenticate(payload: Buffer) -> Authenticate:
    if len(payload) > TOKEN_SIZE_MAX:
        raise malformed(f"Authenticate: token of {len(payload)} bytes, at most {TOKEN_SIZE_MAX}")
    return Authenticate(read_text(payload, "token"))


def _fetch(payload: Buffer) -> Fetch:
    require_at_least(_FETCH.size, "Fetch", payload)
    return Fetch(*_FETCH.unpack_from(payload))


def _subscribe(payload: Buffer) -> Subscribe:
    require_at_least(_SUBSCRIBE.size, "Subscribe", payload)
    return Subscribe(*_SUBSCRIBE.unpack_from(payload))


def _unsubscribe(payload: Buffer) -> Unsubscribe:
    require_at_least(_UNSUBSCRIBE.size, "Unsubscribe", payload)
    return Unsubscribe(*_UNSUBSCRIBE.unpack_from(payload))


def _commit_offset(payload: Buffer) -> CommitOffset:
    require_at_least(_COMMIT.size, "CommitOffset", payload)
    return CommitOffset(*_COMMIT.unpack_from(payload))


_SHARED_PARSERS: Final[dict[int, Callable[[Buffer], SharedRequest]]] = {
    V1Command.CREATE_TOPIC: _create_topic,
    V1Command.DELETE_TOPIC: _delete_topic,
    V1Command.LIST_TOPICS: _list_topics,
    V1Command.GET_TOPIC: _get_topic,
    V1Command.SET_RETENTION: _set_retention,
    V1Command.CREATE_TOPIC_WITH_RETENTION: _create_topic_with_retention,
    V1Command.GET_CLUSTER_STATUS: _get_cluster_status,
    V1Command.AUTHENTICATE: _authenticate,
}

_OFFSET_PARSERS: Final[dict[int, Callable[[Buffer], Fetch | Subscribe | Unsubscribe | CommitOffset]]] = {
    V1Command.FETCH: _fetch,
    V1Command.SUBSCRIBE: _subscribe,
    V1Command.UNSUBSCRIBE: _unsubscribe,
    V1Command.COMMIT_OFFSET: _commit_offset,
}


def read_name(data: Buffer) -> str:
    """Decode the name of a topic, or raise `ProtocolError`."""
    if not 1 <= len(data) <= TOPIC_NAME_SIZE_MAX:
        raise malformed(f"topic name of {len(data)} bytes, 1 to {TOPIC_NAME_SIZE_MAX}", ErrorCode.TOPIC_NAME)
    return read_text(data, "topic name", ErrorCode.TOPIC_NAME)


def write_name(name: str) -> bytes:
    """Encode the name of a topic."""
    if not name:
        raise InvalidInputError("a topic name needs at least one character")
    return write_text(name, TOPIC_NAME_SIZE_MAX, "topic name")
