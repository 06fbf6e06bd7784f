"""Reads batches directly from the files of sealed segments, in tasks that can access the server's data directory.

The server names the segments of a range, the live seqs and the gaps (`wire/lwp2/files.py`); the files have the bytes.
So deletes, caps and ages apply as for any other reader, and no other file is opened.

INV-FILES-SAME: a task reads only files of the directory that the server serves. It checks the id in the directory, and
the id and the name of each segment. A sealed segment never changes, so a segment with that name has those bytes.

A piece has every record that the server calls live; otherwise `FilesError` is raised before the piece is returned, and
the caller asks the server.

A crash leaves nothing to clean up, because files are only read. This module must not know Spark, nor contact a server.
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
    """Files are not accessible, or do not have the expected records: read over the network instead."""


class Piece(NamedTuple):
    """Verified batches with all live records up to the seq `end` (exclusive)."""

    parts: Sequence[BatchBytes]
    #: The first and last seq of each live range, ascending.
    live: Integers
    end: int


def open_topic(reply: FilesReply, topic_id: int, files: Files | None = None) -> TopicDirectory:
    """Open the directory of a topic; `FilesError` if it is not the directory of the server (INV-FILES-SAME)."""
    files = files or OsFiles()
    try:
        with look_at(files, reply.directory) as directory:
            found, home = directory.directory_id, directory.topic(TopicId(topic_id))
    except (OSError, SeawallError) as error:
        raise FilesError(f"{reply.directory} of the server cannot be read here: {error}") from error
    if found != reply.directory_id:
        raise FilesError(
            f"{reply.directory} is directory {found.hex()} here, but {reply.directory_id.hex()} on the server"
        )
    return TopicDirectory(files, home, reply.directory_id, TopicId(topic_id))


def read_pieces(home: TopicDirectory, reply: FilesReply, first_seq: int, size_max: int) -> Iterator[Piece]:
    """The live records from a seq to the end of the reply, in pieces of about `size_max` bytes."""
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
    """The verified batches of all segments, each with the seq up to which the range is complete."""
    for text in reply.segments:
        name = parse_name(text)
        if not isinstance(name, SealedName):
            raise FilesError(f"the server sent {text!r}, which is no name of a sealed segment")
        segment = SealedSegment(home, name)
        try:
            index = segment.load_index()
            first, last = index.find_seq(Seq(first_seq)), index.seqs_below(reply.end)
            segment_end = min(name.last_seq + 1, reply.end)
            while first < last:
                stop = max(first + 1, index.fitting(first, last, size_max))
                end = int(index.slice(stop, stop + 1)["base_seq"][0]) if stop < last else segment_end
                entries = _with_live_records(index.slice(first, stop), live)
                yield end, _read_batches(segment, entries, home.topic_id) if len(entries) else None
                first = stop
        except (OSError, SeawallError) as error:
            raise FilesError(f"{segment.path}: {error}") from error
        finally:
            segment.close()


def _with_live_records(entries: Entries, live: Integers) -> Entries:
    """The entries of batches with at least one live record."""
    if not len(live):
        return entries[:0]
    starts = entries["base_seq"].astype(np.int64)
    near = live[:, 1].searchsorted(starts)
    wanted = (near < len(live)) & (live[np.minimum(near, len(live) - 1), 0] < starts + entries["count"])
    return entries if wanted.all() else entries[wanted]


def _read_batches(segment: SealedSegment, entries: Entries, topic_id: TopicId) -> BatchBytes:
    """Map or read batches of a segment, and verify each against its index entry."""
    file = segment.open_file().file
    at = int(entries[0]["at"])
    size = int(entries[-1]["at"]) + int(entries[-1]["length"]) - at
    if file.size() < at + size:
        raise FilesError(f"{file.path} has {file.size()} bytes, but its index says {at + size}: it was truncated")
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
    """A piece of these batches; `FilesError` if they do not have all live records."""
    expected = clipped(live, first_seq, end)
    expected_count = int((expected[:, 1] - expected[:, 0] + 1).sum())
    found_count = sum(_live_count(part.entries, expected) for part in parts)
    if found_count != expected_count:
        raise FilesError(
            f"the segments have {found_count} of {expected_count} records from seq {first_seq} to {end - 1}"
        )
    return Piece(parts, expected, end)


def clipped(live: Integers, first_seq: int, end: int) -> Integers:
    """Clip ranges to the seqs from `first_seq` to `end` (exclusive)."""
    inside = np.stack((np.maximum(live[:, 0], first_seq), np.minimum(live[:, 1], end - 1)), axis=1)
    return inside[inside[:, 0] <= inside[:, 1]] if len(inside) else _NO_RANGES


def _live_count(entries: Entries, live: Integers) -> int:
    """The number of live seqs in the batches."""
    starts = entries["base_seq"].astype(np.int64)
    ends = starts + entries["count"]
    return int((_live_below(live, ends) - _live_below(live, starts)).sum())


def _live_below(live: Integers, seqs: Integers) -> Integers:
    """For each seq, the number of live seqs below it."""
    if not len(live):
        return np.zeros(len(seqs), np.int64)
    lengths = live[:, 1] - live[:, 0] + 1
    before = np.concatenate(([0], np.cumsum(lengths)))
    near = live[:, 0].searchsorted(seqs, "left")
    inside = np.clip(seqs - live[np.maximum(near - 1, 0), 0], 0, lengths[np.maximum(near - 1, 0)])
    return np.where(near > 0, before[np.maximum(near - 1, 0)] + inside, 0)
