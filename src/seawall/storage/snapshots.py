"""Metadata snapshots: the state that the log describes up to a position, and the address where replay starts.

One file, `meta/snapshot-<position>.meta`, a preface of kind SNAPSHOT whose `first` is the position, and from 4,096 on:

| at     | size   | field        | notes                                                                        |
|--------|--------|--------------|------------------------------------------------------------------------------|
| 0      | 8      | position     | the snapshot includes the effect of all batches below it                     |
| 8      | 8      | wal_from_at  | log address where replay starts: everything before it is in segments         |
| 16     | 8      | length       | bytes of all sections                                                        |
| 24     | 4      | count        | of sections                                                                  |
| 28     | 4      | reserved     | 0                                                                            |
| 32     | length | sections     | each: kind u32, 0 u32, length u64, bytes; kinds rise                         |
| …      | 4      | crc          | CRC-32C of everything before it, the preface included                        |

Valid: the checksum matches, the file ends with it, every field is as in this table, and the name, the preface and the
content agree on the position. The packages that fill the sections (`topics`, the sequencer, the segments) define their
meaning: here they are JSON or plain bytes.

A snapshot is written by an atomic replace, so a crash leaves all of it or nothing. The store keeps the two newest valid
ones. If the newer one is damaged, it reports that and loads the older one, with more log to replay; therefore the log
may be trimmed only below `wal_needed_from`. A damaged snapshot is evidence: only a new one of the same position
replaces it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, unique
from struct import Struct
from typing import Final

from seawall import limits
from seawall.core.types import Position
from seawall.errors import ChecksumError, CorruptionError, LimitError, ProtocolError
from seawall.io.disk.files import REPLACEMENT_SUFFIX, read_exactly, replace_file
from seawall.io.interfaces import Files
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.wire.format.fields import JsonValue, pack, read_json_object
from seawall.wire.format.frames import checksum

_HEADER: Final = Struct("<QQQII")
_SECTION: Final = Struct("<IIQ")
_CRC: Final = Struct("<I")
_NAME: Final = re.compile(r"snapshot-([0-9]{20})\.meta")


@unique
class SectionKind(IntEnum):
    """The kinds of sections; the numbers never change."""

    CATALOG = 1
    TOPICS = 2
    CURSORS = 3
    SEGMENTS = 4
    KEYS = 5
    DELETED = 6
    CLIENT_ROWS = 7
    SKIPS = 8
    TRANSACTIONS = 9
    SESSIONS = 10
    LEASES = 11
    ROUTERS = 12


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after all batches below `position`; replay of the log starts at address `wal_from_at`."""

    position: Position
    wal_from_at: int
    created_ns: int
    sections: Mapping[SectionKind, bytes]

    def section(self, kind: SectionKind) -> bytes:
        """The bytes of a section; empty if the snapshot lacks it."""
        return self.sections.get(kind, b"")

    def document(self, kind: SectionKind) -> dict[str, JsonValue]:
        """The JSON object in a section; empty if the snapshot lacks it."""
        try:
            return read_json_object(self.section(kind) or b"{}", kind.name)
        except ProtocolError as error:
            raise CorruptionError(f"snapshot at position {self.position}: {error}") from error

    def encode(self, directory_id: bytes) -> bytes:
        """The bytes of the whole file."""
        preface = Preface(FileKind.SNAPSHOT, directory_id, first=self.position, created_ns=self.created_ns)
        sections: list[bytes] = []
        for kind in sorted(self.sections):
            content = self.sections[kind]
            sections += (_SECTION.pack(kind, 0, len(content)), content)
        length = sum(map(len, sections))
        header = pack(_HEADER, "snapshot", self.position, self.wal_from_at, length, len(self.sections), 0)
        data = b"".join((preface.encode(), header, *sections))
        if len(data) + _CRC.size > limits.SNAPSHOT_SIZE_MAX:
            raise LimitError(f"a snapshot of {len(data)} bytes, at most {limits.SNAPSHOT_SIZE_MAX}")
        return data + _CRC.pack(checksum(data))

    @classmethod
    def parse(cls, data: bytes, *, directory_id: bytes, path: str = "snapshot") -> Snapshot:
        """Parse the bytes of a whole file; `path` is for messages."""
        preface = Preface.parse(data, kind=FileKind.SNAPSHOT, directory_id=directory_id, path=path)
        end = len(data) - _CRC.size
        if end < DATA_START + _HEADER.size:
            raise CorruptionError(f"{path}: {len(data)} bytes are too few for a snapshot")
        with memoryview(data) as view:
            if checksum(view[:end]) != _CRC.unpack_from(data, end)[0]:
                raise ChecksumError(f"{path}: checksum of the snapshot does not match")
        position, wal_from_at, length, count, reserved = _HEADER.unpack_from(data, DATA_START)
        if preface.first != position or preface.salt or preface.topic_id or reserved:
            raise CorruptionError(f"{path}: the preface does not fit the snapshot at position {position}")
        if length != end - DATA_START - _HEADER.size:
            raise CorruptionError(f"{path}: sections of {length} bytes in a file of {len(data)}")
        sections = _parse_sections(data, DATA_START + _HEADER.size, end, count, path)
        return cls(Position(position), wal_from_at, preface.created_ns, sections)


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """The newest valid snapshot of a directory, and why newer ones were skipped.

    `unknown` are names that Seawall did not write; it leaves them unchanged.
    """

    snapshot: Snapshot | None
    damaged: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


class SnapshotStore:
    """The snapshots of one data directory. Only the holder of the directory's lock may use it."""

    __slots__ = ("_directory", "_directory_id", "_files", "_valid")

    def __init__(self, files: Files, directory: str, directory_id: bytes) -> None:
        self._files = files
        self._directory = directory
        self._directory_id = directory_id
        #: Replay addresses of the snapshots that are known to be valid, by position.
        self._valid: dict[Position, int] = {}

    def load(self) -> LoadedSnapshot:
        """The newest valid snapshot.

        Reports damage and unreadable sectors; raises for a snapshot of a newer format, which is not damage.
        """
        names = self._files.list(self._directory)
        damaged: dict[str, str] = {}
        found: Snapshot | None = None
        for position in _positions(names):
            try:
                found = self._read(position)
            except (CorruptionError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EIO:
                    raise
                damaged[snapshot_name(position)] = str(error)
            else:
                break
        unknown = tuple(name for name in names if not _is_ours(name))
        return LoadedSnapshot(found, damaged, unknown)

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot durably, then remove those that are no longer needed."""
        data = snapshot.encode(self._directory_id)
        replace_file(self._files, self._path(snapshot_name(snapshot.position)), data)
        self._valid[snapshot.position] = snapshot.wal_from_at
        self._prune()

    @property
    def wal_needed_from(self) -> int:
        """No kept snapshot needs the log below this address.

        0 until two snapshots are known to be valid, which `write` checks: if a single one were damaged, nothing would
        be left to start from.
        """
        kept = sorted(self._valid, reverse=True)[: limits.SNAPSHOTS_KEPT]
        return min(self._valid[position] for position in kept) if len(kept) == limits.SNAPSHOTS_KEPT else 0

    def _prune(self) -> None:
        """Keep the newest valid snapshots, and every damaged one; remove older valid ones and debris."""
        names = self._files.list(self._directory)
        obsolete = [name for name in names if name.endswith(REPLACEMENT_SUFFIX) and _is_ours(name)]
        kept = 0
        for position in _positions(names):
            if self._is_valid(position):
                kept += 1
                if kept > limits.SNAPSHOTS_KEPT:
                    obsolete.append(snapshot_name(position))
                    del self._valid[position]
        for name in obsolete:
            self._files.unlink(self._path(name))
        if obsolete:
            self._files.sync_directory(self._directory)

    def _is_valid(self, position: Position) -> bool:
        if position not in self._valid:
            try:
                self._read(position)
            except CorruptionError:
                return False
        return True

    def _read(self, position: Position) -> Snapshot:
        path = self._path(snapshot_name(position))
        file = self._files.open(path, read_only=True)
        try:
            size = file.size()
            if size > limits.SNAPSHOT_SIZE_MAX:
                raise CorruptionError(f"{path}: {size} bytes, a snapshot has at most {limits.SNAPSHOT_SIZE_MAX}")
            data = read_exactly(file, size, 0)
        finally:
            file.close()
        snapshot = Snapshot.parse(data, directory_id=self._directory_id, path=path)
        if snapshot.position != position:
            raise CorruptionError(f"{path}: holds the snapshot at position {snapshot.position}")
        self._valid[position] = snapshot.wal_from_at
        return snapshot

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def snapshot_name(position: Position) -> str:
    """The name of the snapshot at a position."""
    return f"snapshot-{position:020d}.meta"


def _is_ours(name: str) -> bool:
    """True for the name of a snapshot, and for its temporary name during a write."""
    return _NAME.fullmatch(name.removesuffix(REPLACEMENT_SUFFIX)) is not None


def _positions(names: list[str]) -> list[Position]:
    """The positions of the snapshots among some names, newest first."""
    matches = map(_NAME.fullmatch, names)
    return sorted((Position(int(match[1])) for match in matches if match is not None), reverse=True)


def _parse_sections(data: bytes, at: int, end: int, count: int, path: str) -> dict[SectionKind, bytes]:
    sections: dict[SectionKind, bytes] = {}
    previous = 0
    for _ in range(count):
        if at + _SECTION.size > end:
            raise CorruptionError(f"{path}: {count} sections do not fit")
        number, reserved, length = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        if reserved or number <= previous or number > max(SectionKind) or length > end - at:
            raise CorruptionError(f"{path}: section {number} of {length} bytes after section {previous}")
        sections[SectionKind(number)] = data[at : at + length]
        previous = number
        at += length
    if at != end:
        raise CorruptionError(f"{path}: {end - at} bytes after the last section")
    return sections
