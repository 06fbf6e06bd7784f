"""What a remote log asks and how it reads the answers, for threads and for event loops alike. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

from seawall.client.connection import refusal_of
from seawall.core.identifiers import check_topic_name
from seawall.core.types import Seq, TopicEpoch, TopicId
from seawall.errors import InvalidInputError, LimitError, NotFoundError, UnsupportedError
from seawall.limits import CURSOR_OWNER_SIZE_MAX, MIB
from seawall.wire.codes import Command, ReadBy
from seawall.wire.decoder import Frame
from seawall.wire.fields import JsonObject, JsonValue
from seawall.wire.lwp1_replies import TopicReply
from seawall.wire.lwp1_requests import CreateTopic, CreateTopicWithRetention, SetRetention
from seawall.wire.lwp2_reading import BoundsReply, parse_data_prefix, parse_gap

#: Where a reader begins: a word, a seq, or a time.
Start: TypeAlias = Literal["earliest", "latest", "committed"] | int | datetime
PositionStart: TypeAlias = Literal["earliest", "latest"] | int
ReadMode: TypeAlias = Literal["durable", "ordered"]

#: Bytes of one read that names no bound.
READ_SIZE: Final = 8 * MIB

#: What the protocol has no words for.
NOT_REMOTE: Final = "the protocol has no such command yet: open the data directory where it lies"

_RETENTION: Final = ("ttl_ms", "cap_bytes")
_NUMBERED: Final = "consumer:"


@dataclass(frozen=True, slots=True)
class RemoteTopic:
    """A topic as it is now. `next_seq` is the seq of the next record, `floor` the first that can be read.

    A server that does not tell how many records and bytes are kept has at most so many: those from floor to end.
    """

    name: str
    topic_id: TopicId
    floor: Seq
    next_seq: Seq
    record_count: int
    byte_count: int
    topic_epoch: TopicEpoch
    created_at: int
    #: The settings that the server tells of: `ttl_ms` and `cap_bytes`, where they are set.
    settings: JsonObject


def create_request(name: str, settings: dict[str, JsonValue]) -> CreateTopic | CreateTopicWithRetention:
    """The command that creates a topic."""
    check_topic_name(name)
    if not settings:
        return CreateTopic(name)
    return CreateTopicWithRetention(name, *_retention(settings))


def configure_request(topic: TopicReply, settings: dict[str, JsonValue]) -> SetRetention:
    """The command that changes settings; those it does not name stay."""
    now = settings_of(topic)
    return SetRetention(topic.topic_id, *_retention({**now, **settings}))


def settings_of(topic: TopicReply) -> dict[str, JsonValue]:
    """The settings that a server tells of a topic."""
    retention = topic.retention
    if retention is None:
        return {}
    return {"ttl_ms": retention.max_age_secs * 1_000, "cap_bytes": retention.max_bytes}


def _retention(settings: dict[str, JsonValue]) -> tuple[int, int]:
    unknown = sorted(set(settings) - set(_RETENTION))
    if unknown:
        raise UnsupportedError(
            f"{', '.join(unknown)} cannot be set over the network yet, {' and '.join(_RETENTION)} can: {NOT_REMOTE}"
        )
    values = []
    for key in _RETENTION:
        value = settings.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidInputError(f"{key} of a topic is {value!r}: it must be a whole number from 0")
        values.append(value)
    age_ms, size = values
    if age_ms % 1_000:
        raise UnsupportedError(f"ttl_ms {age_ms}: over the network it is told in whole seconds")
    return age_ms // 1_000, size


def info_of(topic: TopicReply, bounds: BoundsReply) -> RemoteTopic:
    """What a server tells of a topic."""
    return RemoteTopic(
        topic.name,
        topic.topic_id,
        bounds.floor_seq,
        bounds.end_seq,
        bounds.end_seq - bounds.floor_seq if topic.record_count is None else topic.record_count,
        bounds.end_offset - bounds.floor_offset if topic.byte_count is None else topic.byte_count,
        topic.topic_epoch,
        topic.created_at,
        settings_of(topic),
    )


def topic_named(topics: dict[str, TopicReply], name: str) -> TopicReply:
    """A topic that is there."""
    topic = topics.get(name)
    if topic is None:
        raise NotFoundError(f"there is no topic {name!r}; create it first")
    return topic


def consumer_of(owner: str) -> int:
    """The number under which a server keeps the cursor of an owner: N of `consumer:N`, else a digest of its name.

    `consumer:N` is what the log calls a consumer with a number, so such an owner is the same for the embedded log.
    """
    size = len(owner.encode())
    if not 1 <= size <= CURSOR_OWNER_SIZE_MAX:
        raise LimitError(f"an owner of {size} bytes: 1 to {CURSOR_OWNER_SIZE_MAX} are allowed")
    number = owner.removeprefix(_NUMBERED)
    if number != owner and number.isascii() and number.isdecimal() and 0 < int(number) < 1 << 64:
        return int(number)
    return int.from_bytes(blake2b(owner.encode(), digest_size=8).digest(), "little") or 1


def place_of(start: Start, owner: str | None) -> tuple[ReadBy, int]:
    """Where a reader begins, as the server is asked for it."""
    if isinstance(start, datetime):
        return ReadBy.TIME, timestamp_ns_of(start)
    if isinstance(start, int):
        if start < 1:
            raise InvalidInputError(f"seqs begin at 1, not at {start}")
        return ReadBy.SEQ, start
    if start == "latest":
        return ReadBy.LATEST, 0
    if start == "committed":
        if owner is None:
            raise InvalidInputError("to start where an owner committed, name the owner")
        return ReadBy.COMMITTED, consumer_of(owner)
    if start != "earliest":
        raise InvalidInputError(f"start {start!r}: give earliest, latest, committed, a seq or a time")
    return ReadBy.SEQ, 1


def timestamp_ns_of(when: datetime) -> int:
    """A time as the log counts it."""
    return int(when.timestamp() * 1e6) * 1_000


def start_of(frame: Frame) -> Seq:
    """The seq at which an answer to a read begins."""
    if frame.header.command == Command.GAP:
        return Seq(parse_gap(frame.payload).first)
    if frame.header.command != Command.FETCH_DATA:
        raise refusal_of(frame) or UnsupportedError(f"the server answered by command {frame.header.command:#x}")
    return parse_data_prefix(frame.payload).first_seq


def place_of_position(start: PositionStart) -> tuple[ReadBy, int]:
    """Where a reader by position begins, as the server is asked for it."""
    if start == "latest":
        return ReadBy.LATEST, 0
    if start == "earliest":
        return ReadBy.POSITION, 0
    if str(start).isdecimal():
        return ReadBy.POSITION, int(start)
    raise InvalidInputError(f"start {start!r}: give earliest, latest or a position")


def check_mode(mode: ReadMode) -> bool:
    """Whether a reader wants what is ordered and not durable yet."""
    if mode not in ("durable", "ordered"):
        raise InvalidInputError(f"mode {mode!r}: give durable or ordered")
    return mode == "ordered"
