"""MessagePack: values as bytes, as <https://msgpack.org> specifies them. Numbers are big-endian.

| first byte | value                          | then                                                                  |
|------------|--------------------------------|-----------------------------------------------------------------------|
| 00 – 7F    | integer 0 – 127                |                                                                       |
| 80 – 8F    | map of 0 – 15 pairs            | keys and values in turn                                               |
| 90 – 9F    | array of 0 – 15 items          | the items                                                             |
| A0 – BF    | text of 0 – 31 bytes           | UTF-8                                                                 |
| C0, C2, C3 | null, false, true              |                                                                       |
| C4, C5, C6 | bytes                          | their length u8, u16, u32; the bytes                                  |
| CA, CB     | float                          | f32, f64                                                              |
| CC – CF    | integer                        | u8, u16, u32, u64                                                     |
| D0 – D3    | integer                        | i8, i16, i32, i64                                                     |
| D9, DA, DB | text                           | its length in bytes u8, u16, u32; UTF-8                               |
| DC, DD     | array                          | the number of items u16, u32; the items                               |
| DE, DF     | map                            | the number of pairs u16, u32; keys and values in turn                 |
| E0 – FF    | integer −32 – −1               |                                                                       |

Bytes are valid if they are one value and nothing else, with keys that are texts, integers or bytes, and values nested
at most `DEPTH_MAX` deep. Extension types (C7 – C9, D4 – D8) are refused, so no bytes can name a type of Python.

This module must not know what the values are for.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from seawall.errors import CorruptionError

#: How deep values may be nested: fewer levels than Python has frames.
DEPTH_MAX: Final = 100

_U8, _U16, _U32, _U64 = (Struct(f">{letter}") for letter in "BHIQ")
_I8, _I16, _I32, _I64 = (Struct(f">{letter}") for letter in "bhiq")
_F32, _F64 = Struct(">f"), Struct(">d")

_NUMBERS: Final = {0xCA: _F32, 0xCB: _F64} | dict(enumerate((_U8, _U16, _U32, _U64, _I8, _I16, _I32, _I64), start=0xCC))
#: The first byte of a longer value, and the number of its length.
_BYTES: Final = ((0xC4, _U8), (0xC5, _U16), (0xC6, _U32))
_TEXTS: Final = ((0xD9, _U8), (0xDA, _U16), (0xDB, _U32))
_ARRAYS: Final = ((0xDC, _U16), (0xDD, _U32))
_MAPS: Final = ((0xDE, _U16), (0xDF, _U32))
_LENGTHS: Final = dict((*_BYTES, *_TEXTS, *_ARRAYS, *_MAPS))
_CONSTANTS: Final[dict[int, bool | None]] = {0xC0: None, 0xC2: False, 0xC3: True}


class Packer:
    """Writes one value."""

    def __init__(self) -> None:
        self.data = bytearray()
        #: The keys and indexes that lead to the value that is written now; after an error, to what does not fit.
        self.path: list[object] = []

    def add(self, value: object) -> None:
        """Write a value; `ValueError` if it has no MessagePack. Tuples are arrays."""
        if len(self.path) > DEPTH_MAX:
            raise ValueError(f"is nested more than {DEPTH_MAX} levels deep")
        match value:
            case None | bool():
                self.data.append(0xC0 if value is None else 0xC2 + value)
            case int():
                self._add_integer(value)
            case float():
                self.data += b"\xcb" + _F64.pack(value)
            case str():
                try:
                    encoded = value.encode()
                except UnicodeEncodeError as error:
                    raise ValueError(f"is a text that is not UTF-8: {error}") from error
                self._add_head(len(encoded), 0xA0, 31, _TEXTS)
                self.data += encoded
            case bytes():
                self._add_head(len(value), 0, -1, _BYTES)
                self.data += value
            case list() | tuple():
                self._add_head(len(value), 0x90, 15, _ARRAYS)
                for index, item in enumerate(value):
                    self._add_inner(index, item)
            case dict():
                self._add_head(len(value), 0x80, 15, _MAPS)
                for key, item in value.items():
                    if not _is_key(key):
                        raise ValueError(f"has the key {key!r}: give texts, integers or bytes as keys")
                    self.add(key)
                    self._add_inner(key, item)
            case _:
                raise ValueError(
                    f"is of type {type(value).__name__}: give null, booleans, numbers, strings, bytes, lists or dicts"
                )

    def _add_inner(self, at: object, value: object) -> None:
        self.path.append(at)
        self.add(value)
        self.path.pop()

    def _add_integer(self, value: int) -> None:
        if -32 <= value < 128:
            self.data += _I8.pack(value)
        elif 0 <= value < 1 << 64:
            size = next(size for size in range(4) if value < 1 << (8 << size))
            self.data += bytes((0xCC + size,)) + value.to_bytes(1 << size)
        elif -(1 << 63) <= value < 0:
            size = next(size for size in range(4) if value >= -(1 << ((8 << size) - 1)))
            self.data += bytes((0xD0 + size,)) + value.to_bytes(1 << size, signed=True)
        else:
            raise ValueError("is an integer of more than 64 bits")

    def _add_head(self, length: int, first: int, short_max: int, longer: tuple[tuple[int, Struct], ...]) -> None:
        """Write a type and a length: short ones in one byte."""
        if length <= short_max:
            self.data.append(first + length)
            return
        for code, number in longer:
            if length < 1 << (8 * number.size):
                self.data.append(code)
                self.data += number.pack(length)
                return
        raise ValueError(f"has a length of {length}: at most {(1 << 32) - 1} fit")


def unpacked(data: bytes) -> object:
    """The value in some bytes; `CorruptionError` if they are not exactly one."""
    reader = _Reader(memoryview(data))
    value = reader.value(0)
    if reader.at != len(data):
        raise CorruptionError(f"the MessagePack value ends after {reader.at} of {len(data)} bytes")
    return value


class _Reader:
    """Reads values one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    def value(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            raise self._invalid(f"is nested more than {DEPTH_MAX} levels deep")
        code = self._take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code < 0xC0:
            return self._longer(code & (0x1F if code >= 0xA0 else 0x0F), code & (0xE0 if code >= 0xA0 else 0xF0), depth)
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        if code in _LENGTHS:
            return self._longer(int(self._number(_LENGTHS[code])), code, depth)
        raise self._invalid(f"has the type {code:02X}")

    def _longer(self, length: int, code: int, depth: int) -> object:
        """A value with a length; `code` is that of its type."""
        if code in (0x80, 0xDE, 0xDF):
            self._require(2 * length)
            return dict(self._pair(depth) for _ in range(length))
        if code in (0x90, 0xDC, 0xDD):
            self._require(length)
            return [self.value(depth + 1) for _ in range(length)]
        found = bytes(self._take(length))
        if code in (0xC4, 0xC5, 0xC6):
            return found
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise self._invalid(f"is a text that is not UTF-8: {error}") from error

    def _pair(self, depth: int) -> tuple[object, object]:
        key = self.value(depth + 1)
        if not _is_key(key):
            raise self._invalid(f"is a key of type {type(key).__name__}")
        return key, self.value(depth + 1)

    def _number(self, number: Struct) -> int | float:
        (found,) = number.unpack(self._take(number.size))
        assert isinstance(found, int | float)
        return found

    def _take(self, length: int) -> memoryview:
        self._require(length)
        self.at += length
        return self._data[self.at - length : self.at]

    def _require(self, length: int) -> None:
        """Raise unless there are so many bytes left."""
        if length > len(self._data) - self.at:
            raise self._invalid(f"needs {length} bytes, and {len(self._data) - self.at} are left")

    def _invalid(self, what: str) -> CorruptionError:
        return CorruptionError(f"the MessagePack value before byte {self.at} {what}")


def _is_key(value: object) -> bool:
    return isinstance(value, str | int | bytes) and not isinstance(value, bool)
