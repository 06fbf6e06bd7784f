"""Map byte offsets to seqs: protocol version 1 reads a topic as one stream of bytes, starting at offset 0.

The stream is the concatenation of the uncompressed blocks of all batches. Each batch stores the offset of its first
byte since it was numbered; offsets are never recomputed from the batches that survive. Dropped batches and deleted
records are holes: a read continues at the next byte that is kept, and `next_offset` reports it.

    floor ≤ offset < end     bytes, possibly from the middle of a record
    offset = end             nothing yet

A read is planned piece by piece under the lock of the store (`StreamRead.plan`) and executed without it, like any other
read (`reading.py`). One kernel call per run copies the data of a piece into one buffer (`kernels/codec/v1_stream.py`).

INV-STREAM-ONWARD: a version 1 reader that resumes at `next_offset` gets every kept byte once.

A response ends at the end of a unit (a record, or an opaque payload), unless a single unit does not fit a frame.

A crash changes nothing here: offsets are in the batches. This module must not know connections or commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from seawall.core.types import Offset, Seq
from seawall.engine.read.reading import ReadPlan, plan_records, stored_batches
from seawall.engine.read.run_pieces import pieces, read_piece
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.errors import CorruptionError
from seawall.kernels.codec import v1_stream as kernel
from seawall.kernels.codec.blocks import RECORDS_STORED, scan_block
from seawall.limits import BATCH_HEADER_SIZE, MIB, V1_FETCH_DATA_SIZE_MAX
from seawall.storage.segments.batch_index import Entries
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchSource, block_of, parse_batch_header
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes

#: The topic that version 1 calls 0: created on first use, and not listed.
DEFAULT_TOPIC_NAME: Final = "lwp1:default"

#: Bytes of batches in one piece of a read. Small batches are mostly header, so a reply may take several pieces.
_PIECE_SIZE: Final = 32 * MIB

_NOTHING: Final = memoryview(b"")


def consumer_owner(consumer: int) -> str:
    """Returns the cursor owner of a numbered consumer, which is the same in both protocol versions."""
    return f"consumer:{consumer}"


class OffsetBounds(NamedTuple):
    """The offset of the first byte that is kept, and the offset after the last; equal if nothing is kept."""

    floor: Offset
    end: Offset


class StreamPiece(NamedTuple):
    """The result of a stream read: data, the number of units that start in it, and the offset to continue at."""

    next_offset: Offset
    unit_count: int
    data: memoryview


def offset_bounds(topic: TopicState, log: TopicLog | None) -> OffsetBounds:
    """Returns the current bounds of a topic; the end never moves back."""
    floor = None if log is None or topic.floor > topic.head_seq else log.offset_of(topic.floor)
    return OffsetBounds(topic.end_offset if floor is None else floor, topic.end_offset)


def seq_at_offset(topic: TopicState, log: TopicLog | None, offset: Offset) -> Seq:
    """Returns the first record that starts at `offset` or after it; the next seq if there is none."""
    found = None if log is None or offset >= topic.end_offset else log.at_offset(offset)
    if log is None or found is None:
        return topic.next_seq
    first_seq, next_seq = found
    for batch in stored_batches(log, first_seq, Seq(first_seq + 1), 1):
        starts, base_offset = _starts(batch)
        if offset > base_offset:
            return Seq(first_seq + int(starts[:-1].searchsorted(np.int64(offset - base_offset))))
        return first_seq
    # The batch is damaged, so its records cannot be read: continue after it.
    return next_seq


def offset_at_seq(topic: TopicState, log: TopicLog | None, seq: Seq) -> Offset:
    """Returns the offset of a record, or of the first one kept after it; the end if there is none."""
    seq = topic.first_readable(seq)
    batches = [] if log is None or seq > topic.head_seq else stored_batches(log, seq, topic.next_seq, 1)
    if not batches:
        return topic.end_offset
    starts, base_offset = _starts(batches[0])
    return Offset(base_offset + int(starts[max(0, seq - batches[0].base_seq)]))


def _starts(batch: StoredBatch) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Offset]:
    """Returns the start of each unit in the uncompressed block of a batch, and its end; and the offset of the block."""
    header = batch.header
    block = np.frombuffer(block_of(header, batch.block), np.uint8)
    starts = np.array([0, len(block)], np.int64)
    if not header.is_opaque:
        starts = np.zeros(header.record_count + 1, np.int64)
        if scan_block(block, 0, len(block), RECORDS_STORED, header.record_count, starts) != header.record_count:
            raise _malformed(header.base_offset)
    return starts, header.base_offset


class StreamRead:
    """One read of a stream from an offset on, of at most `size_max` bytes, but of at least one unit.

    Planning and executing alternate:

    while store.queries.plan_stream(name, read) and not read.execute(): ...
    read.result()
    """

    def __init__(self, start: Offset, size_max: int) -> None:
        self._start = start
        self._state = np.zeros(kernel.SHOW_STATE, np.int64)
        self._state[kernel.SHOW_FROM] = start
        self._state[kernel.SHOW_SIZE_MAX] = self._size_max = max(1, min(size_max, V1_FETCH_DATA_SIZE_MAX))
        self._state[kernel.SHOW_LIMIT] = -1
        #: The seq at which the next piece starts; 0 before the first piece.
        self._seq = Seq(0)
        self._plan: ReadPlan | None = None
        self._end = start
        self._out: Bytes = np.empty(0, np.uint8)

    def plan(self, topic: TopicState, log: TopicLog | None) -> bool:
        """Plan the next piece, under the lock of the store; False if there is nothing more to read."""
        self._end = topic.end_offset
        if log is None or self._start >= self._end:
            return False
        if not self._seq:
            at = log.at_offset(self._start)
            self._seq = topic.next_seq if at is None else at[0]
        seq = topic.first_readable(self._seq)
        base_offset = log.offset_of(seq) if seq <= topic.head_seq else None
        if base_offset is None:
            return False
        last = log.at_offset(Offset(max(self._start, base_offset) + self._size_max))
        assert last is not None
        # The index may be ahead of the topic: batches that are written but not published yet must not be read.
        end_seq = min(topic.next_seq, max(Seq(seq + 1), last[1]))
        self._plan = plan_records(topic, log, seq, end_seq, size_max=_PIECE_SIZE)
        self._seq = self._plan.end_seq
        return True

    @property
    def read_size(self) -> int:
        """Bytes that `execute` has to read from files. Unflushed batches are in memory already."""
        plan = self._plan
        return 0 if plan is None else sum(run.size for run in plan.runs if run.source is not None)

    def execute(self) -> bool:
        """Read the planned piece; True if the response is full."""
        plan, self._plan = self._plan, None
        assert plan is not None
        try:
            live = plan.live
            self._state[kernel.SHOW_RUN] = 0
            firsts, lasts = live[:, 0].copy(), live[:, 1].copy()
            for buffer, at, entries in _verified(plan):
                if self._show(buffer, at, entries, (firsts, lasts)):
                    return self._finish()
        finally:
            plan.release()
        is_full = self._state[kernel.SHOW_SIZE] and self._state[kernel.SHOW_NEXT] >= self._state[kernel.SHOW_LIMIT]
        return bool(is_full) and self._finish()

    def release(self) -> None:
        """Release the pins of a planned piece that will not be executed. Calling it twice is fine."""
        if self._plan is not None:
            self._plan.release()

    def result(self) -> StreamPiece:
        """Returns everything read so far."""
        size = int(self._state[kernel.SHOW_SIZE])
        data = self._out.data.toreadonly()[:size] if size else _NOTHING
        return StreamPiece(max(self._start, self._end), int(self._state[kernel.SHOW_UNITS]), data)

    def _finish(self) -> bool:
        self._end = Offset(int(self._state[kernel.SHOW_NEXT]))
        return True

    def _show(self, buffer: Bytes, at: int, entries: Entries, live: tuple[kernel.Integers, kernel.Integers]) -> bool:
        """Copy the requested bytes of batches to the output; True if the response is full."""
        state = self._state
        state[kernel.SHOW_ENTRY] = 0
        self._make_space(int(entries["length"].max()) - BATCH_HEADER_SIZE)
        while (code := kernel.show_batches(buffer, at, entries, *live, state, self._out)) == kernel.SHOW_COMPRESSED:
            code = self._show_compressed(buffer, at, entries[state[kernel.SHOW_ENTRY]], live)
            if code != kernel.SHOW_DONE:
                break
            state[kernel.SHOW_ENTRY] += 1
        if code == kernel.SHOW_MALFORMED:
            raise _malformed(Offset(int(entries[state[kernel.SHOW_ENTRY]]["base_offset"])))
        return code == kernel.SHOW_FULL

    def _show_compressed(
        self, buffer: Bytes, at: int, entry: np.void, live: tuple[kernel.Integers, kernel.Integers]
    ) -> int:
        first = int(entry["at"]) - at
        stored = buffer.data[first : first + int(entry["length"])]
        header = parse_batch_header(stored, source=BatchSource.STORED)
        block = np.frombuffer(block_of(header, stored[BATCH_HEADER_SIZE:]), np.uint8)
        self._make_space(len(block))
        numbers = (header.base_seq, header.base_offset, header.record_count, int(header.is_opaque))
        return kernel.show_block(block, 0, len(block), *numbers, *live, self._state, self._out)

    def _make_space(self, block_size: int) -> None:
        """Allocate the output buffer; before the first data it must also fit one unit of a block of `block_size`."""
        if self._state[kernel.SHOW_SIZE]:
            return
        size = min(V1_FETCH_DATA_SIZE_MAX, max(block_size, min(self._size_max, self._end - self._start)))
        if size > len(self._out):
            self._out = READ_BUFFERS.take(size)


def _verified(plan: ReadPlan) -> Iterator[tuple[Bytes, int, Entries]]:
    """Yield the sound batches of a plan: a buffer that holds them, its file position, and their entries."""
    for run in plan.runs:
        buffer = READ_BUFFERS.take(run.size) if run.source is not None else np.frombuffer(run.data, np.uint8)
        for piece in pieces(run):
            entries = read_piece(run, piece, buffer, run.at)
            if len(entries):
                yield buffer, run.at, np.ascontiguousarray(entries)


def _malformed(offset: Offset) -> CorruptionError:
    return CorruptionError(f"the batch at offset {offset} is sound, but its block holds no valid records; run verify")
