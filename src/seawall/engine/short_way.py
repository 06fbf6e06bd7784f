"""Commits of small batches that need nothing but their numbers: an epoch by itself, and rows that are applied later.

One block is copied into a buffer, and one kernel call makes it an epoch: headers, numbers, checksums. What connections
bring is staged elsewhere (`arrival_cycle`), and only its rows and its epoch come here. Nothing is staged in the lane,
which must be empty, so that positions stay in order. At most two commits have begun and are not finished, so two
buffers are enough. Catalog and index apply the rows of many batches at once, when somebody looks (`pending_rows`).

INV-SHORT-WAY: what it writes is, byte for byte, what staging in the lane would have written.
INV-ROW-APART: a row is taken and filled while the store's memory is held, and never one that is being applied or that
another commit has.

A crash loses the rows, and replay finds them again in the log. This module must not know topics, reservations or who
waits.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Position, Term, TimestampNs, TopicId
from seawall.engine.appends import AS_TOPIC_CHOICES, NO_SESSION, Append, Commit
from seawall.errors import InvariantError
from seawall.io.interfaces import File, ReadableBuffer
from seawall.kernels import lone_batch as kernels
from seawall.kernels.epochs import WAL_ROW, WalRows
from seawall.sequencer.frontier import CommitFrontier, Numbered, signed
from seawall.storage.wal import WalWriter
from seawall.wire.codes import AckStatus

#: Rows that wait to take effect, at the most.
_FRESH_ROWS: Final = 4 * limits.RECEIVED_BATCHES_MAX

_tell: Final = Struct(f"<{kernels.POSITION}q").pack_into
_NO_SESSION: Final = signed(NO_SESSION)
_BATCH_HEADER: Final = limits.BATCH_HEADER_SIZE
_BLOCK_AT: Final = kernels.BLOCK_AT
_OK: Final = AckStatus.OK


class ShortWay:
    """Commits of one small batch each, to one log."""

    def __init__(self, wal: WalWriter, frontier: CommitFrontier, term: Term) -> None:
        self._wal = wal
        self._term = term
        # Two, since one commit may begin while the one before it is written.
        self._arrays = [np.zeros(_BLOCK_AT + limits.LARGE_BATCH_SIZE, np.uint8) for _ in range(2)]
        self._memories = [array.data for array in self._arrays]
        self._commits = [Commit(), Commit()]
        for commit in self._commits:
            commit.goes_short = True
        #: How many commits have begun and were finished.
        self._begun = self._finished = 0
        #: Batches that are in the log, and that catalog and index have not heard of; behind them that of the commit
        #: that is under way.
        self._fresh: WalRows = np.zeros(_FRESH_ROWS, WAL_ROW)
        #: How many rows are applied next, as an array of one number, which kernels that commit change, too.
        self.pending = np.zeros(1, np.int64)
        self._pending = self.pending.data
        #: The next row, behind those of the commits that have begun.
        self.next_row = 0
        self._desk = np.zeros(kernels.DESK_SIZE, np.int64)
        self._told = self._desk.data.cast("B")
        self._given = self._desk[kernels.POSITION : kernels.KEYS]
        # Kept as long as their addresses lie on the desk.
        self._referred = (*frontier.arrays, self._fresh)
        for place, array in enumerate(self._referred):
            self._desk[kernels.KEYS + 2 * place :][:2] = array.ctypes.data, array.size

    @property
    def has_begun(self) -> bool:
        """Whether a commit has begun that is not finished."""
        return self._begun != self._finished

    @property
    def rows(self) -> WalRows:
        """Where the rows of batches are kept that wait to take effect."""
        return self._fresh

    @property
    def log_numbers(self) -> npt.NDArray[np.void]:
        """How far the log has come, for kernels that commit."""
        return self._wal.numbers

    @property
    def is_full(self) -> bool:
        """Whether no more batches can wait to take effect."""
        return self.next_row >= _FRESH_ROWS

    @property
    def rows_left(self) -> int:
        """How many more batches can wait to take effect."""
        return _FRESH_ROWS - self.next_row

    def begin(self, append: Append, wall_ns: int, durable: bool) -> Commit:
        """Number a batch and make it an epoch, which is to be written and then finished.

        Space for it is reserved in the log, below the ceiling and among the rows. One more may begin before it is
        finished; what is returned is valid until the next but one begins.
        """
        block = append.block
        raw_length = append.raw_length or len(block)
        choices = AS_TOPIC_CHOICES | append.codec << 16
        commit, append.numbered = self.begin_block(
            append.topic_id, block, append.record_count, raw_length, choices, wall_ns, durable
        )
        return commit

    def begin_block(
        self,
        topic_id: TopicId,
        block: ReadableBuffer,
        record_count: int,
        raw_length: int,
        choices: int,
        wall_ns: int,
        durable: bool,
    ) -> tuple[Commit, Numbered]:
        """The same for a block, and the numbers it got."""
        row, self.next_row = self.next_row, self.next_row + 1
        turn = self._begun & 1
        self._begun += 1
        memory, commit, wal, length = self._memories[turn], self._commits[turn], self._wal, len(block)
        memory[_BLOCK_AT : _BLOCK_AT + length] = block
        batch = (length, record_count, topic_id, _NO_SESSION, raw_length, choices)
        _tell(self._told, 0, *batch, *wal.due(), self._term, wall_ns, row)
        size = kernels.stage_lone_batch(self._arrays[turn], self._desk)
        if size < 0:
            raise InvariantError("INV-FRONTIER-CEILING", f"a batch of topic {topic_id} was refused")
        position, seq, offset, time_ns = self._given.tolist()
        numbers = (position, topic_id, seq, offset, time_ns, record_count, raw_length, _BATCH_HEADER + length)
        commit.durable, commit.row, commit.row_count = durable, row, 1
        commit.epoch = wal.begin_encoded(memory[:size], Position(position + 1), time_ns, durable=durable)
        return commit, Numbered(_OK, 0, *numbers)

    def begin_cycle(
        self, memory: memoryview, count: int, following: Position, time_ns: TimestampNs, *, durable: bool
    ) -> Commit:
        """The commit of an epoch that a cycle has staged behind the end of the log, with `count` rows.

        There is room for it in the log and among the rows that wait.
        """
        turn = self._begun & 1
        commit = self._commits[turn]
        commit.durable, commit.row_count = durable, count
        self._begun += 1
        self.next_row += count
        commit.epoch = self._wal.begin_encoded(memory, following, time_ns, durable=durable)
        return commit

    def finish_cycle(self, commit: Commit) -> None:
        """The commit of a cycle is written, and settled: its rows are pending."""
        assert commit.epoch is not None
        self._wal.finish_encoded(commit.epoch, durable=commit.durable)
        self._finished += 1
        self.next_row = self._pending[0]

    def lend(self) -> File:
        """Let a kernel commit, until `take_back`: the file of the log that it writes to."""
        return self._wal.lend()

    def take_back(self) -> None:
        """The kernel has ended; its rows are pending."""
        self._wal.take_back()
        self.next_row = self._pending[0]

    def finish(self, commit: Commit) -> None:
        """The commit is written: its row may take effect."""
        assert commit.epoch is not None
        self._wal.finish_encoded(commit.epoch, durable=commit.durable)
        self._keep_rows(commit.row, commit.row_count)

    def _keep_rows(self, first: int, count: int) -> None:
        before = self._pending[0]
        if first != before:
            # Somebody has looked meanwhile, and let take effect what was before them.
            self._fresh[before : before + count] = self._fresh[first : first + count]
        self._pending[0] = before + count
        self._finished += 1
        if self._begun == self._finished:
            self.next_row = before + count

    def take_rows(self) -> WalRows:
        """The rows that have to take effect now; valid as long as the store's memory is held."""
        count, self._pending[0] = self._pending[0], 0
        if self._begun == self._finished:
            self.next_row = 0
        return self._fresh[:count]
