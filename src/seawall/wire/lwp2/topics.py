"""Version 2 payloads of topics with all their settings, and of deleting records. Version 1 has no such frames.

| code | frame           | bytes  | payload                                                                            |
|------|-----------------|--------|------------------------------------------------------------------------------------|
| 60   | TOPIC_CREATE    | 2 + …  | name length u16, name, then the settings as a JSON object, or nothing for none     |
| 61   | TOPIC_CONFIGURE | 4 + …  | topic u32, then the settings that change as a JSON object                          |
| 62   | TOPIC_DESCRIBE  | 4      | topic u32                                                                          |
| 63   | TOPIC_FIND      | …      | name                                                                               |
| 64   | RECORDS_DELETE  | 16 + … | topic u32, which u8 (1 below a seq, 2 with a tag, 4 with a tag prefix),            |
|      |                 |        | 0 u8, tag length u16, before_seq u64, tag                                          |
| 65   | RECORDS_DELETED | 8      | count u64                                                                          |

The answer to 60 to 63 is 80, a topic as in `lwp1/replies.py` with all `settings`; for 60, 61 and 62 it also includes
`records`, `bytes`, `floor`, `next_seq` and `effective_priority`. Names, tags and JSON are UTF-8; settings have at most
`TOPIC_SETTINGS_SIZE_MAX` bytes.

A payload is valid if it has exactly this length, zeros in fields specified as 0, at least one bit in `which` but not
both tag bits, a `before_seq` only with its bit, and a tag only with one of its bits. Other payloads are refused with
error 04, a name outside 1 to 255 bytes with error 12; the connection stays open.

This module must not know which settings exist, or what a request does.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, TypeAlias

from seawall.core.types import Seq, TopicId
from seawall.errors import InvalidInputError, LimitError
from seawall.limits import TAG_SIZE_MAX, TOPIC_SETTINGS_SIZE_MAX
from seawall.wire.format.codes import Command, DeleteBy
from seawall.wire.format.fields import (
    Buffer,
    JsonObject,
    JsonValue,
    malformed,
    pack,
    read_flags,
    read_json_object,
    read_text,
    require_at_least,
    require_exact,
    require_zero,
    write_json,
    write_text,
)
from seawall.wire.lwp1.requests import read_name, write_name

_NAME_LENGTH: Final = Struct("<H")
_TOPIC: Final = Struct("<I")
_DELETE: Final = Struct("<IBBHQ")
_COUNT: Final = Struct("<Q")

assert _DELETE.size == 16


@dataclass(frozen=True, slots=True)
class TopicCreate:
    """Create a topic with any settings."""

    COMMAND: ClassVar[Command] = Command.TOPIC_CREATE
    name: str
    settings: JsonObject

    def encode(self) -> bytes:
        """The payload."""
        name = write_name(self.name)
        return _NAME_LENGTH.pack(len(name)) + name + _write_settings(self.settings)


@dataclass(frozen=True, slots=True)
class TopicConfigure:
    """Change settings of a topic; the others stay."""

    COMMAND: ClassVar[Command] = Command.TOPIC_CONFIGURE
    topic_id: TopicId
    settings: JsonObject

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "TOPIC_CONFIGURE", self.topic_id) + _write_settings(self.settings)


@dataclass(frozen=True, slots=True)
class TopicDescribe:
    """Ask for everything about a topic."""

    COMMAND: ClassVar[Command] = Command.TOPIC_DESCRIBE
    topic_id: TopicId

    def encode(self) -> bytes:
        """The payload."""
        return pack(_TOPIC, "TOPIC_DESCRIBE", self.topic_id)


@dataclass(frozen=True, slots=True)
class TopicFind:
    """Ask for the id of a name; also allowed with write-only access."""

    COMMAND: ClassVar[Command] = Command.TOPIC_FIND
    name: str

    def encode(self) -> bytes:
        """The payload."""
        return write_name(self.name)


@dataclass(frozen=True, slots=True)
class RecordsDelete:
    """Delete the records that match all given conditions: below a seq, with a tag, or with a tag prefix."""

    COMMAND: ClassVar[Command] = Command.RECORDS_DELETE
    topic_id: TopicId
    before_seq: Seq | None = None
    tag: str | None = None
    tag_prefix: str | None = None

    def encode(self) -> bytes:
        """The payload."""
        by = DeleteBy.NONE
        for given, bit in (
            (self.before_seq, DeleteBy.BEFORE),
            (self.tag, DeleteBy.TAG),
            (self.tag_prefix, DeleteBy.TAG_PREFIX),
        ):
            by |= DeleteBy.NONE if given is None else bit
        if problem := _which_problem(by):
            raise InvalidInputError(f"RECORDS_DELETE: {problem}")
        tag = write_text(self.tag or self.tag_prefix or "", TAG_SIZE_MAX, "tag")
        fixed = pack(_DELETE, "RECORDS_DELETE", self.topic_id, by, 0, len(tag), self.before_seq or 0)
        return fixed + tag


@dataclass(frozen=True, slots=True)
class RecordsDeleted:
    """The number of records deleted durably."""

    COMMAND: ClassVar[Command] = Command.RECORDS_DELETED
    count: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_COUNT, "RECORDS_DELETED", self.count)


TopicRequest: TypeAlias = TopicCreate | TopicConfigure | TopicDescribe | TopicFind | RecordsDelete


def parse_topic_create(payload: Buffer) -> TopicCreate:
    """Parse a client's TOPIC_CREATE."""
    require_at_least(_NAME_LENGTH.size, "TOPIC_CREATE", payload)
    (length,) = _NAME_LENGTH.unpack_from(payload)
    end = _NAME_LENGTH.size + length
    require_at_least(end, "TOPIC_CREATE", payload)
    settings = payload[end:]
    return TopicCreate(read_name(payload[_NAME_LENGTH.size : end]), _read_settings(settings) if len(settings) else {})


def parse_topic_configure(payload: Buffer) -> TopicConfigure:
    """Parse a client's TOPIC_CONFIGURE."""
    require_at_least(_TOPIC.size, "TOPIC_CONFIGURE", payload)
    (topic_id,) = _TOPIC.unpack_from(payload)
    return TopicConfigure(topic_id, _read_settings(payload[_TOPIC.size :]))


def parse_topic_describe(payload: Buffer) -> TopicDescribe:
    """Parse a client's TOPIC_DESCRIBE."""
    require_exact(_TOPIC, "TOPIC_DESCRIBE", payload)
    return TopicDescribe(*_TOPIC.unpack(payload))


def parse_topic_find(payload: Buffer) -> TopicFind:
    """Parse a client's TOPIC_FIND."""
    return TopicFind(read_name(payload))


def parse_records_delete(payload: Buffer) -> RecordsDelete:
    """Parse a client's RECORDS_DELETE."""
    what = "RECORDS_DELETE"
    require_at_least(_DELETE.size, what, payload)
    topic_id, which, reserved, tag_length, before_seq = _DELETE.unpack_from(payload)
    require_zero(what, reserved)
    by = read_flags(DeleteBy, which, what)
    problem = _which_problem(by)
    tags = by & (DeleteBy.TAG | DeleteBy.TAG_PREFIX)
    if not problem and (len(payload) != _DELETE.size + tag_length or tag_length > TAG_SIZE_MAX):
        problem = f"{len(payload)} bytes for a tag of {tag_length}, which has at most {TAG_SIZE_MAX}"
    if not problem and ((before_seq and not by & DeleteBy.BEFORE) or (tag_length and not tags)):
        problem = "a seq or a tag without its bit"
    if problem:
        raise malformed(f"{what}: {problem}")
    tag = read_text(payload[_DELETE.size :], "tag")
    return RecordsDelete(
        topic_id,
        Seq(before_seq) if by & DeleteBy.BEFORE else None,
        tag if by & DeleteBy.TAG else None,
        tag if by & DeleteBy.TAG_PREFIX else None,
    )


def parse_records_deleted(payload: Buffer) -> RecordsDeleted:
    """Parse a server's RECORDS_DELETED."""
    require_exact(_COUNT, "RECORDS_DELETED", payload)
    return RecordsDeleted(*_COUNT.unpack(payload))


def _which_problem(by: DeleteBy) -> str:
    if not by:
        return "select records: below a seq, with a tag, or both"
    if by & DeleteBy.TAG and by & DeleteBy.TAG_PREFIX:
        return "a delete by tag needs a whole tag or a prefix, not both"
    return ""


def _write_settings(settings: JsonObject) -> bytes:
    data = write_json(settings)
    if len(data) > TOPIC_SETTINGS_SIZE_MAX:
        raise LimitError(f"settings of a topic: {len(data)} bytes, at most {TOPIC_SETTINGS_SIZE_MAX}")
    return data


def _read_settings(data: Buffer) -> dict[str, JsonValue]:
    if len(data) > TOPIC_SETTINGS_SIZE_MAX:
        raise malformed(f"settings of a topic: {len(data)} bytes, at most {TOPIC_SETTINGS_SIZE_MAX}")
    return read_json_object(data, "settings of a topic")
