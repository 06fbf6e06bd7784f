"""Sealed segments, read by who is told of them by the server and can reach their files.

The server says which segments hold a range, what of it is shown, and which gaps lie in it (`wire/lwp2/files.py`); files
give the bytes. So deletes, caps and ages are what they are for everybody else, and no other file is looked at.

INV-FILES-SAME: a task reads only files of the directory that the server serves. A directory is used only if it says
that it is that one, a segment only if it says the same and has the name that the server knows. A sealed segment never
changes, so what has that name has those bytes.

Pieces hold every record that the server calls live, or `FilesError` is raised before one is handed out that does not:
then the server knows why.

A crash leaves nothing behind: files are only read. This module must not know Spark, nor ask a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall.core.types import Seq, TopicId
from seawall.errors import SeawallError
from seawall.io.disk.files import OsFiles
from seawall.io.disk.mapped import map_part
from seawall.io.interfaces import Files
from seawall.kernels.log.segments import verify_entries
from seawall.limits import READ_MAPPED_SIZE_MIN
from seawall.spark.columns import BatchBytes
from seawall.storage.read_only import look_at
from seawall.storage.segments.batch_index import Entries
from seawall.storage.segments.names import SealedName, parse_name
from seawall.storage.segments.segment import SealedSegment
from seawall.storage.segments.topic_directory import TopicDirectory
from seawall.wire.format.read_buffers import READ_BUFFERS
from seawall.wire.lwp2.files import FilesReply

Integers = npt.NDArray[np.int64]

_NO_RANGES: Final = np.empty((0, 2), np.int64)


class FilesError(Exception):
    """Files cannot be had, or do not hold what they should: ask the server for the records."""


class Piece(NamedTuple):
    """Verified batches that hold what is live of some seqs, up to the end, which is not included."""

    parts: Sequence[BatchBytes]
    #: First and last seq of what is shown, ascending.
    live: Integers
    end: int


def open_topic(reply: FilesReply, topic_id: int, files: Files | None = None) -> TopicDirectory:
    """The directory of a topic, if it is the one that the server means (INV-FILES-SAME)."""
    files = files or OsFiles()
    try:
        with look_at(files, reply.directory) as directory:
            found, home = directory.directory_id, directory.topic(TopicId(topic_id))
    except (OSError, SeawallError) as error:
        raise FilesError(f"{reply.directory} of the server cannot be read here: {error}") from error
    if found != reply.directory_id:
        raise FilesError(
            f"{reply.directory} is directory {found.hex()}, the server has {reply.directory_id.hex()}: another one"
        )
    return TopicDirectory(files, home, reply.directory_id, TopicId(topic_id))


def read_pieces(home: TopicDirectory, reply: FilesReply, first_seq: int, size_max: int) -> Iterator[Piece]:
    """The live records from a seq to the end of the reply, in pieces of about so many bytes."""
    live: Integers = np.array(reply.live, np.int64).reshape(-1, 2)
    gathered: list[BatchBytes] = []
    size, reached = 0, first_seq
    for parts_end, part in _parts(home, reply, first_seq, live, size_max):
        if part is not None:
            gathered.append(part)
            size += int(part.entries["length"].sum(dtype=np.int64))
        if size >= size_max:
            yield _piece(gathered, live, reached, parts_end)
            gathered, size, reached = [], 0, parts_end
    if reached < reply.end:
        yield _piece(gathered, live, reached, reply.end)


def _parts(
    home: TopicDirectory, reply: FilesReply, first_seq: int, live: Integers, size_max: int
) -> Iterator[tuple[int, BatchBytes | None]]:
    """Verified batches of segment after segment, each with the seq up to which it holds everything."""
    for text in reply.segments:
        name = parse_name(text)
        if not isinstance(name, SealedName):
            raise FilesError(f"the server names a segment {text!r}, which is no name of one")
        segment = SealedSegment(home, name)
        try:
            index = segment.index
            first, last = index.find_seq(Seq(first_seq)), index.seqs_below(reply.end)
            segment_end = min(name.last_seq + 1, reply.end)
            while first < last:
                behind = max(first + 1, index.fitting(first, last, size_max))
                end = int(index.slice(behind, behind + 1)["base_seq"][0]) if behind < last else segment_end
                entries = _wanted(index.slice(first, behind), live)
                yield end, _brought(segment, entries, home.topic_id) if len(entries) else None
                first = behind
        except (OSError, SeawallError) as error:
            raise FilesError(f"{segment.path}: {error}") from error
        finally:
            segment.close()


def _wanted(entries: Entries, live: Integers) -> Entries:
    """Those batches that hold a live record."""
    if not len(live):
        return entries[:0]
    starts = entries["base_seq"].astype(np.int64)
    near = live[:, 1].searchsorted(starts)
    wanted = (near < len(live)) & (live[np.minimum(near, len(live) - 1), 0] < starts + entries["count"])
    return entries if wanted.all() else entries[wanted]


def _brought(segment: SealedSegment, entries: Entries, topic_id: TopicId) -> BatchBytes:
    """Batches of a segment, mapped or read, each held against its entry."""
    file = segment.shared.file
    at = int(entries[0]["at"])
    size = int(entries[-1]["at"]) + int(entries[-1]["length"]) - at
    if file.size() < at + size:
        raise FilesError(f"{file.path} has {file.size()} bytes, its index says {at + size}: somebody cut it off")
    mapped = map_part(file, at, size) if size >= READ_MAPPED_SIZE_MIN else None
    if mapped is not None and mapped.fetch(at - mapped.at, at - mapped.at + size):
        buffer, at, filled = mapped.bytes, mapped.at, mapped.bytes.size
    else:
        buffer = READ_BUFFERS.take(size)
        filled = file.read_into([buffer.data], at)
    verdicts = np.empty(len(entries), np.uint8)
    if verify_entries(buffer, filled, at, entries, topic_id, verdicts):
        raise FilesError(f"{int(np.count_nonzero(verdicts))} batches from position {at} on are damaged")
    return BatchBytes(buffer, at, entries)


def _piece(parts: list[BatchBytes], live: Integers, first_seq: int, end: int) -> Piece:
    """Batches and what is shown of them, if they hold all of that."""
    shown = clipped(live, first_seq, end)
    wanted = int((shown[:, 1] - shown[:, 0] + 1).sum())
    held = sum(_held(part.entries, shown) for part in parts)
    if held != wanted:
        raise FilesError(f"of {wanted} records from seq {first_seq} to {end - 1} the segments hold {held}")
    return Piece(parts, shown, end)


def clipped(live: Integers, first_seq: int, end: int) -> Integers:
    """The parts of ranges between two seqs, the second not included."""
    inside = np.stack((np.maximum(live[:, 0], first_seq), np.minimum(live[:, 1], end - 1)), axis=1)
    return inside[inside[:, 0] <= inside[:, 1]] if len(inside) else _NO_RANGES


def _held(entries: Entries, live: Integers) -> int:
    """How many seqs of the ranges lie in the batches."""
    starts = entries["base_seq"].astype(np.int64)
    ends = starts + entries["count"]
    return int((_live_below(live, ends) - _live_below(live, starts)).sum())


def _live_below(live: Integers, seqs: Integers) -> Integers:
    """How many seqs of the ranges lie below each of some seqs."""
    if not len(live):
        return np.zeros(len(seqs), np.int64)
    lengths = live[:, 1] - live[:, 0] + 1
    before = np.concatenate(([0], np.cumsum(lengths)))
    near = live[:, 0].searchsorted(seqs, "left")
    inside = np.clip(seqs - live[np.maximum(near - 1, 0), 0], 0, lengths[np.maximum(near - 1, 0)])
    return np.where(near > 0, before[np.maximum(near - 1, 0)] + inside, 0)
