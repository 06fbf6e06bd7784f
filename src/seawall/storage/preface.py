"""The preface, the header of every file in a data directory: its kind, its format, and the directory that owns it.

It takes the first 72 bytes of a file. The rest of the first 4,096 is zero, so that content starts on its own page and
no write of content can tear the preface.

| at | size | field        | notes                                                                                    |
|----|------|--------------|------------------------------------------------------------------------------------------|
| 0  | 8    | magic        | `SEAWALL` and a zero byte                                                                |
| 8  | 4    | kind         | `FileKind`                                                                               |
| 12 | 4    | format       | 2                                                                                        |
| 16 | 16   | directory_id | of the data directory, the same in all its files                                         |
| 32 | 8    | salt         | WAL: random, repeated by every epoch in the file; elsewhere 0                            |
| 40 | 8    | first        | WAL: address of its first epoch; snapshot: position; directory: 1 once it has a log, 0   |
|    |      |              | before; elsewhere first seq of the segment                                               |
| 48 | 8    | created_ns   | for people                                                                               |
| 56 | 8    | size         | WAL: bytes that were reserved for the file; elsewhere 0                                  |
| 64 | 4    | topic_id     | WAL, snapshot, directory: 0                                                              |
| 68 | 4    | crc          | CRC-32C of bytes 0–67                                                                    |

Valid: magic and checksum match, bytes 72–4,095 are zero as far as they were read, the format is one this reader knows,
the kind is the expected one, and so is the directory. Checked in this order; the error reports the first that fails.

Formats. A reader accepts the newest format and those in `READABLE_FORMATS`; a writer writes the newest. A directory
migrates file by file, as files are rewritten, never in place. Format 1 had no size, and its checksum at byte 60: such a
file is refused as one of format 1, not reported as damaged.

This module must not know what follows the preface.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from seawall.errors import ChecksumError, CorruptionError, InvalidInputError, UnsupportedError
from seawall.limits import PAGE_SIZE
from seawall.wire.format.fields import Buffer, pack
from seawall.wire.format.frames import checksum

#: Position of the content in every file.
DATA_START: Final = PAGE_SIZE

PREFACE_SIZE: Final = 72
DIRECTORY_ID_SIZE: Final = 16

#: The format that this version writes, and all that it reads.
FORMAT: Final = 2
READABLE_FORMATS: Final = frozenset({FORMAT})

_MAGIC: Final = b"SEAWALL\0"
_FIELDS: Final = Struct("<8sII16sQQQQI")
_CRC: Final = Struct("<I")
#: The fields of format 1; its checksum follows them.
_FIELDS_1: Final = Struct("<8sII16sQQQI")

assert _FIELDS.size + _CRC.size == PREFACE_SIZE


class FileKind(IntEnum):
    """The kinds of files; the numbers never change."""

    DIRECTORY = 1
    WAL = 2
    SEGMENT = 3
    INDEX = 4
    DELETES = 5
    SNAPSHOT = 6
    ADOPTING = 7


@dataclass(frozen=True, slots=True)
class Preface:
    """The fields of a preface, as in the table of this module."""

    kind: FileKind
    directory_id: bytes
    _: KW_ONLY
    first: int = 0
    salt: int = 0
    created_ns: int = 0
    size: int = 0
    topic_id: int = 0
    format: int = FORMAT

    def __post_init__(self) -> None:
        if len(self.directory_id) != DIRECTORY_ID_SIZE:
            raise InvalidInputError(f"a directory id of {len(self.directory_id)} bytes, must have {DIRECTORY_ID_SIZE}")

    def encode(self) -> bytes:
        """The first 4,096 bytes of the file."""
        fields = pack(
            _FIELDS,
            "preface",
            _MAGIC,
            self.kind,
            self.format,
            self.directory_id,
            self.salt,
            self.first,
            self.created_ns,
            self.size,
            self.topic_id,
        )
        return (fields + _CRC.pack(checksum(fields))).ljust(DATA_START, b"\0")

    @classmethod
    def parse(cls, data: Buffer, *, kind: FileKind, directory_id: bytes | None = None, path: str = "file") -> Preface:
        """Parse the preface at the beginning of a file; `path` is for messages.

        Without a `directory_id` the file may belong to any directory.
        """
        if len(data) < PREFACE_SIZE or bytes(data[:8]) != _MAGIC:
            raise CorruptionError(f"{path}: not a file of Seawall: it begins with {bytes(data[:8])!r}")
        if _is_format_1(data):
            raise _unsupported(path, 1)
        if checksum(data[: _FIELDS.size]) != _CRC.unpack_from(data, _FIELDS.size)[0]:
            raise ChecksumError(f"{path}: checksum of the preface does not match")
        if bytes(data[PREFACE_SIZE:DATA_START]).strip(b"\0"):
            raise CorruptionError(f"{path}: bytes {PREFACE_SIZE} to {DATA_START - 1} are not all zero")
        _, number, written_format, owner, salt, first, created_ns, size, topic_id = _FIELDS.unpack_from(data)
        if written_format not in READABLE_FORMATS:
            raise _unsupported(path, written_format)
        if number != kind:
            raise CorruptionError(f"{path}: a file of kind {number} where kind {kind:d} ({kind.name}) belongs")
        if directory_id is not None and owner != directory_id:
            raise CorruptionError(f"{path}: belongs to directory {owner.hex()}, not to {directory_id.hex()}")
        return cls(
            kind,
            owner,
            first=first,
            salt=salt,
            created_ns=created_ns,
            size=size,
            topic_id=topic_id,
            format=written_format,
        )


def _is_format_1(data: Buffer) -> bool:
    """True if `data` begins with a valid preface of format 1."""
    _, _, written_format, *_ = _FIELDS_1.unpack_from(data)
    crc: int = _CRC.unpack_from(data, _FIELDS_1.size)[0]
    return written_format == 1 and checksum(data[: _FIELDS_1.size]) == crc


def _unsupported(path: str, written_format: int) -> UnsupportedError:
    if written_format < FORMAT:
        remedy = "this format was never released and is not converted; read it with the version that wrote it"
    else:
        remedy = "open it with the version that wrote it, or a later one"
    return UnsupportedError(
        f"{path}: written in format {written_format}, this version reads format {FORMAT} alone; {remedy}"
    )
