"""What a reader of version 2 gets next: a portion of whole batches, or a gap, and how it goes onto a connection.

A read is planned while nothing changes and carried out without the store. Where a portion is unbroken, and its reader
takes batches as they are stored, it is not even looked at: stretches of files are sent as they lie, and the reader
verifies them. Every other portion is read and verified here, with damage told as a gap: a reader that finds damage asks
again without the flag for stored blocks, and is told. A file that is shorter than its batches, or failed before while
it was sent (`unfit_ranges.py`), is read and verified, too.

A portion is whole batches, up to the first gap; it begins at or before the seq that was asked for. Files are pinned
until they are sent, or the connection is gone.

This module must not know credit, or who waits for what.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from seawall import limits
from seawall.core.types import ClientId, Position, Seq, TimestampNs, TopicId
from seawall.engine.read.planning import Run
from seawall.engine.read.position_reading import Told
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
from seawall.topics.gaps import Gap as LostRange
from seawall.topics.skips import Skip
from seawall.topics.state import TopicState
from seawall.wire.format.codes import Command, DataFlags, ErrorCode, GapReason, GapUnit, ReadFlags
from seawall.wire.format.rebuilding import batch_without, plain_batch
from seawall.wire.lwp2.frames import encode_data_start
from seawall.wire.lwp2.reading import DataPrefix, Gap

#: Bytes that are read on the loop itself: less than what a thread would cost.
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
    """Batches that go into one frame, and where the reader stands behind them."""

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
    #: Whether there is nothing more behind it now.
    is_last: bool = False
    #: How far the position that its last batch has was told, where that is not all of it.
    told: Told | None = None
    #: What is to be told before it, in order: gaps, and places where client seqs were given up.
    skips: list[Gap] = field(default_factory=list)

    @property
    def payload_length(self) -> int:
        """Bytes that its frame counts as."""
        return limits.FETCH_DATA_HEADER_SIZE + self.size

    def add(self, chunk: Chunk, batches: int, records: int) -> None:
        """Batches that follow those before."""
        self.chunks.append(chunk)
        self.size += chunk.size if isinstance(chunk, FileRange) else len(chunk)
        self.chunk_count += batches
        self.record_count += records

    @property
    def memory_size(self) -> int:
        """Bytes of it that are in memory, and not in files."""
        return sum(len(chunk) for chunk in self.chunks if not isinstance(chunk, FileRange))

    def send(self, connection: Connection, command: Command, request_id: int) -> None:
        """Write the frame; what is pinned is given back when it is sent."""
        flags = DataFlags.CAUGHT_UP if self.is_last else DataFlags.MORE
        if self.told is not None:
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
        connection.write(
            encode_data_start(
                command, prefix, request_id=request_id, record_count=self.record_count, chunks_length=self.size
            )
        )
        for chunk in self.chunks:
            if isinstance(chunk, FileRange):
                source = chunk.run.source
                assert source is not None
                failed = partial(UNFIT.note, source.file.path)
                connection.send_file(FilePiece(source.file.fileno(), chunk.at, chunk.size, source.unpin, failed))
            else:
                connection.write(chunk)
        self.chunks = []

    def stretches(self) -> list[tuple[int, int, int]]:
        """What of it lies in files: descriptor, where, and how many bytes."""
        return [
            (chunk.run.source.file.fileno(), chunk.at, chunk.size)
            for chunk in self.chunks
            if isinstance(chunk, FileRange) and chunk.run.source is not None
        ]

    def release(self) -> None:
        """Give back what is pinned, of a portion that is not sent."""
        for chunk in self.chunks:
            if isinstance(chunk, FileRange) and chunk.run.source is not None:
                chunk.run.source.unpin()
        self.chunks = []


async def next_response(
    log: ServedLog, lease: Lease, topic_id: TopicId, from_seq: Seq, *, size_max: int, records_max: int, flags: ReadFlags
) -> FetchResponse | Gap:
    """What a reader of one topic at a seq gets next: batches, none if it is at the end, or the gap it stands before.

    What it takes of memory is counted by `lease`; where there is no room for it, this waits.
    """
    # What is read here is held in memory, which what is sent as it lies is not.
    most = limits.FETCH_SIZE_MAX if flags & ReadFlags.STORED_CODEC else lease.portion(limits.FETCH_READ_SIZE_MAX)
    size_max = max(1, min(size_max, most))

    def plan(store: Store) -> tuple[ReadPlan, FetchResponse]:
        topic = topic_of(store, topic_id)
        planner = store.queries.plan_ordered if flags & ReadFlags.NOT_YET_DURABLE else store.queries.plan_read
        made = planner(topic.name, from_seq, size_max=size_max, records_max=records_max or None)
        if made.batch_count > limits.FETCH_CHUNKS_MAX:
            made.release()
            small = min(size_max, limits.FETCH_SMALL_SIZE_MAX)
            made = planner(topic.name, from_seq, size_max=small, records_max=records_max or None)
        position = store.catalog.next_position
        return made, FetchResponse(topic_id, from_seq, from_seq, position, topic.next_seq, topic.floor)

    made, portion = await log.ask(plan)
    if flags & ReadFlags.STORED_CODEC and _is_direct(made):
        _fill_from_files(portion, made)
        lease.resize(portion.memory_size)
        await warm_up(log, portion.stretches(), portion.release)
        return portion
    try:
        await lease.acquire(sum(run.size for run in made.runs))
    except asyncio.CancelledError:
        made.release()
        raise
    found = await _read(log, made, portion, from_seq, flags, size_max)
    lease.resize(found.memory_size if isinstance(found, FetchResponse) else 0)
    return found


async def _read(
    log: ServedLog, made: ReadPlan, portion: FetchResponse, from_seq: Seq, flags: ReadFlags, size_max: int
) -> FetchResponse | Gap:
    """Read what is planned: much of it on a thread."""
    if sum(run.size for run in made.runs) > _READ_HERE_MAX:
        return await log.run_read(lambda: _filled(portion, made, made.execute(), from_seq, flags, size_max))
    items = made.execute()
    fill = partial(_filled, portion, made, items, from_seq, flags, size_max)
    if sum(plain_size(item, flags) for item in items if isinstance(item, StoredBatch)) > _READ_HERE_MAX:
        # Little is stored, and it decompresses to much.
        return await log.run_read(fill)
    return fill()


def topic_of(store: Store, topic_id: TopicId) -> TopicState:
    """A topic by its id, or the error that says that it is not there."""
    topic = store.catalog.find(topic_id)
    if topic is None:
        raise NotFoundError(f"there is no topic {topic_id}: list the topics, or create it")
    return topic


def gap_frame(topic_id: TopicId, lost: LostRange) -> Gap:
    """A lost range of seqs as readers are told of it."""
    first, last = lost.first_seq, lost.last_seq
    return Gap(topic_id, lost.reason, GapUnit.TOPIC_SEQ, first, last, _NO_CLIENT, Position(0), TimestampNs(0))


def skip_frame(topic_id: TopicId, skip: Skip) -> Gap:
    """A place where client seqs were given up, as readers are told of it."""
    first = skip.first_client_seq
    numbers = (first, first + skip.count - 1, skip.client_id, skip.position, TimestampNs(0))
    return Gap(topic_id, GapReason.SKIPPED, GapUnit.CLIENT_SEQ, *numbers)


def plain_size(batch: StoredBatch, flags: ReadFlags) -> int:
    """Bytes of a batch as a reader takes it, before what was deleted is left out."""
    if batch.is_plain or flags & ReadFlags.STORED_CODEC:
        return len(batch.data)
    return limits.BATCH_HEADER_SIZE + batch.header.raw_length


def chunk_of(batch: StoredBatch, from_seq: Seq, flags: ReadFlags) -> bytes | memoryview:
    """A batch as a reader takes it: as it is stored, plain, or without what was deleted."""
    last = Seq(batch.base_seq + batch.record_count - 1)
    if batch.live != ((max(from_seq, batch.base_seq), last),):
        return batch_without(batch.data, batch.live)
    if batch.is_plain or flags & ReadFlags.STORED_CODEC:
        return batch.data
    return plain_batch(batch.data)


def _is_direct(plan: ReadPlan) -> bool:
    """Whether batches can go as they lie: nothing is left out, and enough of it is in files that are fit for it."""
    stored = [(run, run.source.file) for run in plan.runs if run.source is not None]
    in_files = sum(run.size for run, file in stored if file.fileno() >= 0)
    if in_files < limits.SEND_FILE_SIZE_MIN or not plan.is_unbroken:
        return False
    return all(
        run.at + run.size <= file.size() and not UNFIT.reach_into(file.path, run.at, run.size) for run, file in stored
    )


def _fill_from_files(portion: FetchResponse, plan: ReadPlan) -> None:
    """Take the runs of a plan over, with what they have pinned."""
    for run in plan.take_runs():
        entries = run.entries
        # What lies between batches that are read together is none of the reader's: it may be of other topics.
        is_whole = int(entries["length"].sum()) == run.size
        stretches = [(run.at, run.size)] if is_whole else entries[["at", "length"]].tolist()
        counts = (
            [(len(entries), int(entries["count"].sum()))] if is_whole else [(1, n) for n in entries["count"].tolist()]
        )
        for number, ((at, length), (batches, records)) in enumerate(zip(stretches, counts, strict=True)):
            if run.source is None:
                chunk: Chunk = memoryview(run.data)[at - run.at : at - run.at + length]
            else:
                if number:
                    run.source.pin()
                chunk = FileRange(run, at, length)
            portion.add(chunk, batches, records)
        portion.next_position = Position(int(entries["position"][-1]) + 1)
    portion.next_seq = plan.end_seq
    portion.is_last = plan.end_seq >= plan.next_seq


def _filled(
    portion: FetchResponse, plan: ReadPlan, items: list[ReadItem], from_seq: Seq, flags: ReadFlags, size_max: int
) -> FetchResponse | Gap:
    """The batches before the first gap, as many as have room when they are plain; or that gap."""
    for item in items:
        if isinstance(item, LostRange):
            return portion if portion.chunk_count else gap_frame(portion.topic_id, item)
        if isinstance(item, StoredSkip):
            if portion.chunk_count:
                # The next portion begins with it.
                return portion
            portion.skips.append(skip_frame(portion.topic_id, item.skip))
        else:
            if portion.chunk_count and portion.size + plain_size(item, flags) > size_max and not item.is_plain:
                # Compressed ones may become much larger than what was planned: the next portion begins with it.
                return portion
            portion.add(chunk_of(item, from_seq, flags), 1, item.record_count)
            portion.next_seq, portion.next_position = item.next_seq, Position(item.position + 1)
    # What was deleted behind the last batch is passed over in silence.
    portion.next_seq = max(portion.next_seq, plan.end_seq)
    portion.is_last = portion.next_seq >= plan.next_seq
    return portion


def refuse_start(text: str) -> ProtocolError:
    """A start that means nothing here."""
    return ProtocolError(text, code=ErrorCode.INVALID_OFFSET, closes=False)
