"""Sidecars: checksummed files next to a segment with rows of a fixed size, replaced as a whole.

| at    | size | field | notes                                                                                 |
|-------|------|-------|---------------------------------------------------------------------------------------|
| 0     | 4096 |       | preface (`preface.py`); its kind says what the rows are, its first seq names the segment |
| 4096  | 8    | count | number of rows u64                                                                    |
| 4104  | …    | rows  |                                                                                       |
| end−4 | 4    | crc   | CRC-32C u32 of everything before it                                                   |

Valid: the preface is valid and names the directory, the topic and the segment; the file has exactly the length that
the count requires; the checksum matches. The modules that use sidecars define the meaning and order of the rows.

Reading copies the file into memory and verifies the copy; later changes of the file have no effect.

A crash leaves the complete old file or the complete new one (`io/disk/files.py`).
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import Final

from seawall.errors import ChecksumError, CorruptionError
from seawall.io.disk.files import read_exactly, replace_file
from seawall.io.interfaces import Files
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import checksum

__all__ = ["read_rows", "write_rows"]

_COUNT: Final = Struct("<Q")
_CRC: Final = Struct("<I")
_ROWS_AT: Final = DATA_START + _COUNT.size


def write_rows(files: Files, path: str, kind: FileKind, rows: Buffer, count: int, segment: Preface) -> None:
    """Write a sidecar of the segment with this preface, durably, replacing an existing one.

    The bytes depend on the arguments alone, so that rebuilding a lost file gives the same one.
    """
    content = b"".join((replace(segment, kind=kind).encode(), _COUNT.pack(count), rows))
    replace_file(files, path, content + _CRC.pack(checksum(content)))


def read_rows(files: Files, path: str, kind: FileKind, row_size: int, segment: Preface) -> bytes:
    """Read and verify the rows of the sidecar at `path`.

    `CorruptionError` if the file is damaged or belongs to another segment.
    """
    file = files.open(path, read_only=True)
    try:
        content = memoryview(read_exactly(file, file.size(), 0))
    finally:
        file.close()
    preface = Preface.parse(content[:DATA_START], kind=kind, directory_id=segment.directory_id, path=path)
    if (preface.first, preface.topic_id) != (segment.first, segment.topic_id):
        raise CorruptionError(
            f"{path}: belongs to seq {preface.first} of topic {preface.topic_id}, "
            f"not to seq {segment.first} of topic {segment.topic_id}"
        )
    end = len(content) - _CRC.size
    if end < _ROWS_AT or end != _ROWS_AT + _COUNT.unpack_from(content, DATA_START)[0] * row_size:
        raise CorruptionError(f"{path}: {len(content)} bytes are not the length that its number of rows requires")
    if checksum(content[:end]) != _CRC.unpack_from(content, end)[0]:
        raise ChecksumError(f"{path}: checksum of the file does not match")
    # A copy, so that only the rows stay in memory.
    return bytes(content[_ROWS_AT:end])
