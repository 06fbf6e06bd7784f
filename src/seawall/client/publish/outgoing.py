"""The state machine of a publisher session: batches, numbering, window and acks. No I/O, no clock, no lock.

    add         add records to the open batch, or as batches of their own
    next_batch  the batch to send now: undecided batches to send again first, then sealed ones
    acked       apply an ACK of the server
    lost        a connection is gone: the undecided batches that were sent on it are sent again

A small record joins the open batch. That is sealed when it is full, after `linger_ns`, or, without a linger, as soon as
no other batch is in flight. A batch gets its number (its client seq) when it is first sent, and keeps number and block
until it is *decided*: stored, refused, or given up with an unknown outcome. The server accepts each number once, so it
stores a batch once, no matter how often it is sent.

INV-OUTGOING-WINDOW: a client keeps each batch until it is decided, and sends no number that the server could not
recognise as a repetition. All numbers in flight are within one window above the lowest undecided number.

If a batch is refused before the server has used its number, the next batch must take that number: the server waits for
it. If batches with later numbers are in flight by then, a batch without records fills the hole instead, because a
batch with records would be ordered before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from seawall.api.publishable import Records, UnencodedBlock
from seawall.client.connection.refusals import CLIENT_SEQ_UNUSED, rejection, unknown_outcome
from seawall.client.publish.delivery import Batch
from seawall.core.latency import LatencyHistogram
from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, TimestampNs, TopicId
from seawall.errors import FatalError, ReadOnlyError, RetryableError, SeawallError, SessionExpiredError
from seawall.limits import (
    BATCH_RECORDS_MAX,
    BLOCK_SIZE_MAX,
    MIB,
    RECORD_HEADER_SIZE,
    SESSION_WINDOW_BATCHES,
    SESSION_WINDOW_SIZE,
)
from seawall.wire.format.ack_rows import Rows
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import AS_TOPIC, AckStatus, Codec, ErrorCode
from seawall.wire.format.fields import Buffer

#: The topic of a batch that only fills a hole in the numbers.
_NO_TOPIC: Final = TopicId(0)
#: Calls share a queued batch up to this size: some costs are per batch, not per byte.
_JOINED_SIZE: Final = 5 * MIB


class Outgoing:
    """The batches of one session that are not decided."""

    def __init__(self, *, ack: int, batch_size: int, linger_ns: int, codec: Codec) -> None:
        self._ack = ack
        self._batch_size = min(batch_size, BLOCK_SIZE_MAX)
        self._linger_ns = linger_ns
        #: The compression of blocks; the session sets it to none if the server does not support it.
        self.codec = codec
        self.client_id = ClientId(0)
        self.session_epoch = SessionEpoch(0)
        #: The number of the next batch, and a heap of lower numbers that are free again.
        self.next_seq = ClientSeq(1)
        self._free: list[ClientSeq] = []
        #: Numbers that batches without records filled recently.
        self._filled_holes: set[int] = set()
        self.window_batches = SESSION_WINDOW_BATCHES
        self.window_bytes = SESSION_WINDOW_SIZE
        self._open_batch: Batch | None = None
        self._sealed: deque[Batch] = deque()
        #: Batches by number, in ascending order except for those in `_out_of_order`, which took a free number.
        self._numbered: dict[int, Batch] = {}
        self._out_of_order: set[int] = set()
        self._sent_size = 0
        #: Heaps of numbers to send again: now, and once everything before them is decided.
        self._resend: list[int] = []
        self._resend_later: list[int] = []
        #: Send nothing before this time.
        self.paused_until_ns = 0
        #: The error that stopped sending; the server still answers what was sent.
        self._stopped_by: ReadOnlyError | None = None
        #: Bytes of all batches that are sealed and not decided.
        self._sealed_size = 0
        #: Decided batches whose callbacks have not run yet.
        self.decided: list[Batch] = []
        #: The first error since the last `take_error`.
        self.first_error: Exception | None = None
        #: The latency of stored batches, from their first record to the ack.
        self.latency = LatencyHistogram()

    @property
    def is_lingering(self) -> bool:
        """True if there is an open batch that waits for its linger time."""
        return self._open_batch is not None and self._linger_ns > 0

    @property
    def size(self) -> int:
        """Bytes of all undecided records."""
        open_batch = self._open_batch
        return self._sealed_size if open_batch is None else self._sealed_size + open_batch.size

    @property
    def is_empty(self) -> bool:
        """True if everything is decided."""
        return not self.size

    @property
    def next_number(self) -> ClientSeq:
        """The number of the next new batch."""
        return self.next_seq if self._has_hole() else min([self.next_seq, *self._free])

    @property
    def lowest_undecided(self) -> ClientSeq:
        """All lower numbers are decided or free."""
        first = next(iter(self._numbered), int(self.next_seq))
        return ClientSeq(min(first, *self._out_of_order) if self._out_of_order else first)

    @property
    def lowest_unused(self) -> ClientSeq:
        """All lower numbers are decided. The server expects this number next, unless it has lost batches."""
        lowest = self.lowest_undecided
        return min(lowest, self._free[0]) if self._free else lowest

    def allow(self, batches: int, size: int) -> None:
        """Set the window that the server grants, capped at the range in which it can recognise repetitions."""
        self.window_batches = max(1, min(batches, SESSION_WINDOW_BATCHES))
        self.window_bytes = size

    # --- adding records --------------------------------------------------------------------------------------------

    def add(
        self, topic: str, topic_id: TopicId, blocks: Sequence[Records], now_ns: int
    ) -> tuple[tuple[Batch, ...], int]:
        """Add the blocks of one call; returns their batches, and the index of the first record in the first batch."""
        if len(blocks) == 1 and blocks[0].size < self._batch_size:
            batch = self._batch_for(topic, topic_id, blocks[0], now_ns)
            offset = batch.add(blocks[0])
            if batch.size >= self._batch_size or batch.record_count >= BATCH_RECORDS_MAX:
                self.seal()
            return (batch,), offset
        self.seal()
        self._sealed_size += sum(block.size for block in blocks)
        last = self._sealed[-1] if len(self._sealed) > 1 else None
        if last is not None and last.topic_id == topic_id and last.may_hold(blocks[0], _JOINED_SIZE):
            # The last batch is queued behind others: fewer, larger batches cost less.
            return (last,), last.add(blocks[0])
        batches = [Batch(topic, topic_id, now_ns) for _ in blocks]
        for batch, block in zip(batches, blocks, strict=True):
            batch.add(block)
        self._sealed += batches
        return tuple(batches), 0

    def join(self, topic_id: TopicId, value: bytes, size_max: int) -> Batch | None:
        """Add one small record to the open batch, if it stays below its limits; otherwise None: use `add`."""
        batch = self._open_batch
        if batch is None or batch.topic_id != topic_id:
            return None
        size = batch.size + RECORD_HEADER_SIZE + len(value)
        count = batch.record_count + 1
        if size >= self._batch_size or count >= BATCH_RECORDS_MAX or self._sealed_size + size > size_max:
            return None
        batch.values.append(value)
        batch.size = size
        batch.record_count = count
        return batch

    def start_exchange(self, topic: str, topic_id: TopicId, block: EncodedBlock, now_ns: int) -> Batch | None:
        """Number a batch for an immediate exchange; None if other batches go first, or blocks are compressed."""
        if self._sealed_size or self._open_batch is not None or self._free or now_ns < self.paused_until_ns:
            return None
        if self.codec is not Codec.NONE or self._stopped_by is not None:
            return None
        batch = Batch(topic, topic_id, now_ns)
        batch.pieces.append(block.block)
        batch.size = self._sealed_size = self._sent_size = len(block.block)
        batch.record_count = block.record_count
        batch.sends = 1
        number = batch.client_seq = self.next_seq
        self.next_seq = ClientSeq(number + 1)
        self._numbered[number] = batch
        return batch

    @property
    def exchange_session(self) -> tuple[int, int, int]:
        """The header fields of all batches of exchanges: client id, low half of the session epoch, and flags."""
        return self.client_id, self.session_epoch & 0xFFFF_FFFF, AS_TOPIC | self._ack << 8

    def finish_exchange(self, batch: Batch, base_seq: int, position: int, timestamp_ns: int, now_ns: int) -> None:
        """Mark the batch of an exchange as stored. It has no callbacks yet, so it does not go to `decided`."""
        del self._numbered[batch.client_seq]
        self._sealed_size -= batch.size
        self._sent_size -= batch.size
        self.latency.add(now_ns - batch.created_ns)
        batch.base_seq, batch.position = Seq(base_seq), Position(position)
        batch.timestamp_ns = TimestampNs(timestamp_ns)
        batch.connection = None
        batch.pieces = []
        batch.is_done = True

    def add_numbered(
        self, topic: str, topic_id: TopicId, blocks: Sequence[Records], client_seq: int, now_ns: int
    ) -> tuple[Batch, ...]:
        """Add blocks that repeat earlier batches under their numbers."""
        self.seal()
        batches = []
        for seq, block in enumerate(blocks, client_seq):
            batch = Batch(topic, topic_id, now_ns)
            batch.add(block)
            self._sealed_size += batch.size
            self._number(batch, ClientSeq(seq))
            heappush(self._resend, seq)
            batches.append(batch)
        self.next_seq = max(self.next_seq, ClientSeq(client_seq + len(blocks)))
        return tuple(batches)

    def _batch_for(self, topic: str, topic_id: TopicId, block: Records, now_ns: int) -> Batch:
        open_batch = self._open_batch
        if open_batch is not None:
            size, count = open_batch.size + block.size, open_batch.record_count + block.record_count
            if size <= self._batch_size and count <= BATCH_RECORDS_MAX and open_batch.topic_id == topic_id:
                return open_batch
            self.seal()
        self._open_batch = open_batch = Batch(topic, topic_id, now_ns)
        return open_batch

    def seal(self) -> None:
        """Seal the open batch: it is sent as it is."""
        if self._open_batch is not None:
            self._sealed.append(self._open_batch)
            self._sealed_size += self._open_batch.size
            self._open_batch = None

    # --- sending ---------------------------------------------------------------------------------------------------

    def next_batch(self, now_ns: int) -> Batch | None:
        """The batch to send now, or None. The caller must send it."""
        if now_ns < self.paused_until_ns or self._stopped_by is not None:
            return None
        while self._resend:
            batch = self._numbered.get(heappop(self._resend))
            if batch is not None and batch.connection is None:
                return batch
        while self._resend_later and self._resend_later[0] <= self.lowest_undecided:
            batch = self._numbered.get(heappop(self._resend_later))
            if batch is not None and batch.connection is None:
                return batch
        if self._has_hole():
            return self._hole_filler()
        self._seal_if_due(now_ns)
        if not self._sealed or not self._has_window(self._sealed[0]):
            return None
        batch = self._sealed.popleft()
        if self._free:
            number = heappop(self._free)
        else:
            number, self.next_seq = self.next_seq, ClientSeq(self.next_seq + 1)
        self._number(batch, number)
        return batch

    def _has_hole(self) -> bool:
        """True if a number below one in flight is free."""
        return bool(self._free and self._numbered) and self._free[0] < max(self._numbered)

    def _hole_filler(self) -> Batch:
        """A batch that fills the lowest free number: it has no records, and its refusal uses the number."""
        batch = Batch("", _NO_TOPIC, 0)
        number = heappop(self._free)
        self._number(batch, number)
        self._filled_holes = {each for each in self._filled_holes if each > number - SESSION_WINDOW_BATCHES} | {number}
        return batch

    def due_ns(self) -> int | None:
        """When to call `next_batch` again even if no event occurs before; None if only an event matters."""
        if self.paused_until_ns and (
            self._resend or self._resend_later or self._sealed or self._open_batch or self._has_hole()
        ):
            return self.paused_until_ns
        return None if self._open_batch is None else self._open_batch.created_ns + self._linger_ns

    def _seal_if_due(self, now_ns: int) -> None:
        open_batch = self._open_batch
        if open_batch is None or self._sealed:
            return
        # Without a linger, the batch stays open only while others are in flight.
        due = now_ns >= open_batch.created_ns + self._linger_ns if self._linger_ns else not self._numbered
        if due:
            self.seal()

    def _has_window(self, batch: Batch) -> bool:
        numbered = len(self._numbered)
        if not numbered:
            return True
        number = self._free[0] if self._free else self.next_seq
        fits = numbered < self.window_batches and self._sent_size + batch.size <= self.window_bytes
        return fits and number < self.lowest_unused + self.window_batches

    def _number(self, batch: Batch, number: ClientSeq) -> None:
        batch.client_seq = number
        if self._numbered and number < next(reversed(self._numbered)):
            self._out_of_order.add(number)
        self._numbered[number] = batch
        self._sent_size += batch.size

    def frame_of(self, batch: Batch, wall_ns: int) -> tuple[bytes, Buffer]:
        """The header and the block of a batch for the wire."""
        block = batch.block_for(self.codec)
        return self._header_of(batch, block, wall_ns), block

    def held_frame_of(self, batch: Batch, wall_ns: int) -> tuple[bytes, int, UnencodedBlock] | None:
        """The header, number and values of a large batch with a trailing checksum; None for other batches."""
        held = batch.held_for(self.codec)
        return None if held is None else (self._header_of(batch, held.size, wall_ns), batch.client_seq, held)

    def _header_of(self, batch: Batch, block: Buffer | int, wall_ns: int) -> bytes:
        return batch.header_of(block, self.client_id, self.session_epoch, self._ack, TimestampNs(wall_ns))

    def sent(self, batch: Batch, connection: object) -> None:
        """Note that a batch was sent on a connection."""
        batch.connection = connection
        batch.sends += 1

    # --- responses of the server -----------------------------------------------------------------------------------

    def acked(self, rows: Rows, now_ns: int = 0) -> AckStatus:
        """Apply the rows of an ACK; returns the worst status that the sender must act on.

        UNKNOWN: reconnect. RETRY: pause, because the batch to send again is the one that all others wait for. `now_ns`
        is 0 if the latency is not measured.
        """
        worst = AckStatus.OK
        is_hole_left = False
        retried: set[int] = set()
        for client_seq, base_seq, position, timestamp_ns, _topic, _run, _count, status, level, reason in rows.tolist():
            batch = self._numbered.get(client_seq)
            if batch is None:
                if status == AckStatus.REJECTED and client_seq not in self._filled_holes:
                    # It was acknowledged at a lower ack level, and is refused now.
                    self.report(rejection(reason, "a topic", client_seq))
                continue
            if status <= AckStatus.DUPLICATE:
                batch.base_seq, batch.position = Seq(base_seq), Position(position)
                batch.timestamp_ns = TimestampNs(timestamp_ns)
                # A batch that the sender itself repeated is no duplicate for the caller.
                batch.is_duplicate = status == AckStatus.DUPLICATE and batch.sends == 1
                if now_ns:
                    self.latency.add(now_ns - batch.created_ns)
                self._decide(batch, None)
            elif status == AckStatus.REJECTED:
                # If it was ordered (level 1), its number is used.
                is_free = reason in CLIENT_SEQ_UNUSED and not level
                if is_free:
                    heappush(self._free, ClientSeq(client_seq))
                if batch.record_count:
                    self._decide(batch, self._refusal(batch, reason, level))
                    continue
                # The refusal of a hole filler is expected; if it did not use the number, fill the hole again.
                self._decide(batch, None)
                is_hole_left |= is_free
            elif self._stopped_by is not None:
                self._decide(batch, unknown_outcome(batch.topic, client_seq, self._stopped_by))
            elif status == AckStatus.RETRY:
                batch.connection = None
                heappush(self._resend_later, client_seq)
                retried.add(client_seq)
            else:
                worst = AckStatus.UNKNOWN
        if worst is AckStatus.OK and (is_hole_left or self.lowest_undecided in retried):
            return AckStatus.RETRY
        return worst

    def _refusal(self, batch: Batch, reason: int, level: int) -> SeawallError:
        """The error of a refused batch. A read-only log cannot tell whether an earlier copy is stored."""
        if reason == ErrorCode.READ_ONLY and not level:
            if batch.sends > 1:
                why = str(self._stopped_by or "it was sent before, and the server is read-only now")
                return unknown_outcome(batch.topic, batch.client_seq, why)
            if self._stopped_by is not None:
                return self._stopped_by
        return rejection(reason, batch.topic, batch.client_seq)

    def refused(self, client_seq: int, until_ns: int) -> None:
        """Pause until `until_ns` for a server under pressure; the batch of that number, if any, is sent again."""
        self.paused_until_ns = max(self.paused_until_ns, until_ns)
        batch = self._numbered.get(client_seq)
        if batch is not None:
            batch.connection = None
            heappush(self._resend, client_seq)

    def lost(self, connection: object) -> None:
        """A connection is gone: send the undecided batches that were sent on it again."""
        for client_seq, batch in self._numbered.items():
            if batch.connection is connection:
                batch.connection = None
                heappush(self._resend, client_seq)

    def welcomed(self, client_id: ClientId, session_epoch: SessionEpoch, next_seq: ClientSeq) -> None:
        """Apply a granted session. Free numbers below `next_seq` belong to a forgotten session and are dropped."""
        self.client_id, self.session_epoch = client_id, session_epoch
        self.next_seq = max(self.next_seq, next_seq)
        self._free = sorted(number for number in self._free if number >= next_seq)

    def undecided(self) -> list[Batch]:
        """Seal the open batch and return all undecided batches."""
        self.seal()
        return [*self._numbered.values(), *self._sealed]

    def fail(self, error: Exception) -> None:
        """Fail all undecided batches: unsent ones with `error`, and sent ones with an unknown outcome if it is open.

        A read-only server still answers what it was sent: such batches stay undecided while their connection lives.
        """
        if isinstance(error, ReadOnlyError):
            self._stopped_by = error
        self._resend.clear()
        self._resend_later.clear()
        for batch in self.undecided():
            if self._stopped_by is None or batch.connection is None:
                in_doubt = batch.sends and isinstance(error, RetryableError | FatalError | SessionExpiredError)
                self._decide(batch, unknown_outcome(batch.topic, batch.client_seq, error) if in_doubt else error)
        self._sealed.clear()

    def take_error(self) -> Exception | None:
        """Return the first error since the last call, or None."""
        error, self.first_error = self.first_error, None
        return error

    def take_decided(self) -> list[Batch]:
        """Return the batches decided since the last call, to run their callbacks."""
        decided, self.decided = self.decided, []
        return decided

    def drop_without_callbacks(self) -> None:
        """Drop decided batches that have no callback."""
        self.decided = [batch for batch in self.decided if batch.callbacks]

    def _decide(self, batch: Batch, error: Exception | None) -> None:
        if self._numbered.pop(batch.client_seq, None) is not None:
            self._sent_size -= batch.size
            self._out_of_order.discard(batch.client_seq)
        self._sealed_size -= batch.size
        batch.connection = None
        batch.pieces = []
        batch.values = []
        batch.block = None
        batch.error = error
        batch.is_done = True
        self.decided.append(batch)
        if error is not None:
            self.report(error)

    def report(self, error: Exception) -> None:
        """Keep an error for `take_error`, if it is the first."""
        self.first_error = self.first_error or error
