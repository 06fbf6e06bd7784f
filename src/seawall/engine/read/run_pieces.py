"""Runs of a plan, brought and verified piece by piece: each is small enough to stay in the cache while that is done.

Whoever wants to keep what it gets reads into memory of its own (`bring`). Whoever goes through it once (`brought`) may
have it mapped, in a process that serves nobody; what cannot be mapped is read.

Bytes that the disk does not give back are damage, like bytes whose checksum is wrong: batches around them are read.

What is not as its entry says is left out, and never handed on (`storage.segments.segment`).
The files are pinned by the plan. This module must not know what a reader is told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from seawall.engine.read.planning import Run
from seawall.io.disk.mapped import map_part
from seawall.io.disk.unreadable import read_readable
from seawall.kernels.log.segments import verify_entries
from seawall.limits import READ_MAPPED_SIZE_MIN, READ_PIECE_SIZE
from seawall.storage.segments.batch_index import Entries
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes

__all__ = ["Piece", "bring", "brought", "pieces"]


class Piece(NamedTuple):
    """Some entries of a run that are read and verified in one step, and the bytes they cover."""

    first: int
    last: int
    at: int
    size: int


def pieces(run: Run) -> list[Piece]:
    """A run in pieces small enough to stay in the cache; a batch that is larger is one by itself."""
    if run.size <= READ_PIECE_SIZE:
        return [Piece(0, len(run.entries), run.at, run.size)]
    # As plain integers: each step of a read looks at a few of them.
    places, lengths = run.entries["at"].tolist(), run.entries["length"].tolist()
    found: list[Piece] = []
    first = 0
    while first < len(places):
        at = places[first]
        last = max(first + 1, bisect_left(places, at + READ_PIECE_SIZE, first))
        found.append(Piece(first, last, at, places[last - 1] + lengths[last - 1] - at))
        first = last
    return found


def bring(run: Run, piece: Piece, buffer: Bytes, at: int) -> Entries:
    """Put a piece of a run into a buffer that begins at file position `at`; the entries of the batches that are sound.

    What came out of the log is there already: the buffer is all of it.
    """
    filled = len(run.data)
    if run.source is not None:
        start = piece.at - at
        filled = start + read_readable(run.source.file, buffer.data[start : start + piece.size], piece.at)
    return _sound(run, piece, buffer, filled, at)


def _sound(run: Run, piece: Piece, buffer: Bytes, filled: int, at: int) -> Entries:
    """The entries of those batches of a piece that are sound, in a buffer filled so far from a file position on."""
    entries = run.entries[piece.first : piece.last]
    verdicts: Bytes = np.empty(len(entries), np.uint8)
    bad = verify_entries(buffer, filled, at, entries, run.topic_id, verdicts)
    return entries if not bad else entries[verdicts == 0]


def brought(run: Run, *, mapped: bool = False) -> Iterator[tuple[Bytes, int, Entries]]:
    """A run piece by piece: a buffer that nobody writes to as long as it is held, its file position, the sound batches
    there.

    `mapped` lets a long run be mapped; a server must not (`io.disk.mapped`).
    """
    if run.source is None:
        logged: Bytes = np.frombuffer(run.data, np.uint8)
        for piece in pieces(run):
            yield logged, run.at, bring(run, piece, logged, run.at)
        return
    part = map_part(run.source.file, run.at, run.size) if mapped and run.size >= READ_MAPPED_SIZE_MIN else None
    if part is not None and part.fetch(run.at - part.at, run.at - part.at + run.size):
        seen = part.bytes
        for piece in pieces(run):
            yield seen, part.at, _sound(run, piece, seen, seen.size, part.at)
        return
    for piece in pieces(run):
        read = READ_BUFFERS.take(max(piece.size, 2 * READ_PIECE_SIZE))
        yield read, piece.at, bring(run, piece, read, piece.at)
