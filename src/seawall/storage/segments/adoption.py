"""Files of staged batches that become segments of a topic: moved as they are, with other headers in their places.

    1. note     what stands in the file now, preface and headers, and where it is: `<first_seq>.adopting`, durable
    2. move     it gets the name of an active segment of the topic, durably
    3. stamp    preface and headers are written over, and synced: it is a segment of the topic
    4. log      the control that tells of it (elsewhere)
    5. settle   the note is removed

INV-ADOPTED-OR-BACK: a staged file that a transaction moved is a segment of its topic if the log says so; otherwise the
next opening restores its bytes and name. Both can be done again and again.

Blocks are not looked at: they were verified when they came, and whoever reads them does it again. This module must not
know why a file is adopted, nor the log.
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

__all__ = ["adopt_file", "notes_of", "put_back", "settle"]

_HEADER: Final = limits.BATCH_HEADER_SIZE
_COUNTS: Final = Struct("<IHH")
_PLACE: Final = Struct("<Q")
_CRC: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class Note:
    """What stood in a file before it was stamped, and where it was."""

    #: Its directory, beside that of the topic, and its name.
    source: str
    preface: bytes
    places: Sequence[int]
    headers: Sequence[Buffer]

    def encode(self, home: TopicDirectory, first_seq: Seq) -> bytes:
        """The whole file of the note, whose preface tells which segment it is about."""
        about = Preface(FileKind.ADOPTING, home.directory_id, first=first_seq, topic_id=home.topic_id)
        source = self.source.encode()
        pieces = [_COUNTS.pack(len(self.places), len(source), 0), source, self.preface]
        for place, header in zip(self.places, self.headers, strict=True):
            pieces += (_PLACE.pack(place), bytes(header))
        body = b"".join(pieces)
        return about.encode() + body + _CRC.pack(checksum(body))

    @classmethod
    def parse(cls, data: bytes, home: TopicDirectory, path: str) -> Note:
        """The note of a file."""
        Preface.parse(data[:DATA_START], kind=FileKind.ADOPTING, directory_id=home.directory_id, path=path)
        body = memoryview(data)[DATA_START : -_CRC.size]
        if len(body) < _COUNTS.size or _CRC.pack(checksum(body)) != data[-_CRC.size :]:
            raise CorruptionError(f"{path}: checksum of the note does not match")
        count, length, _ = _COUNTS.unpack_from(body)
        at = _COUNTS.size + length
        rows = at + DATA_START
        stride = _PLACE.size + _HEADER
        starts = range(rows, rows + count * stride, stride)
        return cls(
            bytes(body[_COUNTS.size : at]).decode(),
            bytes(body[at:rows]),
            [_PLACE.unpack_from(body, start)[0] for start in starts],
            [body[start + _PLACE.size : start + stride] for start in starts],
        )


def adopt_file(
    home: TopicDirectory,
    first_seq: Seq,
    created_ns: TimestampNs,
    source: File,
    index: BatchIndex,
    headers: tuple[Sequence[Buffer], Sequence[Buffer]],
) -> SegmentWriter:
    """Make a file with the batches of an index a segment that begins at a seq: `headers` are those before and after.

    `source` is open and stays so; whoever has it closes it. A crash leaves what INV-ADOPTED-OR-BACK says.
    """
    files = home.files
    places = index.entries["at"].tolist()
    if not files.exists(home.directory):
        home.make_directory()
    before = Note("/".join(source.path.rsplit("/", 2)[1:]), source.read(DATA_START, 0), places, headers[0])
    replace_file(files, home.path(adopting_name(first_seq)), before.encode(home, first_seq))
    path = home.path(active_name(first_seq))
    files.rename(source.path, path)
    files.sync_directory(home.directory)
    files.sync_directory(parent_directory(source.path))
    file = home.open_segment(active_name(first_seq))
    preface = home.preface(first_seq, created_ns)
    _stamp(file, preface.encode(), places, headers[1])
    return SegmentWriter(home, preface, file, index)


def settle(home: TopicDirectory, first_seq: Seq) -> None:
    """The log tells of the segment: its note is needed no more."""
    home.files.unlink(home.path(adopting_name(first_seq)))


def notes_of(home: TopicDirectory) -> list[Seq]:
    """The segments of a topic, by their first seq, that a crash may have left between two names."""
    found = (adopting_seq(name) for name in home.names())
    return sorted(first_seq for first_seq in found if first_seq is not None)


def put_back(home: TopicDirectory, first_seq: Seq) -> None:
    """The log does not tell of a segment: its file becomes again what it was.

    Where the note is damaged nobody knows what that was: what was staged is lost, and missed where it was.
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
            _stamp(file, note.preface, note.places, note.headers)
        finally:
            file.close()
        source = f"{parent_directory(home.directory)}/{note.source}"
        files.rename(path, source)
        files.sync_directory(parent_directory(source))
        files.sync_directory(home.directory)
    files.unlink(note_path)
    files.sync_directory(home.directory)


def _stamp(file: File, preface: bytes, places: Sequence[int], headers: Sequence[Buffer]) -> None:
    """Write preface and headers to their places, durably."""
    write_all(file, [preface], 0)
    for place, header in zip(places, headers, strict=True):
        write_all(file, [header], place)
    file.sync()
