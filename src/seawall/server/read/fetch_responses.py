"""Fetch responses of version 2: the next batches for a reader, or a gap, and how they are written to a connection.

A read is planned on a consistent view of the store and executed without it. If the planned batches are unbroken and the
reader accepts them in their stored form, the server does not look at them at all: it sends ranges of files, or what the
plan has read from the log, and the reader verifies them. It reads and verifies every other response, and reports damage
as a gap: a reader that finds damage asks again without the flag for stored blocks, and gets the gap. A file that is
shorter than its batches, or that failed before while it was sent (`unfit_ranges`), is also read and verified.

A response holds whole batches, up to the first gap; it starts at or before the requested seq. Files are pinned until
they are sent, or the connection is closed.

This module must not know credit, or which reader waits for what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from seawall import limits
from seawall.core.types import ClientId, Position, Seq, TimestampNs, TopicId
from seawall.engine.read.planning import Run
from seawall.engine.read.position_reading import PartialPosition
from seawall.engine.read.reading import ReadItem, ReadPlan, StoredSkip
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import NotFoundError, ProtocolError
from seawall.io.network.sending import FilePiece
from seawall.server.connection.budget import Lease
from seawall.server.connection.connection import Connection
from seawall.server.read.cold_files import warm_up
from seawall.server.read.unfit_ranges import UNFIT
from seawall.storage.segments.batch_index import Entries
from seawall.topics.gaps import Gap as LostRange
from seawall.topics.skips import Skip
from seawall.topics.state import TopicState
from seawall.wire.format.codes import Command, DataFlags, ErrorCode, GapReason, GapUnit, ReadFlags
from seawall.wire.format.rebuilding import batch_with_live_records, plain_batch
from seawall.wire.lwp2.frames import encode_data_start
from seawall.wire.lwp2.reading import DataPrefix, Gap

#: Reads up to this size run on the loop: a thread would cost more.
_READ_HERE_MAX: Final = 64 * limits.KIB

_NO_CLIENT: Final = ClientId(0)


@dataclass(slots=True)
class FileRange:
    """Batches of a pinned file."""

    run: Run
    at: int
    size: int


Chunk: TypeAlias = bytes | memoryview | FileRange


@dataclass(slots=True)
class FetchResponse:
    """The batches of one frame, and the position of the reader after them."""

    topic_id: TopicId
    first_seq: Seq
    next_seq: Seq
    next_position: Position
    end_seq: Seq
    floor_seq: Seq
    chunks: list[Chunk] = field(default_factory=list)
    chunk_count: int = 0
    record_count: int = 0
    size: int = 0
    #: True if nothing follows it now.
    is_last: bool = False
    #: How much of the position of its last batch was delivered, if not all of it.
    partial_position: PartialPosition | None = None
    #: Gaps to report before it, in order; including skipped client seqs.
    skips: list[Gap] = field(default_factory=list)

    @property
    def payload_length(self) -> int:
        """Payload size of its frame."""
        return limits.FETCH_DATA_HEADER_SIZE + self.size

    def add(self, chunk: Chunk, batches: int, records: int) -> None:
        """Append batches."""
        self.chunks.append(chunk)
        self.size += chunk.size if isinstance(chunk, FileRange) else len(chunk)
        self.chunk_count += batches
        self.record_count += records

    @property
    def memory_size(self) -> int:
        """Bytes that are in memory, not in files."""
        return sum(len(chunk) for chunk in self.chunks if not isinstance(chunk, FileRange))

    def send(self, connection: Connection, command: Command, request_id: int, *, then: bytes = b"") -> None:
        """Write the frame, and the bytes `then` after it; files are unpinned once they are sent."""
        flags = DataFlags.CAUGHT_UP if self.is_last else DataFlags.MORE
        if self.partial_position is not None:
            flags |= DataFlags.PART
        prefix = DataPrefix(
            self.topic_id,
            flags,
            self.chunk_count,
            self.first_seq,
            self.next_seq,
            self.next_position,
            self.end_seq,
            self.floor_seq,
        )
        pieces: list[bytes | memoryview] = [
            encode_data_start(
                command, prefix, request_id=request_id, record_count=self.record_count, chunks_length=self.size
            )
        ]
        for chunk in self.chunks:
            if isinstance(chunk, FileRange):
                connection.write(*pieces)
                pieces = []
                source = chunk.run.source
                assert source is not None
                failed = partial(UNFIT.note, source.file.path)
                connection.send_file(FilePiece(source.file.fileno(), chunk.at, chunk.size, source.unpin, failed))
            else:
                pieces.append(chunk)
        connection.write(*pieces, then)
        self.chunks = []

    def file_spans(self) -> list[tuple[int, int, int]]:
        """Its ranges of files: descriptor, offset, and size."""
        return [
            (chunk.run.source.file.fileno(), chunk.at, chunk.size)
            for chunk in self.chunks
            if isinstance(chunk, FileRange) and chunk.run.source is not None
        ]

    def release(self) -> None:
        """Unpin the files of a response that is not sent."""
        for chunk in self.chunks:
            if isinstance(chunk, FileRange) and chunk.run.source is not None:
                chunk.run.source.unpin()
        self.chunks = []


async def next_response(
    log: ServedLog, lease: Lease, topic_id: TopicId, from_seq: Seq, *, size_max: int, records_max: int, flags: ReadFlags
) -> FetchResponse | Gap:
    """The next response for a reader of one topic at a seq: batches, none at the end of the topic, or a gap.

    `lease` counts its memory; waits until there is space.
    """
    # Responses that are read are held in memory; those sent from files are not.
    limit = limits.FETCH_SIZE_MAX if flags & ReadFlags.STORED_CODEC else lease.fair_size(limits.FETCH_READ_SIZE_MAX)
    size_max = max(1, min(size_max, limit))
    made, response = await log.ask(partial(_plan, topic_id, from_seq, size_max, records_max, flags))
    if flags & ReadFlags.STORED_CODEC and (_is_in_memory(made) or _is_in_files(made)):
        _fill_unread(response, made)
        lease.resize(response.memory_size)
        await warm_up(log, response.file_spans(), response.release)
        return response
    try:
        await lease.acquire(sum(run.size for run in made.runs))
    except asyncio.CancelledError:
        made.release()
        raise
    found = await _read(log, made, response, from_seq, flags, size_max)
    lease.resize(found.memory_size if isinstance(found, FetchResponse) else 0)
    return found


def response_now(
    log: ServedLog, topic_id: TopicId, from_seq: Seq, *, size_max: int, flags: ReadFlags
) -> FetchResponse | Gap | None:
    """`next_response` without waiting; None if it has to wait, or the response is not small."""
    size_max = min(size_max, _READ_HERE_MAX)
    planned = log.try_ask(partial(_plan, topic_id, from_seq, size_max, 0, flags))
    if planned is None:
        return None
    made, response = planned
    if flags & ReadFlags.STORED_CODEC and _is_in_memory(made):
        _fill_unread(response, made)
        return response
    if _is_large(made):
        made.release()
        return None
    items = made.execute()
    return None if _are_large(items, flags) else _filled(response, made, items, from_seq, flags, size_max)


def _plan(
    topic_id: TopicId, from_seq: Seq, size_max: int, records_max: int, flags: ReadFlags, store: Store
) -> tuple[ReadPlan, FetchResponse]:
    """Plan a response: its batches, and the frame that they will fill."""
    # The planner applies pending rows if it needs them.
    topic = _existing(store.topic_of(topic_id), topic_id)
    planner = store.queries.plan_ordered if flags & ReadFlags.NOT_YET_DURABLE else store.queries.plan_read
    made = planner(topic.name, from_seq, size_max=size_max, records_max=records_max or None)
    if made.batch_count > limits.FETCH_CHUNKS_MAX:
        made.release()
        small = min(size_max, limits.FETCH_SMALL_SIZE_MAX)
        made = planner(topic.name, from_seq, size_max=small, records_max=records_max or None)
    position = store.queries.next_position
    return made, FetchResponse(topic_id, from_seq, from_seq, position, made.next_seq, topic.floor)


def _is_large(plan: ReadPlan) -> bool:
    """True if reading the batches would block the loop for too long."""
    return sum(run.size for run in plan.runs) > _READ_HERE_MAX


def _are_large(items: list[ReadItem], flags: ReadFlags) -> bool:
    """True if batches decompress to much more than they have stored."""
    return sum(plain_size(item, flags) for item in items if isinstance(item, StoredBatch)) > _READ_HERE_MAX


async def _read(
    log: ServedLog, made: ReadPlan, response: FetchResponse, from_seq: Seq, flags: ReadFlags, size_max: int
) -> FetchResponse | Gap:
    """Execute a plan: a large one on a thread."""
    if _is_large(made):
        return await log.run_read(lambda: _filled(response, made, made.execute(), from_seq, flags, size_max))
    items = made.execute()
    fill = partial(_filled, response, made, items, from_seq, flags, size_max)
    return await log.run_read(fill) if _are_large(items, flags) else fill()


def topic_of(store: Store, topic_id: TopicId) -> TopicState:
    """A topic by its id; raises `NotFoundError` if it does not exist."""
    return _existing(store.catalog.find(topic_id), topic_id)


def _existing(topic: TopicState | None, topic_id: TopicId) -> TopicState:
    if topic is None:
        raise NotFoundError(f"there is no topic {topic_id}: list the topics, or create it")
    return topic


def gap_frame(topic_id: TopicId, lost: LostRange) -> Gap:
    """The GAP frame for a lost range of seqs."""
    first, last = lost.first_seq, lost.last_seq
    return Gap(topic_id, lost.reason, GapUnit.TOPIC_SEQ, first, last, _NO_CLIENT, Position(0), TimestampNs(0))


def skip_frame(topic_id: TopicId, skip: Skip) -> Gap:
    """The GAP frame for skipped client seqs."""
    first = skip.first_client_seq
    numbers = (first, first + skip.count - 1, skip.client_id, skip.position, TimestampNs(0))
    return Gap(topic_id, GapReason.SKIPPED, GapUnit.CLIENT_SEQ, *numbers)


def plain_size(batch: StoredBatch, flags: ReadFlags) -> int:
    """The size of a batch in the form that the reader accepts, including deleted records."""
    if batch.is_plain or flags & ReadFlags.STORED_CODEC:
        return len(batch.data)
    return limits.BATCH_HEADER_SIZE + batch.header.raw_length


def chunk_of(batch: StoredBatch, from_seq: Seq, flags: ReadFlags) -> bytes | memoryview:
    """A batch in the form that the reader accepts: as stored, decompressed, or without deleted records."""
    last = Seq(batch.base_seq + batch.record_count - 1)
    if batch.live != ((max(from_seq, batch.base_seq), last),):
        return batch_with_live_records(batch.data, batch.live)
    if batch.is_plain or flags & ReadFlags.STORED_CODEC:
        return batch.data
    return plain_batch(batch.data)


def _is_in_memory(plan: ReadPlan) -> bool:
    """True if batches can be sent as stored, and all of them were read from the log when they were planned."""
    return all(run.source is None and len(run.data) == run.size for run in plan.runs) and plan.is_unbroken


def _is_in_files(plan: ReadPlan) -> bool:
    """True if batches can be sent as stored: nothing is left out, and enough of them are in usable files."""
    stored = [(run, run.source.file) for run in plan.runs if run.source is not None]
    in_files = sum(run.size for run, file in stored if file.fileno() >= 0)
    if in_files < limits.SEND_FILE_SIZE_MIN or not plan.is_unbroken:
        return False
    return all(
        run.at + run.size <= file.size() and not UNFIT.reach_into(file.path, run.at, run.size) for run, file in stored
    )


def _fill_unread(response: FetchResponse, plan: ReadPlan) -> None:
    """Take over the runs of a plan, with their pinned files, without looking at the batches."""
    for run in plan.take_runs():
        entries = run.entries
        for number, (first, last) in enumerate(_whole_spans(run)):
            at, size = _extent(entries[first:last])
            if run.source is None:
                chunk: Chunk = memoryview(run.data)[at - run.at : at - run.at + size]
            else:
                if number:
                    run.source.pin()
                chunk = FileRange(run, at, size)
            response.add(chunk, last - first, int(entries["count"][first:last].sum()))
        response.next_position = Position(int(entries["position"][-1]) + 1)
    response.next_seq = plan.end_seq
    response.is_last = plan.end_seq >= plan.next_seq


def _whole_spans(run: Run) -> Iterator[tuple[int, int]]:
    """The batches of a run in spans without anything between them: batches of other topics, or what begins an epoch."""
    entries = run.entries
    if int(entries["length"].sum()) == run.size:
        return iter([(0, len(entries))])
    ends = entries["at"] + entries["length"]
    cuts = np.flatnonzero(entries["at"][1:] != ends[:-1]) + 1
    return pairwise([0, *cuts.tolist(), len(entries)])


def _extent(entries: Entries) -> tuple[int, int]:
    """Where adjacent batches begin, and their bytes."""
    at = int(entries["at"][0])
    return at, int(entries["at"][-1]) + int(entries["length"][-1]) - at


def _filled(
    response: FetchResponse, plan: ReadPlan, items: list[ReadItem], from_seq: Seq, flags: ReadFlags, size_max: int
) -> FetchResponse | Gap:
    """The batches before the first gap, as many as fit decompressed; or that gap."""
    for item in items:
        if isinstance(item, LostRange):
            return response if response.chunk_count else gap_frame(response.topic_id, item)
        if isinstance(item, StoredSkip):
            if response.chunk_count:
                # The next response starts with it.
                return response
            response.skips.append(skip_frame(response.topic_id, item.skip))
        else:
            if response.chunk_count and response.size + plain_size(item, flags) > size_max and not item.is_plain:
                # Decompressed it may be much larger than planned: the next response starts with it.
                return response
            response.add(chunk_of(item, from_seq, flags), 1, item.record_count)
            response.next_seq, response.next_position = item.next_seq, Position(item.position + 1)
    # Skip deleted records after the last batch silently.
    response.next_seq = max(response.next_seq, plan.end_seq)
    response.is_last = response.next_seq >= plan.next_seq
    return response


def refuse_start(text: str) -> ProtocolError:
    """The error for an invalid start of a read."""
    return ProtocolError(text, code=ErrorCode.INVALID_OFFSET, closes=False)
