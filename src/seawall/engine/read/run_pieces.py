"""Read and verify the runs of a plan in pieces, each small enough to stay in the CPU cache in between.

A caller that keeps the bytes reads into its own memory (`read_piece`). A caller that processes them once (`brought`)
may have the file mapped, unless its process is a server; a file that cannot be mapped is read.

Unreadable sectors count as damage, like a wrong checksum: the batches around them are still read.

A batch that does not match its index entry is left out and never returned (`storage.segments.segment`). The plan has
pinned the files. This module must not know what a reader gets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from seawall.engine.read.planning import Run
from seawall.io.disk.mapped import map_part
from seawall.io.disk.unreadable import read_skipping_errors
from seawall.kernels.log.segments import verify_entries
from seawall.limits import READ_MAPPED_SIZE_MIN, READ_PIECE_SIZE
from seawall.storage.segments.batch_index import Entries
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes

__all__ = ["Piece", "brought", "pieces", "read_piece"]


class Piece(NamedTuple):
    """Entries of a run that are read and verified in one step, and the bytes they cover."""

    first: int
    last: int
    at: int
    size: int


def pieces(run: Run) -> list[Piece]:
    """Split a run into pieces that fit the cache; a larger batch is a piece of its own."""
    if run.size <= READ_PIECE_SIZE:
        return [Piece(0, len(run.entries), run.at, run.size)]
    # Plain integers are faster here: each step uses only a few of them.
    starts, lengths = run.entries["at"].tolist(), run.entries["length"].tolist()
    found: list[Piece] = []
    first = 0
    while first < len(starts):
        at = starts[first]
        last = max(first + 1, bisect_left(starts, at + READ_PIECE_SIZE, first))
        found.append(Piece(first, last, at, starts[last - 1] + lengths[last - 1] - at))
        first = last
    return found


def read_piece(run: Run, piece: Piece, buffer: Bytes, at: int) -> Entries:
    """Read a piece of a run into a buffer that starts at file position `at`; returns the entries of its sound batches.

    For unflushed batches the buffer is the data of the run, so nothing is read.
    """
    filled = len(run.data)
    if run.source is not None:
        start = piece.at - at
        filled = start + read_skipping_errors(run.source.file, buffer.data[start : start + piece.size], piece.at)
    return _sound(run, piece, buffer, filled, at)


def _sound(run: Run, piece: Piece, buffer: Bytes, filled: int, at: int) -> Entries:
    """Returns the entries of the sound batches of a piece, in a buffer that holds `filled` bytes from `at` on."""
    entries = run.entries[piece.first : piece.last]
    verdicts: Bytes = np.empty(len(entries), np.uint8)
    bad = verify_entries(buffer, filled, at, entries, run.topic_id, verdicts)
    return entries if not bad else entries[verdicts == 0]


def brought(run: Run, *, mapped: bool = False) -> Iterator[tuple[Bytes, int, Entries]]:
    """Read a run piece by piece; yields a buffer, its file position, and the entries of the sound batches in it.

    A buffer is not overwritten while the caller refers to it. `mapped` allows to map the file for a long run, which a
    server must not do (`io.disk.mapped`).
    """
    if run.source is None:
        logged: Bytes = np.frombuffer(run.data, np.uint8)
        for piece in pieces(run):
            yield logged, run.at, read_piece(run, piece, logged, run.at)
        return
    part = map_part(run.source.file, run.at, run.size) if mapped and run.size >= READ_MAPPED_SIZE_MIN else None
    if part is not None and part.fetch(run.at - part.at, run.at - part.at + run.size):
        mapping = part.bytes
        for piece in pieces(run):
            yield mapping, part.at, _sound(run, piece, mapping, mapping.size, part.at)
        return
    for piece in pieces(run):
        buffer = READ_BUFFERS.take(max(piece.size, 2 * READ_PIECE_SIZE))
        yield buffer, piece.at, read_piece(run, piece, buffer, piece.at)
