"""Builds the requests of a remote log and parses their responses, for threads and for asyncio alike. No I/O."""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Final

from seawall.api.read_options import PositionStart, ReadMode, Start
from seawall.api.topic_config import TopicConfig, TopicType
from seawall.api.topic_info import TopicInfo
from seawall.client.connection.connection import refusal_of
from seawall.client.read.reading import TopicReader
from seawall.core.identifiers import check_topic_name
from seawall.core.types import Seq, TopicId
from seawall.errors import ConfigError, InvalidInputError, LimitError, ProtocolError, UnsupportedError
from seawall.limits import CURSOR_OWNER_SIZE_MAX, MIB
from seawall.wire.format.codes import Command, ErrorCode, GapUnit, ReadBy
from seawall.wire.format.decoder import Frame
from seawall.wire.format.fields import JsonValue
from seawall.wire.lwp1.replies import TopicReply
from seawall.wire.lwp2.reading import parse_data_prefix, parse_gap
from seawall.wire.lwp2.topics import RecordsDelete, TopicCreate

#: The default limit of one read.
READ_SIZE: Final = 8 * MIB

#: The reason that an operation is not available over the network.
NOT_REMOTE: Final = "the protocol has no such command yet: open the data directory on its own machine"

_NUMBERED_PREFIX: Final = "consumer:"


def create_request(name: str, settings: dict[str, JsonValue]) -> TopicCreate:
    """The request that creates a topic."""
    check_topic_name(name)
    return TopicCreate(name, settings)


def is_queue(topic: TopicReply) -> bool:
    """True if a topic is known to be a queue. The list of all topics does not say what they are."""
    return topic.settings is not None and topic.settings.get("type") == TopicType.QUEUE


def delete_request(topic_id: TopicId, before_seq: int | None, tag: str | None, tag_prefix: str | None) -> RecordsDelete:
    """The request that deletes records."""
    if before_seq is not None and before_seq < 1:
        raise InvalidInputError(f"delete below seq {before_seq}: seqs begin at 1")
    return RecordsDelete(topic_id, None if before_seq is None else Seq(before_seq), tag, tag_prefix)


def info_of(topic: TopicReply) -> TopicInfo:
    """Parse the description of a topic."""
    if topic.span is None or topic.settings is None or topic.record_count is None or topic.byte_count is None:
        raise _bad_topic(topic.name, "some of it is missing")
    try:
        config = TopicConfig.from_server(topic.settings)
    except ConfigError as error:
        raise _bad_topic(topic.name, str(error)) from error
    return TopicInfo(
        topic.name,
        topic.topic_id,
        *topic.span,
        topic.record_count,
        topic.byte_count,
        topic.topic_epoch,
        topic.created_at,
        config,
        topic.effective_priority or 0,
    )


def _bad_topic(name: str, problem: str) -> ProtocolError:
    text = f"the server sent an unusable description of topic {name!r}: {problem}"
    return ProtocolError(text, code=ErrorCode.INVALID_PAYLOAD, closes=False)


def consumer_of(owner: str) -> int:
    """The number under which a server stores the cursor of an owner: N for `consumer:N`, else a digest of the name.

    The embedded log names numbered consumers `consumer:N`, so such an owner is the same in both.
    """
    size = len(owner.encode())
    if not 1 <= size <= CURSOR_OWNER_SIZE_MAX:
        raise LimitError(f"an owner of {size} bytes: 1 to {CURSOR_OWNER_SIZE_MAX} are allowed")
    number = owner.removeprefix(_NUMBERED_PREFIX)
    if number != owner and number.isascii() and number.isdecimal() and 0 < int(number) < 1 << 64:
        return int(number)
    return int.from_bytes(blake2b(owner.encode(), digest_size=8).digest(), "little") or 1


def cursor_owner(owner: str) -> str:
    """The owner name under which the log stores a cursor that this client commits."""
    return f"{_NUMBERED_PREFIX}{consumer_of(owner)}"


def read_start(start: Start, owner: str | None) -> tuple[ReadBy, int]:
    """The start of a reader in the terms of the protocol."""
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
    """Convert a time to nanoseconds since the Unix epoch, at microsecond precision."""
    return int(when.timestamp() * 1e6) * 1_000


def start_of(reader: TopicReader, frame: Frame) -> Seq | None:
    """The first seq of a response; None if it starts with a SKIP, which has no seq: then fetch again."""
    if frame.header.command == Command.GAP:
        gap = parse_gap(frame.payload)
        reader.take(frame)
        return None if gap.unit is GapUnit.CLIENT_SEQ else Seq(gap.first)
    if frame.header.command != Command.FETCH_DATA:
        raise refusal_of(frame) or UnsupportedError(f"the server answered by command {frame.header.command:#x}")
    return parse_data_prefix(frame.payload).first_seq


def position_read_start(start: PositionStart) -> tuple[ReadBy, int]:
    """The start of a reader by position in the terms of the protocol."""
    if start == "latest":
        return ReadBy.LATEST, 0
    if start == "earliest":
        return ReadBy.POSITION, 0
    if str(start).isdecimal():
        return ReadBy.POSITION, int(start)
    raise InvalidInputError(f"start {start!r}: give earliest, latest or a position")


def check_mode(mode: ReadMode) -> bool:
    """True if a reader also wants records that are ordered but not yet durable."""
    if mode not in ("durable", "ordered"):
        raise InvalidInputError(f"mode {mode!r}: give durable or ordered")
    return mode == "ordered"
