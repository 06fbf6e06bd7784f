"""The short way to the log, for most commits: one small batch of a topic that needs nothing but its numbers.

The block is copied into memory of its own, and one kernel call makes it an epoch: headers, numbers, checksums. Nothing
is staged in the lane, which must be empty, so that positions stay in order; one commit is under way at a time, so one
memory is enough. Batches take effect the way replay lets them: their rows are kept, and catalog and index learn of many
at once, when somebody looks (`Committer.absorb`).

INV-SHORT-WAY: what it writes is, byte for byte, what the long way would have written.

A crash loses the rows, and finds them again in the log. This module must not know topics, rooms or who waits.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.types import Position, Term, TopicId
from seawall.engine.appends import AS_TOPIC_CHOICES, NO_SESSION, Append, Commit
from seawall.errors import FatalError, InvariantError
from seawall.io.files import OsFile, write_all
from seawall.io.interfaces import ReadableBuffer
from seawall.kernels import lone_batch as kernels
from seawall.kernels.disk_ring import WRITE, WRITE_SYNC
from seawall.kernels.epochs import WAL_ROW, WalRows
from seawall.sequencer.frontier import CommitFrontier, Numbered, signed
from seawall.storage.epochs import EPOCH_HEADER_SIZE
from seawall.storage.wal import WalWriter
from seawall.wire.codes import AckStatus

#: Rows that wait to take effect, at the most.
_FRESH_ROWS: Final = 1_024

_tell: Final = Struct(f"<{kernels.POSITION}q").pack_into
_NO_SESSION: Final = signed(NO_SESSION)
_BATCH_HEADER: Final = limits.BATCH_HEADER_SIZE
_BLOCK_AT: Final = kernels.BLOCK_AT
_OK: Final = AckStatus.OK


class ShortWay:
    """Commits of one small batch each, to one log."""

    def __init__(self, wal: WalWriter, frontier: CommitFrontier, term: Term, *, can_write: bool) -> None:
        #: Whether the log's files are the system's own, so that a kernel can write them.
        self.can_write = can_write
        self._wal = wal
        self._term = term
        self._array = np.zeros(_BLOCK_AT + limits.LARGE_BATCH_SIZE, np.uint8)
        self._memory = self._array.data
        #: Batches that are in the log, and that catalog and index have not heard of; behind them that of the commit
        #: that is under way.
        self._fresh: WalRows = np.zeros(_FRESH_ROWS, WAL_ROW)
        self._fresh_count = 0
        #: Whether no more batches can wait to take effect.
        self.is_full = False
        self._written_row = 0
        self._commit = Commit()
        self._commit.goes_short = True
        self._desk = np.zeros(kernels.DESK_SIZE, np.int64)
        self._told = self._desk.data.cast("B")
        self._given = self._desk[kernels.POSITION : kernels.KEYS]
        # Kept as long as their addresses lie on the desk.
        self._arrays = (*frontier.arrays, self._fresh)
        for place, array in enumerate(self._arrays):
            self._desk[kernels.KEYS + 2 * place :][:2] = array.ctypes.data, array.size

    def begin(self, append: Append, wall_ns: int, durable: bool) -> Commit:
        """Number a batch and make it an epoch, which is to be written and then finished.

        There is room for it in the log, below the ceiling and among the rows that wait. What is returned is valid until
        the next one begins.
        """
        wal, topic_id, block = self._wal, append.topic_id, append.block
        length = len(block)
        self._memory[_BLOCK_AT : _BLOCK_AT + length] = block
        raw_length = append.raw_length or length
        choices = AS_TOPIC_CHOICES | append.codec << 16
        batch = (length, append.record_count, topic_id, _NO_SESSION, raw_length, choices)
        _tell(self._told, 0, *batch, *wal.due(), self._term, wall_ns, self._fresh_count)
        size = kernels.stage_lone_batch(self._array, self._desk)
        if size < 0:
            raise _refused(topic_id)
        position, seq, offset, time_ns = self._given.tolist()
        numbers = (position, topic_id, seq, offset, time_ns, append.record_count, raw_length, _BATCH_HEADER + length)
        append.numbered = Numbered(_OK, 0, *numbers)
        commit = self._commit
        commit.durable, commit.row = durable, self._fresh_count
        commit.epoch = wal.begin_encoded(self._memory[:size], Position(position + 1), time_ns)
        return commit

    def write(self, topic_id: TopicId, block: ReadableBuffer, count: int, wall_ns: int, durable: bool) -> Numbered:
        """`begin` of a plain block, and write it, on this thread; `finish_written` has to follow.

        Readers may go on meanwhile: only who leads changes what it touches.
        """
        length, wal = len(block), self._wal
        self._written_row = row = self._fresh_count
        self._memory[_BLOCK_AT : _BLOCK_AT + length] = block
        batch = (length, count, topic_id, _NO_SESSION, length, AS_TOPIC_CHOICES)
        file, at, follows_synced = wal.lone_file()
        _tell(self._told, 0, *batch, *wal.begin_lone(), self._term, wall_ns, row)
        assert isinstance(file, OsFile)
        kind, direct_sync = (WRITE_SYNC if durable else WRITE), follows_synced and file.direct_sync
        done = kernels.commit_lone_batch(self._array, self._desk, kind, file.fileno(), at, direct_sync)
        size = _BLOCK_AT + length
        if done != size:
            self._make_good(file, at, size, done, durable)
        position, seq, offset, time_ns = self._given.tolist()
        return Numbered(_OK, 0, position, topic_id, seq, offset, time_ns, count, length, _BATCH_HEADER + length)

    def _make_good(self, file: OsFile, at: int, size: int, done: int, durable: bool) -> None:
        """A write that was not all of it: refused, failed, or, which is rare, cut short by a signal."""
        if done == kernels.STAGE_REFUSED:
            raise _refused(self._desk[kernels.TOPIC_ID])
        if done >= 0:
            # Writing the same bytes to the same place again does no harm.
            write_all(file, [self._memory[:size]], at)
            if durable:
                file.sync()
        elif durable:
            raise file.failed(-done)
        else:
            raise FatalError(
                f"{file.path}: writing an epoch at position {at} failed (error {-done}); "
                "what the file holds there is unknown: stop, start again and recover"
            )

    def finish(self, commit: Commit) -> None:
        """The commit is written: its row may take effect."""
        assert commit.epoch is not None
        self._wal.finish_epoch(commit.epoch, durable=commit.durable)
        self._keep_row(commit.row)

    def finish_written(self, numbered: Numbered, durable: bool) -> None:
        """What `write` has written may take effect."""
        size = EPOCH_HEADER_SIZE + numbered.size
        self._wal.finish_lone(size, Position(numbered.position + 1), numbered.timestamp_ns, durable=durable)
        self._keep_row(self._written_row)

    def _keep_row(self, row: int) -> None:
        count = self._fresh_count
        if row != count:
            # Somebody has looked meanwhile, and let take effect what was before it.
            self._fresh[count] = self._fresh[row]
        self._fresh_count = count + 1
        self.is_full = count + 1 == _FRESH_ROWS

    def take_rows(self) -> WalRows:
        """The rows that have to take effect now; valid until the next commit."""
        count, self._fresh_count = self._fresh_count, 0
        self.is_full = False
        return self._fresh[:count]


def _refused(topic_id: int) -> InvariantError:
    return InvariantError("INV-FRONTIER-CEILING", f"a batch of topic {topic_id} was refused")
