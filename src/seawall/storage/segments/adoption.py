"""Turns a file of staged batches into a segment of a topic: renames it and rewrites its preface and batch headers.

    1. note     save the current preface, headers and path of the file in `<first_seq>.adopting`, durably
    2. move     rename the file to an active segment of the topic, durably
    3. stamp    overwrite preface and headers, and sync: it is a segment of the topic
    4. log      commit the control that refers to it (the engine does this)
    5. settle   remove the note

INV-ADOPTED-OR-BACK: a staged file that a transaction moved is a segment of its topic if the log says so; otherwise the
next opening restores its bytes and name. Both are idempotent.

This module does not read the blocks of the batches: they were verified on arrival, and every read verifies them again.
It must not know why a file is adopted, nor the log.

A note is a preface of kind ADOPTING, and from 4,096 on: count u32, length of the path u16, 0 u16, path, the old preface
(4,096), for each batch its file position u64 and its old header (96), and a CRC-32C u32 of all that. Valid: preface and
checksum match.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final

from seawall import limits
from seawall.core.types import Seq, TimestampNs
from seawall.errors import CorruptionError
from seawall.io.disk.files import parent_directory, replace_file, write_all
from seawall.io.interfaces import File
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.segments.batch_index import BatchIndex
from seawall.storage.segments.names import active_name, adopting_name, adopting_seq
from seawall.storage.segments.segment import SegmentWriter
from seawall.storage.segments.topic_directory import TopicDirectory
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import checksum

__all__ = ["adopt_file", "noted_segments", "put_back", "settle"]

_HEADER: Final = limits.BATCH_HEADER_SIZE
_COUNTS: Final = Struct("<IHH")
_POSITION: Final = Struct("<Q")
_CRC: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class Note:
    """The preface, headers and path of a file before it was stamped."""

    #: The last two parts of its path: a directory next to that of the topic, and the name.
    source: str
    preface: bytes
    positions: Sequence[int]
    headers: Sequence[Buffer]

    def encode(self, home: TopicDirectory, first_seq: Seq) -> bytes:
        """The bytes of the note file; its own preface names the segment."""
        own_preface = Preface(FileKind.ADOPTING, home.directory_id, first=first_seq, topic_id=home.topic_id)
        source = self.source.encode()
        pieces = [_COUNTS.pack(len(self.positions), len(source), 0), source, self.preface]
        for position, header in zip(self.positions, self.headers, strict=True):
            pieces += (_POSITION.pack(position), bytes(header))
        body = b"".join(pieces)
        return own_preface.encode() + body + _CRC.pack(checksum(body))

    @classmethod
    def parse(cls, data: bytes, home: TopicDirectory, path: str) -> Note:
        """Parse the bytes of a note file."""
        Preface.parse(data[:DATA_START], kind=FileKind.ADOPTING, directory_id=home.directory_id, path=path)
        body = memoryview(data)[DATA_START : -_CRC.size]
        if len(body) < _COUNTS.size or _CRC.pack(checksum(body)) != data[-_CRC.size :]:
            raise CorruptionError(f"{path}: checksum of the note does not match")
        count, length, _ = _COUNTS.unpack_from(body)
        at = _COUNTS.size + length
        rows = at + DATA_START
        stride = _POSITION.size + _HEADER
        starts = range(rows, rows + count * stride, stride)
        return cls(
            bytes(body[_COUNTS.size : at]).decode(),
            bytes(body[at:rows]),
            [_POSITION.unpack_from(body, start)[0] for start in starts],
            [body[start + _POSITION.size : start + stride] for start in starts],
        )


def adopt_file(
    home: TopicDirectory,
    first_seq: Seq,
    created_ns: TimestampNs,
    source: File,
    index: BatchIndex,
    headers: tuple[Sequence[Buffer], Sequence[Buffer]],
) -> SegmentWriter:
    """Turn a file with the batches of an index into a segment that begins at a seq; `headers` are the old and new ones.

    The caller keeps `source` open and closes it. For a crash see INV-ADOPTED-OR-BACK.
    """
    files = home.files
    positions = index.entries["at"].tolist()
    if not files.exists(home.directory):
        home.make_directory()
    before = Note("/".join(source.path.rsplit("/", 2)[1:]), source.read(DATA_START, 0), positions, headers[0])
    replace_file(files, home.path(adopting_name(first_seq)), before.encode(home, first_seq))
    path = home.path(active_name(first_seq))
    files.rename(source.path, path)
    files.sync_directory(home.directory)
    files.sync_directory(parent_directory(source.path))
    file = home.open_segment(active_name(first_seq))
    preface = home.preface(first_seq, created_ns)
    _stamp(file, preface.encode(), positions, headers[1])
    return SegmentWriter(home, preface, file, index)


def settle(home: TopicDirectory, first_seq: Seq) -> None:
    """Remove the note of a segment, once the log refers to the segment."""
    home.files.unlink(home.path(adopting_name(first_seq)))


def noted_segments(home: TopicDirectory) -> list[Seq]:
    """First seqs of the segments that have a note: a crash may have interrupted their adoption."""
    found = (adopting_seq(name) for name in home.names())
    return sorted(first_seq for first_seq in found if first_seq is not None)


def put_back(home: TopicDirectory, first_seq: Seq) -> None:
    """Restore the bytes and the name of a staged file whose segment the log does not mention.

    If the note is damaged, that is impossible: the staged data is lost, and the loss shows where it was staged.
    """
    files = home.files
    note_path, path = home.path(adopting_name(first_seq)), home.path(active_name(first_seq))
    note_file = files.open(note_path, read_only=True)
    note = None
    try:
        with suppress(CorruptionError):
            note = Note.parse(note_file.read(note_file.size(), 0), home, note_path)
    finally:
        note_file.close()
    if note is not None and files.exists(path):
        file = files.open(path)
        try:
            _stamp(file, note.preface, note.positions, note.headers)
        finally:
            file.close()
        source = f"{parent_directory(home.directory)}/{note.source}"
        files.rename(path, source)
        files.sync_directory(parent_directory(source))
        files.sync_directory(home.directory)
    files.unlink(note_path)
    files.sync_directory(home.directory)


def _stamp(file: File, preface: bytes, positions: Sequence[int], headers: Sequence[Buffer]) -> None:
    """Overwrite preface and headers at their file positions, durably."""
    write_all(file, [preface], 0)
    for position, header in zip(positions, headers, strict=True):
        write_all(file, [header], position)
    file.sync()
