"""Version 2 payloads of routers. Version 1 has no such frames.

| code | frame           | bytes  | payload                                                                            |
|------|-----------------|--------|------------------------------------------------------------------------------------|
| 71   | ROUTER_PUT      | 8 + …  | flags u8 (1 create the destination), 0 u8, name length u16, source length u16,     |
|      |                 |        | destination length u16, name, source, destination, then the settings as a JSON     |
|      |                 |        | object, or nothing for none                                                        |
| 72   | ROUTER_DESCRIBE | …      | name                                                                               |
| 73   | ROUTER_LIST     | 8 + …  | at most count u32, 0 u32, then the name after which the list begins, or nothing    |
| 74   | ROUTER_DELETE   | …      | name                                                                               |
| 75   | ROUTERS         | …      | a JSON object: `routers`, an array of objects, below                               |

    name, source, dest   the router and its topics
    forwarded            the records that it has copied
    next_seq             the seq of the source that it reads next
    blocked              why the destination refuses its copies; null if nothing blocks it
    tag, tag_prefix, …   every setting (`core/routers.py`)

The answer to all requests is 75. For 71 and 72: the router. For 73: the routers with names above the given one, by
ascending name, at most `count` of them and at most `ROUTERS_LISTED_MAX`. For 74: the router as it was.

A payload is valid if its names have 1 to 255 bytes of UTF-8, the settings at most `TOPIC_SETTINGS_SIZE_MAX` bytes, all
known and in range, `count` is at least 1, and fields specified as 0 are 0. Other payloads are refused with error 04, a
topic name with error 12; the connection stays open.

This module must not know what a request does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from struct import Struct
from typing import ClassVar, Final, TypeAlias

from seawall.core.routers import RouterInfo, RouterSettings
from seawall.core.types import Seq
from seawall.errors import InvalidInputError
from seawall.limits import TOPIC_NAME_SIZE_MAX, TOPIC_SETTINGS_SIZE_MAX
from seawall.wire.format.codes import Command
from seawall.wire.format.fields import (
    Buffer,
    JsonValue,
    json_text,
    json_unsigned,
    malformed,
    pack,
    read_flags,
    read_json_object,
    read_text,
    require_at_least,
    require_zero,
    write_json,
    write_text,
)
from seawall.wire.lwp1.requests import read_name, write_name

_PUT: Final = Struct("<BBHHH")
_LIST: Final = Struct("<II")
_WHAT: Final = "ROUTERS"

#: The keys of a router in ROUTERS besides its settings.
_FIXED: Final = ("name", "source", "dest", "forwarded", "next_seq", "blocked")


class RouterPutFlags(IntFlag):
    """What ROUTER_PUT may do besides."""

    NONE = 0x00
    CREATE_DEST = 0x01


@dataclass(frozen=True, slots=True)
class RouterPut:
    """Create a router, or change its settings."""

    COMMAND: ClassVar[Command] = Command.ROUTER_PUT
    name: str
    source: str
    dest: str
    settings: RouterSettings
    create_dest: bool = True

    def encode(self) -> bytes:
        """The payload."""
        names = [_write_router(self.name), write_name(self.source), write_name(self.dest)]
        flags = RouterPutFlags.CREATE_DEST if self.create_dest else RouterPutFlags.NONE
        fixed = pack(_PUT, "ROUTER_PUT", flags, 0, *map(len, names))
        return b"".join((fixed, *names, write_json(self.settings.document())))


@dataclass(frozen=True, slots=True)
class RouterDescribe:
    """Ask for everything about a router."""

    COMMAND: ClassVar[Command] = Command.ROUTER_DESCRIBE
    name: str

    def encode(self) -> bytes:
        """The payload."""
        return _write_router(self.name)


@dataclass(frozen=True, slots=True)
class RouterList:
    """Ask for a list of routers."""

    COMMAND: ClassVar[Command] = Command.ROUTER_LIST
    after: str
    count: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_LIST, "ROUTER_LIST", self.count, 0) + write_text(self.after, TOPIC_NAME_SIZE_MAX, "router name")


@dataclass(frozen=True, slots=True)
class RouterDelete:
    """Delete a router."""

    COMMAND: ClassVar[Command] = Command.ROUTER_DELETE
    name: str

    def encode(self) -> bytes:
        """The payload."""
        return _write_router(self.name)


@dataclass(frozen=True, slots=True)
class RoutersReply:
    """A list of routers."""

    COMMAND: ClassVar[Command] = Command.ROUTERS
    routers: tuple[RouterInfo, ...]

    def encode(self) -> bytes:
        """The payload."""
        return write_json({"routers": [router_document(router) for router in self.routers]})


RouterRequest: TypeAlias = RouterPut | RouterDescribe | RouterList | RouterDelete


def parse_router_put(payload: Buffer) -> RouterPut:
    """Parse a client's ROUTER_PUT."""
    what = "ROUTER_PUT"
    require_at_least(_PUT.size, what, payload)
    flags, zero, *lengths = _PUT.unpack_from(payload)
    require_zero(what, zero)
    ends = [_PUT.size + sum(lengths[: number + 1]) for number in range(3)]
    require_at_least(ends[-1], what, payload)
    name, source, dest = (payload[end - length : end] for end, length in zip(ends, lengths, strict=True))
    settings = payload[ends[-1] :]
    if len(settings) > TOPIC_SETTINGS_SIZE_MAX:
        raise malformed(f"settings of a router: {len(settings)} bytes, at most {TOPIC_SETTINGS_SIZE_MAX}")
    return RouterPut(
        _read_router(name),
        read_name(source),
        read_name(dest),
        _settings(read_json_object(settings, "settings of a router") if len(settings) else {}),
        bool(read_flags(RouterPutFlags, flags, what)),
    )


def parse_router_describe(payload: Buffer) -> RouterDescribe:
    """Parse a client's ROUTER_DESCRIBE."""
    return RouterDescribe(_read_router(payload))


def parse_router_list(payload: Buffer) -> RouterList:
    """Parse a client's ROUTER_LIST."""
    require_at_least(_LIST.size, "ROUTER_LIST", payload)
    count, zero = _LIST.unpack_from(payload)
    require_zero("ROUTER_LIST", zero)
    if not count:
        raise malformed("ROUTER_LIST: 0 routers; at least 1")
    after = payload[_LIST.size :]
    return RouterList(_read_router(after) if len(after) else "", count)


def parse_router_delete(payload: Buffer) -> RouterDelete:
    """Parse a client's ROUTER_DELETE."""
    return RouterDelete(_read_router(payload))


def parse_routers_reply(payload: Buffer) -> RoutersReply:
    """Parse a server's ROUTERS."""
    found = read_json_object(payload, _WHAT).get("routers")
    if not isinstance(found, list):
        raise malformed(f"{_WHAT}: routers must be an array")
    return RoutersReply(tuple(_router(each) for each in found))


def router_document(router: RouterInfo) -> dict[str, JsonValue]:
    """A router as JSON, on the wire and on the command line."""
    return {
        "name": router.name,
        "source": router.source,
        "dest": router.dest,
        "forwarded": router.forwarded,
        "next_seq": router.next_seq,
        "blocked": router.blocked,
        **router.settings.document(),
    }


def _router(document: JsonValue) -> RouterInfo:
    if not isinstance(document, dict):
        raise malformed(f"{_WHAT}: a router must be an object")
    return RouterInfo(
        json_text(document, "name", _WHAT),
        json_text(document, "source", _WHAT),
        json_text(document, "dest", _WHAT),
        _settings({key: value for key, value in document.items() if key not in _FIXED}),
        json_unsigned(document, "forwarded", _WHAT),
        Seq(json_unsigned(document, "next_seq", _WHAT)),
        None if document.get("blocked") is None else json_text(document, "blocked", _WHAT),
    )


def _settings(document: dict[str, JsonValue]) -> RouterSettings:
    try:
        return RouterSettings.of(document)
    except InvalidInputError as error:
        raise malformed(str(error)) from error


def _write_router(name: str) -> bytes:
    if not name:
        raise InvalidInputError("a router name needs at least one character")
    return write_text(name, TOPIC_NAME_SIZE_MAX, "router name")


def _read_router(data: Buffer) -> str:
    if not 1 <= len(data) <= TOPIC_NAME_SIZE_MAX:
        raise malformed(f"router name of {len(data)} bytes, 1 to {TOPIC_NAME_SIZE_MAX}")
    return read_text(data, "router name")
