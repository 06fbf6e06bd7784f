"""Byte offsets over seqs: a topic as the one stream of bytes that version 1 reads, from 0 for ever.

The stream is the plain blocks of all batches, one behind the other. Each batch has had the offset of its first byte
since it was numbered; nothing is ever counted again from what survives. Batches that are gone and records that were
deleted are holes: reading steps to the next byte that is kept, and `next_offset` says so.

    floor ≤ offset < end     bytes, from the middle of a record too
    offset = end             nothing yet

A read is planned piece by piece under the store's memory (`StreamRead.plan`) and carried out without it, like any other
(`reading.py`). What a piece holds goes into one stretch of memory by a kernel call a run
(`kernels/codec/v1_stream.py`).

INV-STREAM-ONWARD: a version 1 reader that resumes at `next_offset` gets every kept byte once.

Data ends with a unit (a record, or an opaque payload), but for a single one that no frame can hold.

A crash changes nothing here: offsets are in the batches. This module must not know connections or commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from seawall.core.types import Offset, Seq
from seawall.engine.read.reading import ReadPlan, plan_records, stored_batches
from seawall.engine.read.run_pieces import bring, pieces
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.errors import CorruptionError
from seawall.kernels.codec import v1_stream as kernel
from seawall.kernels.codec.blocks import RECORDS_STORED, scan_block
from seawall.limits import BATCH_HEADER_SIZE, MIB, V1_FETCH_DATA_SIZE_MAX
from seawall.storage.segments.batch_index import Entries
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchSource, block_of, parse_batch_header
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes

#: The topic that version 1 calls 0: made when it is first used, and in no list.
DEFAULT_TOPIC_NAME: Final = "lwp1:default"

#: Bytes of batches that one piece of a read brings: small ones are mostly header, so a reply may take several.
_PIECE_SIZE: Final = 32 * MIB

_NOTHING: Final = memoryview(b"")


def consumer_owner(consumer: int) -> str:
    """Whose cursor the commits of a numbered consumer move, in either protocol version."""
    return f"consumer:{consumer}"


class OffsetBounds(NamedTuple):
    """The first byte that is kept, and the one behind the last: equal where nothing is kept."""

    floor: Offset
    end: Offset


class StreamPiece(NamedTuple):
    """What was read of a stream: bytes, how many units begin in them, and where reading goes on."""

    next_offset: Offset
    unit_count: int
    data: memoryview


def offset_bounds(topic: TopicState, log: TopicLog | None) -> OffsetBounds:
    """The bounds of a topic as they are now; the end never moves back."""
    floor = None if log is None or topic.floor > topic.head_seq else log.offset_of(topic.floor)
    return OffsetBounds(topic.end_offset if floor is None else floor, topic.end_offset)


def seq_at_offset(topic: TopicState, log: TopicLog | None, offset: Offset) -> Seq:
    """The first record that starts at an offset or behind it; the next one to come if there is none."""
    found = None if log is None or offset >= topic.end_offset else log.at_offset(offset)
    if log is None or found is None:
        return topic.next_seq
    first_seq, behind = found
    for batch in stored_batches(log, first_seq, Seq(first_seq + 1), 1):
        starts, base_offset = _starts(batch)
        if offset > base_offset:
            return Seq(first_seq + int(starts[:-1].searchsorted(np.int64(offset - base_offset))))
        return first_seq
    # It is damaged: whoever goes on behind it has read it, or never will.
    return behind


def offset_at_seq(topic: TopicState, log: TopicLog | None, seq: Seq) -> Offset:
    """Where a record starts, or the first one kept behind it; the end if there is none."""
    seq = topic.first_readable(seq)
    batches = [] if log is None or seq > topic.head_seq else stored_batches(log, seq, topic.next_seq, 1)
    if not batches:
        return topic.end_offset
    starts, base_offset = _starts(batches[0])
    return Offset(base_offset + int(starts[max(0, seq - batches[0].base_seq)]))


def _starts(batch: StoredBatch) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Offset]:
    """Where each unit of a batch starts in its plain block, and the block's end; and the offset of the block."""
    header = batch.header
    block = np.frombuffer(block_of(header, batch.block), np.uint8)
    starts = np.array([0, len(block)], np.int64)
    if not header.is_opaque:
        starts = np.zeros(header.record_count + 1, np.int64)
        if scan_block(block, 0, len(block), RECORDS_STORED, header.record_count, starts) != header.record_count:
            raise _malformed(header.base_offset)
    return starts, header.base_offset


class StreamRead:
    """One read of a stream from an offset on, of at most as many bytes as are asked for, or of one unit.

    It is planned and carried out by turns:

    while store.queries.plan_stream(name, read) and not read.execute(): ...
    read.result()
    """

    def __init__(self, start: Offset, size_max: int) -> None:
        self._start = start
        self._state = np.zeros(kernel.SHOW_STATE, np.int64)
        self._state[kernel.SHOW_FROM] = start
        self._state[kernel.SHOW_ROOM] = self._reservation = max(1, min(size_max, V1_FETCH_DATA_SIZE_MAX))
        self._state[kernel.SHOW_LIMIT] = -1
        #: Where the next piece begins; 0 before the first one.
        self._seq = Seq(0)
        self._plan: ReadPlan | None = None
        self._end = start
        self._out: Bytes = np.empty(0, np.uint8)

    def plan(self, topic: TopicState, log: TopicLog | None) -> bool:
        """Plan the next piece, while nothing changes; false if there is nothing more to read."""
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
        last = log.at_offset(Offset(max(self._start, base_offset) + self._reservation))
        assert last is not None
        # The index may be ahead of the topic: what is written and not published yet is nobody's to read.
        behind = min(topic.next_seq, max(Seq(seq + 1), last[1]))
        self._plan = plan_records(topic, log, seq, behind, size_max=_PIECE_SIZE)
        self._seq = self._plan.end_seq
        return True

    @property
    def read_size(self) -> int:
        """Bytes of files that carrying out the piece has to read; what came out of the log is there."""
        plan = self._plan
        return 0 if plan is None else sum(run.size for run in plan.runs if run.source is not None)

    def execute(self) -> bool:
        """Read the piece that is planned; whether there is no room for more."""
        plan, self._plan = self._plan, None
        assert plan is not None
        try:
            live = plan.live
            self._state[kernel.SHOW_RUN] = 0
            firsts, lasts = live[:, 0].copy(), live[:, 1].copy()
            for buffer, at, entries in _verified(plan):
                if self._show(buffer, at, entries, (firsts, lasts)):
                    return self._ended()
        finally:
            plan.release()
        is_full = self._state[kernel.SHOW_SIZE] and self._state[kernel.SHOW_NEXT] >= self._state[kernel.SHOW_LIMIT]
        return bool(is_full) and self._ended()

    def release(self) -> None:
        """Give back what is pinned by a piece that nobody carries out; twice is fine."""
        if self._plan is not None:
            self._plan.release()

    def result(self) -> StreamPiece:
        """All that was read."""
        size = int(self._state[kernel.SHOW_SIZE])
        data = self._out.data.toreadonly()[:size] if size else _NOTHING
        return StreamPiece(max(self._start, self._end), int(self._state[kernel.SHOW_UNITS]), data)

    def _ended(self) -> bool:
        self._end = Offset(int(self._state[kernel.SHOW_NEXT]))
        return True

    def _show(self, buffer: Bytes, at: int, entries: Entries, live: tuple[kernel.Integers, kernel.Integers]) -> bool:
        """Show what is wanted of some batches; whether there is no room for more."""
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
        """Memory for what is asked for and, as long as nothing was shown, for one unit of a block of such a size."""
        if self._state[kernel.SHOW_SIZE]:
            return
        size = min(V1_FETCH_DATA_SIZE_MAX, max(block_size, min(self._reservation, self._end - self._start)))
        if size > len(self._out):
            self._out = READ_BUFFERS.take(size)


def _verified(plan: ReadPlan) -> Iterator[tuple[Bytes, int, Entries]]:
    """The sound batches of a plan: memory that holds them, the file position where it begins, and their entries."""
    for run in plan.runs:
        buffer = READ_BUFFERS.take(run.size) if run.source is not None else np.frombuffer(run.data, np.uint8)
        for piece in pieces(run):
            entries = bring(run, piece, buffer, run.at)
            if len(entries):
                yield buffer, run.at, np.ascontiguousarray(entries)


def _malformed(offset: Offset) -> CorruptionError:
    return CorruptionError(f"the batch at offset {offset} is sound, but its block is no run of records; run verify")
