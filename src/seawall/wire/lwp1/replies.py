"""Encode and parse the payloads of version 1 replies, exactly as the published clients expect them.

| code | reply           | payload                                                                             |
|------|-----------------|-------------------------------------------------------------------------------------|
| 09   | Authenticate    | ok u8 (1 or 0), text                                                                |
| 11   | Fetch           | next_offset u64, bytes u32, records u32, then the data                              |
| 12   | CatchingUp      | end offset u64                                                                      |
| 23   | Subscribe       | consumer u64, offset u64                                                            |
| 24   | Commit          | consumer u64, offset u64                                                            |
| 80   | Topic           | JSON: a topic, `{"topics":[…]}`, `{"deleted":3}` or the retention that was set      |
| 81   | Cluster status  | JSON                                                                                |
| FF   | Error           | JSON `{"code":16,"message":"…","details":{…}}`; a leader redirect is plain text      |

A topic is `{"id":3,"name":"events","created_at":1700000000,"topic_epoch":1}`, in Unix seconds, followed by
`"retention":{"max_age_secs":3600,"max_bytes":0}` only if it has a policy: a published client would read a null as a
policy. The reply to a creation with retention repeats both numbers at the end of the topic, without nesting.

JSON is compact UTF-8 with the keys in the order shown and integers as integers. Readers ignore unknown keys. Version 2
answers the commands that it shares with version 1 with the same payloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final, TypeAlias

from seawall.core.types import Offset, Seq, Term, TopicEpoch, TopicId
from seawall.errors import LimitError, ProtocolError
from seawall.limits import ERROR_TEXT_SIZE_MAX, V1_FETCH_DATA_SIZE_MAX
from seawall.wire.format.codes import V1Command
from seawall.wire.format.fields import (
    Buffer,
    JsonObject,
    JsonValue,
    json_flag,
    json_object,
    json_signed,
    json_text,
    json_unsigned,
    malformed,
    pack,
    read_json_object,
    read_text,
    require_at_least,
    write_json,
    write_text,
)
from seawall.wire.lwp1.node_load import NodeLoad

_OK: Final = Struct("<B")
_FETCH_PREFIX: Final = Struct("<QII")
_OFFSET: Final = Struct("<Q")
_CONSUMER_OFFSET: Final = Struct("<QQ")


@dataclass(frozen=True, slots=True)
class AuthenticateReply:
    """Whether the token was accepted, and a message."""

    COMMAND: ClassVar[V1Command] = V1Command.AUTHENTICATE_REPLY
    ok: bool
    text: str

    def encode(self) -> bytes:
        """The payload."""
        return _OK.pack(self.ok) + write_text(self.text, ERROR_TEXT_SIZE_MAX, "authenticate reply")


@dataclass(frozen=True, slots=True)
class FetchReply:
    """A piece of a topic's byte stream; `record_count` counts the units that start in it."""

    COMMAND: ClassVar[V1Command] = V1Command.FETCH_REPLY
    next_offset: Offset
    record_count: int
    data: Buffer

    def prefix(self) -> bytes:
        """The payload before the data."""
        if len(self.data) > V1_FETCH_DATA_SIZE_MAX:
            raise LimitError(f"fetch reply of {len(self.data)} bytes, at most {V1_FETCH_DATA_SIZE_MAX}")
        return pack(_FETCH_PREFIX, "fetch reply", self.next_offset, len(self.data), self.record_count)


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """The end offset of a node that is behind its leader; sent only if the configuration asks for it."""

    COMMAND: ClassVar[V1Command] = V1Command.CATCHING_UP
    end_offset: Offset

    def encode(self) -> bytes:
        """The payload."""
        return pack(_OFFSET, "CatchingUp", self.end_offset)


@dataclass(frozen=True, slots=True)
class SubscribeReply:
    """The start offset of a consumer."""

    COMMAND: ClassVar[V1Command] = V1Command.SUBSCRIBE_REPLY
    consumer: int
    offset: Offset

    def encode(self) -> bytes:
        """The payload."""
        return pack(_CONSUMER_OFFSET, "subscribe reply", self.consumer, self.offset)


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The offset that is now stored durably for a consumer."""

    COMMAND: ClassVar[V1Command] = V1Command.COMMIT_REPLY
    consumer: int
    offset: Offset

    def encode(self) -> bytes:
        """The payload."""
        return pack(_CONSUMER_OFFSET, "commit reply", self.consumer, self.offset)


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention bounds of a topic; 0 = no limit."""

    max_age_secs: int
    max_bytes: int

    def document(self) -> dict[str, JsonValue]:
        """As JSON."""
        return {"max_age_secs": self.max_age_secs, "max_bytes": self.max_bytes}


@dataclass(frozen=True, slots=True)
class TopicReply:
    """A topic. `created_with` is set only in the reply to a creation with retention.

    GetTopic reports `record_count` and `byte_count`, the records and bytes that are kept. The topic commands of
    version 2 also report `span`, the floor and the seq of the next record, all `settings`, and `effective_priority`;
    the reply to a name has the settings only.
    """

    COMMAND: ClassVar[V1Command] = V1Command.TOPIC_REPLY
    topic_id: TopicId
    name: str
    created_at: int
    topic_epoch: TopicEpoch
    retention: Retention | None = None
    created_with: Retention | None = None
    record_count: int | None = None
    byte_count: int | None = None
    span: tuple[Seq, Seq] | None = None
    settings: JsonObject | None = None
    effective_priority: int | None = None

    def document(self) -> dict[str, JsonValue]:
        """As JSON."""
        document: dict[str, JsonValue] = {
            "id": self.topic_id,
            "name": self.name,
            "created_at": self.created_at,
            "topic_epoch": self.topic_epoch,
        }
        if self.retention is not None:
            document["retention"] = self.retention.document()
        if self.created_with is not None:
            document.update(self.created_with.document())
        if self.record_count is not None and self.byte_count is not None:
            document |= {"records": self.record_count, "bytes": self.byte_count}
        if self.span is not None:
            document |= {"floor": self.span[0], "next_seq": self.span[1]}
        if self.settings is not None:
            document["settings"] = dict(self.settings)
        if self.effective_priority is not None:
            document["effective_priority"] = self.effective_priority
        return document

    def encode(self) -> bytes:
        """The payload."""
        return write_json(self.document())


@dataclass(frozen=True, slots=True)
class TopicListReply:
    """All topics except topic 0."""

    COMMAND: ClassVar[V1Command] = V1Command.TOPIC_REPLY
    topics: tuple[TopicReply, ...]

    def encode(self) -> bytes:
        """The payload."""
        return EncodedTopicList(tuple(topic.encode() for topic in self.topics)).encode()


@dataclass(frozen=True, slots=True)
class EncodedTopicList:
    """A `TopicListReply` of already encoded topics, so that a long list can be encoded step by step."""

    COMMAND: ClassVar[V1Command] = V1Command.TOPIC_REPLY
    topics: tuple[bytes, ...]

    def encode(self) -> bytes:
        """The payload."""
        return b'{"topics":[' + b",".join(self.topics) + b"]}"


@dataclass(frozen=True, slots=True)
class TopicDeletedReply:
    """The topic was deleted."""

    COMMAND: ClassVar[V1Command] = V1Command.TOPIC_REPLY
    topic_id: TopicId

    def encode(self) -> bytes:
        """The payload."""
        return write_json({"deleted": self.topic_id})


@dataclass(frozen=True, slots=True)
class RetentionReply:
    """The new retention bounds of a topic."""

    COMMAND: ClassVar[V1Command] = V1Command.TOPIC_REPLY
    topic_id: TopicId
    retention: Retention

    def encode(self) -> bytes:
        """The payload."""
        return write_json({"topic_id": self.topic_id, **self.retention.document()})


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker of a node: its addresses and its number of connections."""

    number: int
    addresses: tuple[str, ...]
    connections: int


@dataclass(frozen=True, slots=True)
class ClusterStatusReply:
    """The leader and the health of the nodes; `mode` is "standalone" on a single node and absent in a cluster.

    Only version 2 reports brokers, load, and `details`: `state`, `reason`, `counts`, and other keys that a server adds.
    """

    COMMAND: ClassVar[V1Command] = V1Command.CLUSTER_STATUS_REPLY
    node_id: int
    is_leader: bool
    leader_id: int | None
    current_term: Term
    node_count: int
    healthy_nodes: int
    quorum_available: bool
    peer_states: tuple[tuple[int, str], ...] = ()
    mode: str | None = None
    brokers: tuple[BrokerStatus, ...] = ()
    details: JsonObject = field(default_factory=dict)
    load: NodeLoad | None = None

    def encode(self) -> bytes:
        """The payload."""
        document: dict[str, JsonValue] = {
            "node_id": self.node_id,
            "is_leader": self.is_leader,
            "leader_id": self.leader_id,
            "current_term": self.current_term,
            "node_count": self.node_count,
            "healthy_nodes": self.healthy_nodes,
            "quorum_available": self.quorum_available,
            "peer_states": {str(node_id): state for node_id, state in self.peer_states},
        }
        if self.mode is not None:
            document["mode"] = self.mode
        if self.brokers:
            document["brokers"] = {
                str(each.number): {"addresses": ",".join(each.addresses), "connections": each.connections}
                for each in self.brokers
            }
        if self.load is not None:
            document["load"] = self.load.document()
        return write_json({**self.details, **document})


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error. Without a code it is plain text, which only a leader redirect is."""

    COMMAND: ClassVar[V1Command] = V1Command.ERROR_REPLY
    code: int | None
    message: str
    details: JsonObject = field(default_factory=dict)

    def encode(self) -> bytes:
        """The payload."""
        text = write_text(self.message, ERROR_TEXT_SIZE_MAX, "error message")
        if self.code is None:
            return text
        document: dict[str, JsonValue] = {"code": int(self.code), "message": self.message}
        if self.details:
            document["details"] = dict(self.details)
        return write_json(document)


Reply: TypeAlias = (
    AuthenticateReply
    | CatchingUp
    | SubscribeReply
    | CommitReply
    | TopicReply
    | TopicListReply
    | EncodedTopicList
    | TopicDeletedReply
    | RetentionReply
    | ClusterStatusReply
    | ErrorReply
)


def leader_redirect(address: str | None) -> ErrorReply:
    """The plain text that published clients parse: the address of the leader (`ip:port`), or that it is unknown."""
    return ErrorReply(None, "NOT_LEADER: leader unknown" if address is None else f"NOT_LEADER: redirect to {address}")


def parse_authenticate_reply(payload: Buffer) -> AuthenticateReply:
    """Parse the reply to Authenticate."""
    require_at_least(_OK.size, "authenticate reply", payload)
    if payload[0] > 1:
        raise malformed(f"authenticate reply: ok is {payload[0]}, must be 0 or 1")
    return AuthenticateReply(payload[0] == 1, read_text(payload[1:], "authenticate reply"))


def parse_fetch_reply(payload: Buffer) -> FetchReply:
    """Parse the reply to Fetch; its data is a view of the payload."""
    require_at_least(_FETCH_PREFIX.size, "fetch reply", payload)
    next_offset, length, record_count = _FETCH_PREFIX.unpack_from(payload)
    require_at_least(_FETCH_PREFIX.size + length, "fetch reply", payload)
    data = memoryview(payload)[_FETCH_PREFIX.size : _FETCH_PREFIX.size + length]
    return FetchReply(next_offset, record_count, data)


def parse_catching_up(payload: Buffer) -> CatchingUp:
    """Parse the reply of a node that is behind its leader."""
    require_at_least(_OFFSET.size, "CatchingUp", payload)
    return CatchingUp(*_OFFSET.unpack_from(payload))


def parse_subscribe_reply(payload: Buffer) -> SubscribeReply:
    """Parse the reply to Subscribe."""
    require_at_least(_CONSUMER_OFFSET.size, "subscribe reply", payload)
    return SubscribeReply(*_CONSUMER_OFFSET.unpack_from(payload))


def parse_commit_reply(payload: Buffer) -> CommitReply:
    """Parse the reply to CommitOffset."""
    require_at_least(_CONSUMER_OFFSET.size, "commit reply", payload)
    return CommitReply(*_CONSUMER_OFFSET.unpack_from(payload))


def parse_topic_reply(payload: Buffer) -> TopicReply:
    """Parse the reply to a creation or to GetTopic."""
    return _topic(read_json_object(payload, "topic reply"))


def parse_topic_list_reply(payload: Buffer) -> TopicListReply:
    """Parse the reply to ListTopics."""
    topics = read_json_object(payload, "topic list").get("topics")
    if not isinstance(topics, list):
        raise malformed("topic list: topics must be a list")
    return TopicListReply(tuple(_topic(topic) for topic in topics))


def parse_topic_deleted_reply(payload: Buffer) -> TopicDeletedReply:
    """Parse the reply to DeleteTopic."""
    document = read_json_object(payload, "topic deleted")
    return TopicDeletedReply(TopicId(json_unsigned(document, "deleted", "topic deleted", 32)))


def parse_retention_reply(payload: Buffer) -> RetentionReply:
    """Parse the reply to SetRetention."""
    document = read_json_object(payload, "retention reply")
    return RetentionReply(TopicId(json_unsigned(document, "topic_id", "retention reply", 32)), _retention(document))


def parse_cluster_status_reply(payload: Buffer) -> ClusterStatusReply:
    """Parse the reply to GetClusterStatus."""
    what = "cluster status"
    document = read_json_object(payload, what)
    return ClusterStatusReply(
        node_id=json_unsigned(document, "node_id", what),
        is_leader=json_flag(document, "is_leader", what),
        leader_id=None if document.get("leader_id") is None else json_unsigned(document, "leader_id", what),
        current_term=Term(json_unsigned(document, "current_term", what)),
        node_count=json_unsigned(document, "node_count", what),
        healthy_nodes=json_unsigned(document, "healthy_nodes", what),
        quorum_available=json_flag(document, "quorum_available", what),
        peer_states=_peer_states(json_object(document, "peer_states", what)),
        mode=None if document.get("mode") is None else json_text(document, "mode", what),
        brokers=_brokers(json_object(document, "brokers", what)) if "brokers" in document else (),
        load=NodeLoad.parse(json_object(document, "load", what)) if "load" in document else None,
        details={key: value for key, value in document.items() if key not in ClusterStatusReply.__slots__},
    )


def parse_error_reply(payload: Buffer) -> ErrorReply:
    """Parse any error: JSON with a code, or else the whole payload as text."""
    text = read_text(payload, "error reply")
    try:
        document = read_json_object(payload, "error reply")
        code = json_unsigned(document, "code", "error reply", 16)
        message = json_text(document, "message", "error reply")
        details = json_object(document, "details", "error reply") if "details" in document else {}
    except ProtocolError:
        return ErrorReply(None, text)
    return ErrorReply(code, message, details)


def _topic(document: JsonValue) -> TopicReply:
    what = "topic"
    if not isinstance(document, dict):
        raise malformed("topic: must be a JSON object")
    has_policy = document.get("retention") is not None
    return TopicReply(
        topic_id=TopicId(json_unsigned(document, "id", what, 32)),
        name=json_text(document, "name", what),
        created_at=json_unsigned(document, "created_at", what),
        topic_epoch=TopicEpoch(json_unsigned(document, "topic_epoch", what)),
        retention=_retention(json_object(document, "retention", what)) if has_policy else None,
        created_with=_retention(document) if "max_age_secs" in document else None,
        record_count=json_unsigned(document, "records", what) if "records" in document else None,
        byte_count=json_unsigned(document, "bytes", what) if "bytes" in document else None,
        span=_span(document) if "floor" in document else None,
        settings=json_object(document, "settings", what) if "settings" in document else None,
        effective_priority=json_signed(document, "effective_priority", what)
        if "effective_priority" in document
        else None,
    )


def _span(document: JsonObject) -> tuple[Seq, Seq]:
    return Seq(json_unsigned(document, "floor", "topic")), Seq(json_unsigned(document, "next_seq", "topic"))


def _priority(document: JsonObject) -> int | None:
    key = "effective_priority"
    return json_signed(document, key, "topic") if key in document else None


def _retention(document: JsonObject) -> Retention:
    return Retention(
        json_unsigned(document, "max_age_secs", "retention"), json_unsigned(document, "max_bytes", "retention")
    )


def _peer_states(states: JsonObject) -> tuple[tuple[int, str], ...]:
    return tuple((_number(node_id, "peer"), json_text(states, node_id, "cluster status")) for node_id in states)


def _brokers(brokers: JsonObject) -> tuple[BrokerStatus, ...]:
    what = "broker in a cluster status"
    found = []
    for number in brokers:
        document = json_object(brokers, number, what)
        addresses = tuple(json_text(document, "addresses", what).split(","))
        found.append(BrokerStatus(_number(number, "broker"), addresses, json_unsigned(document, "connections", what)))
    return tuple(found)


def _number(text: str, of: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise malformed(f"cluster status: the name of {of} {text[:32]!r} is not a number")
    return int(text)
