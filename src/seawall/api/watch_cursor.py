"""Cursors of watches: the position of every topic as a text that a program can store.

A cursor is base64url, without padding, of these bytes, compressed by zlib:

| bytes | field                                                                                     |
|-------|-------------------------------------------------------------------------------------------|
| 1     | version, 1                                                                                |
| 4     | `later_from`: topics with ids from this on appear later                                   |
| 4     | count of topics                                                                           |
| 25+…  | each topic, sorted by name: epoch u64, next_seq u64, after_position u64, name length u8,  |
|       | name                                                                                      |

Numbers are little-endian; `later_from`, epochs and seqs are not 0. The topics are distinct, and nothing follows them.
Any other text is refused. zlib has a checksum, so a truncated or changed cursor is noticed.

A cursor takes about 20 bytes a topic, and its creation a microsecond. This module must not know where a log is.
"""

from __future__ import annotations

import struct
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from seawall import limits
from seawall.core.identifiers import check_topic_name
from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.core.watches import WatchPosition
from seawall.errors import InvalidInputError, SeawallError

_VERSION: Final = 1
_HEAD: Final = Struct("<BII")
_TOPIC: Final = Struct("<QQQB")

#: Bytes of the largest cursor before compression, and characters of its text.
_SIZE_MAX: Final = _HEAD.size + limits.WATCH_TOPICS_MAX * (_TOPIC.size + limits.TOPIC_NAME_SIZE_MAX)
_TEXT_MAX: Final = 2 * _SIZE_MAX


class WatchCursor(NamedTuple):
    """The positions of a watch, and the id from which on topics have appeared later."""

    positions: Mapping[str, WatchPosition]
    later_from: TopicId


def encode_cursor(cursor: WatchCursor) -> str:
    """The text of a cursor."""
    pieces = [_HEAD.pack(_VERSION, cursor.later_from, len(cursor.positions))]
    for name, (epoch, next_seq, after_position) in sorted(cursor.positions.items()):
        encoded = name.encode()
        pieces += (_TOPIC.pack(epoch, next_seq, after_position, len(encoded)), encoded)
    return urlsafe_b64encode(zlib.compress(b"".join(pieces))).rstrip(b"=").decode()


def parse_cursor(text: str) -> WatchCursor:
    """The cursor of a text; `InvalidInputError` if it is none."""
    try:
        return _parse(_decompressed(text))
    except (ValueError, struct.error, zlib.error, SeawallError) as error:
        raise InvalidInputError(f"cursor {text[:20]!r}… is not one that a watch has returned: {error}") from error


def _decompressed(text: str) -> bytes:
    if len(text) > _TEXT_MAX:
        raise InvalidInputError(f"{len(text)} characters, at most {_TEXT_MAX}")
    data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    stream = zlib.decompressobj()
    found = stream.decompress(data, _SIZE_MAX)
    if not stream.eof or stream.unused_data:
        raise InvalidInputError("it is truncated, or something follows it")
    return found


def _parse(data: bytes) -> WatchCursor:
    version, later_from, count = _HEAD.unpack_from(data)
    if version != _VERSION or not later_from:
        raise InvalidInputError(f"version {version}, topics later than {later_from}")
    positions: dict[str, WatchPosition] = {}
    at = _HEAD.size
    for _ in range(count):
        epoch, next_seq, after_position, length = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size
        name = check_topic_name(data[at : at + length].decode())
        at += length
        if not epoch or not next_seq:
            raise InvalidInputError(f"topic {name!r} with epoch {epoch} and seq {next_seq}")
        positions[name] = WatchPosition(TopicEpoch(epoch), Seq(next_seq), Position(after_position))
    if at != len(data) or len(positions) != count:
        raise InvalidInputError(f"{count} topics in {len(data)} bytes")
    return WatchCursor(positions, TopicId(later_from))
