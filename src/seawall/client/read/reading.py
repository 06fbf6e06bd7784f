"""The protocol of reading one topic: builds fetches, and turns responses into batches, gaps and SKIPs. No I/O.

    reader = TopicReader("events", topic_id, ReadBy.SEQ, 1)
    frame = …request(reader.fetch(max_bytes=…))…
    items = reader.take(frame)          # and reader.is_at_end

The reader verifies header and block of each batch, and raises `CorruptionError` for damage on the disk, in the server
or in the network. It drops records below the start, and skips deleted records; their seqs still count.

After a SKIP, the next fetch continues by position: a SKIP takes no seq, so a fetch by seq would return it again.

The server sends stored batches without verifying them. If a batch is damaged, the reader returns the batches before it
and makes the next fetch a verified one, for which the server reports the damage as a gap. Damage in a verified response
is raised.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from seawall.api.received import Item, ReceivedBatch, ReceivedSkip, readable_block
from seawall.client.connection.connection import refusal_of
from seawall.core.types import ClientSeq, Position, Seq, TimestampNs, TopicId
from seawall.errors import CorruptionError, ProtocolError
from seawall.kernels.codec import blocks
from seawall.kernels.codec.chunks import Rows
from seawall.limits import BATCH_HEADER_SIZE, FETCH_SIZE_MAX, RECORD_HEADER_SIZE
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.chunks import Chunk, checked_chunks, checked_rows
from seawall.wire.format.codes import Command, DataFlags, ErrorCode, GapUnit, ReadBy, ReadFlags
from seawall.wire.format.decoder import Frame
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import FrameHeader
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp2.reading import DataPrefix, Fetch, parse_data_prefix, parse_gap
from seawall.wire.lwp2.reading import Gap as WireGap

#: No limit on the number of records: only the bytes are limited.
NO_LIMIT: Final = 0xFFFF_FFFF

#: Above every seq.
NO_END: Final = 1 << 63


class ReceivedRows(NamedTuple):
    """The valid batches of a response as rows of `kernels.codec.chunks` over its payload, without objects for each."""

    payload: memoryview
    rows: Rows
    #: Skip records below it.
    first_seq: Seq


class TopicReader:
    """The seq of a reader of a topic, and its next request."""

    def __init__(
        self, topic: str, topic_id: TopicId, by: ReadBy, start: int, *, ordered: bool = False, until: int = NO_END
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._by = by
        self._start = start
        #: Fetch only records below this seq.
        self._until = until
        self._mode = ReadFlags.NOT_YET_DURABLE if ordered else ReadFlags.NONE
        #: True if the server must verify the batches that it sends.
        self.is_careful = False
        #: The seq to read next; 0 while only the server knows it.
        self.next_seq = Seq(start if by is ReadBy.SEQ else 0)
        #: True if the last response reached the end of the topic.
        self.is_at_end = False

    @property
    def start(self) -> tuple[ReadBy, int]:
        """Where the next response starts: the kind of number, and the number."""
        return self._by, self._start

    def go_back(self, seq: Seq) -> None:
        """Rewind to an earlier seq, because the caller has not consumed the items after it."""
        if seq < self.next_seq:
            self._continue_at(seq)
            self.is_at_end = False

    @property
    def flags(self) -> ReadFlags:
        """What the reader accepts besides plain durable blocks."""
        return self._mode if self.is_careful else self._mode | ReadFlags.STORED_CODEC

    def fetch(self, *, max_bytes: int, max_records: int = NO_LIMIT, wait_ms: int = 0) -> Fetch:
        """The next request."""
        return Fetch(
            self.topic_id,
            self._by,
            self._start,
            max_bytes=min(max_bytes, FETCH_SIZE_MAX),
            max_records=min(max_records, self._records_left(self.next_seq)),
            min_bytes=1 if wait_ms else 0,
            wait_ms=wait_ms,
            flags=self.flags,
        )

    def fetch_after(self, header: FrameHeader, start: Buffer, max_bytes: int) -> Fetch | None:
        """The request after a response of which only the first bytes are known.

        None if the whole response is needed to tell, if nothing follows it, or if the reader wants no more.
        """
        if header.command != Command.FETCH_DATA or self.is_careful or max_bytes <= 0:
            return None
        prefix = parse_data_prefix(start)
        if prefix.flags & DataFlags.CAUGHT_UP or not prefix.chunk_count or prefix.next_seq >= self._until:
            return None
        next_reader = TopicReader(
            self.topic, self.topic_id, ReadBy.SEQ, prefix.next_seq, ordered=bool(self._mode), until=self._until
        )
        return next_reader.fetch(max_bytes=max_bytes)

    def _records_left(self, seq: int) -> int:
        return min(NO_LIMIT, max(1, self._until - seq))

    def take(self, frame: Frame) -> list[Item]:
        """The items of a response; moves the reader past them."""
        command = frame.header.command
        if command in (Command.FETCH_DATA, Command.DATA):
            return self._take_data(frame)
        if command == Command.GAP:
            return [self._take_gap(parse_gap(frame.payload))]
        raise refusal_of(frame) or ProtocolError(
            f"a read was answered by command {command:#x}", code=ErrorCode.UNKNOWN_COMMAND, closes=False
        )

    def take_rows(self, frame: Frame) -> ReceivedRows | Gap | ReceivedSkip:
        """Like `take`, for a caller that decodes all batches at once. If decompressing a batch shows damage, the caller
        calls `retry_verified`."""
        if frame.header.command not in (Command.FETCH_DATA, Command.DATA):
            [item] = self.take(frame)
            assert not isinstance(item, ReceivedBatch), "not a data frame"
            return item
        prefix = parse_data_prefix(frame.payload)
        first = Seq(self._start if self._by is ReadBy.SEQ else prefix.first_seq)
        rows, damage = checked_rows(frame, prefix)
        if damage is None:
            self.is_careful = False
            self._move(prefix, bool(prefix.chunk_count))
        else:
            next_seq = int(rows[-1]["base_seq"]) + int(rows[-1]["record_count"]) if rows.size else first
            self.retry_verified(Seq(next_seq), damage)
        return ReceivedRows(frame.payload, rows, first)

    def retry_verified(self, seq: Seq, damage: CorruptionError) -> None:
        """Continue at `seq` with a fetch that the server verifies; raises `damage` if the last one was verified."""
        if self.is_careful:
            raise damage
        self.is_careful, self.is_at_end = True, False
        self._continue_at(seq)

    def _take_data(self, frame: Frame) -> list[Item]:
        prefix = parse_data_prefix(frame.payload)
        first = self._start if self._by is ReadBy.SEQ else prefix.first_seq
        chunks, damage = checked_chunks(frame, prefix)
        items: list[Item] = []
        next_seq = first
        try:
            for chunk in chunks:
                batch = received_batch(self.topic, frame.payload, chunk, Seq(first))
                next_seq = chunk.base_seq + chunk.record_count
                if batch is not None:
                    items.append(batch)
            if damage is not None:
                raise damage
        except CorruptionError as error:
            self.retry_verified(Seq(next_seq), error)
            return items
        self.is_careful = False
        self._move(prefix, bool(prefix.chunk_count))
        return items

    def _move(self, prefix: DataPrefix, has_data: bool) -> None:
        has_moved = prefix.next_seq > self._start or self._by is not ReadBy.SEQ
        self.is_at_end = bool(prefix.flags & DataFlags.CAUGHT_UP) or not (has_data or has_moved)
        self._continue_at(prefix.next_seq)

    def _continue_at(self, seq: int) -> None:
        self._by, self._start = ReadBy.SEQ, seq
        self.next_seq = Seq(seq)

    def _take_gap(self, gap: WireGap) -> Item:
        self.is_at_end = self.is_careful = False
        if gap.unit == GapUnit.CLIENT_SEQ:
            self._by, self._start = ReadBy.POSITION, gap.position + 1
            count = gap.last - gap.first + 1
            return ReceivedSkip(
                self.topic, gap.position, gap.client_id, ClientSeq(gap.first), count, self.next_seq or Seq(1)
            )
        self._continue_at(gap.last + 1)
        return Gap(Seq(gap.first), Seq(gap.last), gap.reason)


class Budget:
    """The remaining limits of one read, and the items so far."""

    def __init__(self, max_bytes: int, limit: int | None) -> None:
        self._bytes = max_bytes
        self._records = limit
        self._has_fetched = False
        self.items: list[Item] = []

    def fetch(self, reader: TopicReader) -> Fetch:
        """The next request."""
        self._has_fetched = True
        return reader.fetch(max_bytes=self._bytes, max_records=NO_LIMIT if self._records is None else self._records)

    def take(self, items: list[Item]) -> None:
        """Add the items of a response and reduce the limits."""
        self.items += items
        batches = [item for item in items if isinstance(item, ReceivedBatch)]
        self._bytes -= sum(len(batch.block) for batch in batches)
        if self._records is not None:
            self._records -= sum(map(len, batches))

    @property
    def prefetch_size(self) -> int:
        """Bytes to prefetch after the next response; 0 if that depends on how many records the response has."""
        return max(0, self._bytes - FETCH_SIZE_MAX) if self._records is None else 0

    def is_spent(self, reader: TopicReader) -> bool:
        """True once the reader is at the end, or a limit is reached; never before the first request."""
        is_used_up = self._bytes <= 0 or (self._records is not None and self._records <= 0)
        return self._has_fetched and (reader.is_at_end or is_used_up)


def received_batch(topic: str, payload: memoryview, chunk: Chunk, first_seq: Seq) -> ReceivedBatch | None:
    """The records of a verified batch from `first_seq` on; None if there are none, or all are deleted."""
    base_seq, position, timestamp_ns, at, end, count, _, deleted, is_plain = chunk
    last = base_seq + count - 1
    first = max(base_seq, first_seq)
    if first > last:
        return None
    block = payload[at:end]
    live: tuple[tuple[Seq, Seq], ...] = ((Seq(first), Seq(last)),)
    if deleted:
        live = _live_ranges(block, chunk, first)
        if not live:
            return None
    elif not is_plain:
        # A batch with deleted records was rewritten uncompressed, so only other batches need this.
        header = parse_batch_header(payload[at - BATCH_HEADER_SIZE : end], source=BatchSource.STORED)
        block = readable_block(header, block)
    return ReceivedBatch(
        topic, Seq(base_seq), count, Position(position), TimestampNs(timestamp_ns), block, live, Seq(last + 1)
    )


def _live_ranges(block: memoryview, chunk: Chunk, first: int) -> tuple[tuple[Seq, Seq], ...]:
    """The ranges of seqs from `first` on whose records are not deleted."""
    source = np.frombuffer(block, np.uint8)
    count = chunk.record_count
    offsets = np.empty(count + 1, np.int64)
    blocks.scan_block(source, 0, source.size, blocks.RECORDS_STORED, count, offsets)
    deleted = (source[offsets[:-1]] == blocks.TYPE_DELETED) & (np.diff(offsets) == RECORD_HEADER_SIZE)
    kept = np.flatnonzero(~deleted[first - chunk.base_seq :]) + first
    if not kept.size:
        return ()
    breaks = np.flatnonzero(np.diff(kept) > 1)
    starts = kept[np.concatenate(([0], breaks + 1))].tolist()
    ends = kept[np.concatenate((breaks, [kept.size - 1]))].tolist()
    return tuple((Seq(start), Seq(end)) for start, end in zip(starts, ends, strict=True))
