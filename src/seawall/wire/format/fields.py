"""Helpers of all codecs in this package to read and write fixed fields, text and JSON.

It must not know any frame or payload: callers pass the layout, and the name of the thing for error messages.

Rules
- INV-TYPED-ERRORS: whatever bytes come in, a codec raises only errors of `seawall.errors`. This module converts
  `struct.error`, `UnicodeDecodeError`, `JSONDecodeError` and `RecursionError`.
- A payload of version 2 has exactly its stated length, and a field specified as 0 must be 0: extensions must be
  negotiated. A payload of version 1 may be longer than stated; the rest is ignored, as published.
- Integers are little-endian and packed without padding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import IntEnum, IntFlag
from functools import cache
from struct import Struct
from typing import TypeAlias, TypeVar

from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.wire.format.codes import ErrorCode

#: Bytes from a socket, a file or a caller.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: A value of a JSON document.
JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]

#: The only form of JSON that is written.
_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode

_EnumType = TypeVar("_EnumType", bound=IntEnum)
_FlagType = TypeVar("_FlagType", bound=IntFlag)


def malformed(message: str, code: ErrorCode = ErrorCode.INVALID_PAYLOAD) -> ProtocolError:
    """The error that refuses one payload: its sender gets it, the connection stays open."""
    return ProtocolError(message, code=int(code), closes=False)


def pack(layout: Struct, what: str, *values: int | bytes) -> bytes:
    """Pack the fields of `what`; `InvalidInputError` if a value does not fit its field."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise InvalidInputError(f"{what}: a value does not fit its field ({error}): {values!r}") from error


def require_exact(layout: Struct, what: str, payload: Buffer) -> None:
    """Refuse a payload whose length is not exactly the size of its layout."""
    if len(payload) != layout.size:
        raise malformed(f"{what}: payload has {len(payload)} bytes, must have {layout.size}")


def require_at_least(size: int, what: str, payload: Buffer) -> None:
    """Refuse a payload too short for its fixed fields."""
    if len(payload) < size:
        raise malformed(f"{what}: payload has {len(payload)} bytes, needs at least {size}")


def require_zero(what: str, *reserved: int) -> None:
    """Refuse a version 2 payload with a reserved field that is not 0."""
    if any(reserved):
        raise malformed(f"{what}: a reserved field is not 0")


def read_enum(kind: type[_EnumType], value: int, what: str) -> _EnumType:
    """The member of the enum, or `ProtocolError`."""
    try:
        return kind(value)
    except ValueError as error:
        raise malformed(f"{what}: {value} is not one of {', '.join(f'{one:d} {one.name}' for one in kind)}") from error


def read_flags(kind: type[_FlagType], value: int, what: str) -> _FlagType:
    """The flags, or `ProtocolError` if unknown bits are set."""
    known = _known_bits(kind)
    if value & ~known:
        raise malformed(f"{what}: flags {value:#04x} have bits outside {known:#04x}")
    return kind(value)


@cache
def _known_bits(kind: type[IntFlag]) -> int:
    known = 0
    for one in kind:
        known |= int(one)
    return known


def read_text(data: Buffer, what: str, code: ErrorCode = ErrorCode.INVALID_PAYLOAD) -> str:
    """Decode UTF-8 bytes, or raise `ProtocolError`."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise malformed(f"{what}: not UTF-8 ({error.reason} at byte {error.start})", code) from error


def write_text(text: str, size_max: int, what: str) -> bytes:
    """Encode text as UTF-8 within a bound; `InvalidInputError` for an unpaired surrogate."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{what}: not encodable as UTF-8 ({error.reason})") from error
    if len(data) > size_max:
        raise LimitError(f"{what}: {len(data)} bytes, at most {size_max}")
    return data


def write_json(document: JsonObject) -> bytes:
    """Encode a document in the protocol's only form: compact, keys in the given order, UTF-8."""
    try:
        return _encode_json(document).encode()
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"a reply cannot be encoded as JSON: {error}") from error


def read_json_object(data: Buffer, what: str) -> dict[str, JsonValue]:
    """Decode a JSON object, or raise `ProtocolError`, also if it is nested too deeply for the interpreter."""
    try:
        document = json.loads(read_text(data, what))
    except (ValueError, RecursionError) as error:
        raise malformed(f"{what}: not JSON ({type(error).__name__})") from error
    if not isinstance(document, dict):
        raise malformed(f"{what}: must be a JSON object, not {type(document).__name__}")
    return document


def json_unsigned(document: JsonObject, key: str, what: str, bits: int = 64) -> int:
    """The unsigned integer under `key`, or `ProtocolError`. A boolean is not a number."""
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << bits:
        raise malformed(f"{what}: {key} must be an integer of {bits} bits")
    return value


def json_signed(document: JsonObject, key: str, what: str) -> int:
    """The integer of 32 bits under `key`, or `ProtocolError`. A boolean is not a number."""
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 31) <= value < 1 << 31:
        raise malformed(f"{what}: {key} must be an integer of 32 bits")
    return value


def json_text(document: JsonObject, key: str, what: str) -> str:
    """The string under `key`, or `ProtocolError`."""
    value = document.get(key)
    if not isinstance(value, str):
        raise malformed(f"{what}: {key} must be a string")
    return value


def json_flag(document: JsonObject, key: str, what: str) -> bool:
    """The boolean under `key`, or `ProtocolError`."""
    value = document.get(key)
    if not isinstance(value, bool):
        raise malformed(f"{what}: {key} must be true or false")
    return value


def json_object(document: JsonObject, key: str, what: str) -> dict[str, JsonValue]:
    """The object under `key`, or `ProtocolError`."""
    value = document.get(key)
    if not isinstance(value, dict):
        raise malformed(f"{what}: {key} must be an object")
    return value
