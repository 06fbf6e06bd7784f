"""The batches of one session, from the first record to the verdict. No I/O, no clock, no lock: a machine that is asked.

    add        records join the batch that is gathered, or fill batches of their own
    next_batch what may be sent now: what was sent before and is not decided first, then what is sealed
    acked      what a server says became of batches
    lost       a connection is gone: what was sent on it and is not decided is sent again

A batch is gathered while others are on their way and for `linger_ns` at the most; with nothing on its way it is sealed
at once. It is numbered when it is sent first and keeps number and block until it is decided, so that the server, which
knows each number once, stores it once however often it comes.

INV-OUTGOING-WINDOW: a client keeps each batch until it is decided, and sends no number that the server could not
recognise as a repetition. No number is sent that lies a window or more above the lowest that is not decided.

A number that was refused before it was used is given to the next batch, or the server would wait for it for ever. If
later ones are under way by then, a batch without records gives it up: another one must not get before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from seawall.api.publishable import HeldValues, Records
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

#: The topic of a batch that only gives its number up.
_NO_TOPIC: Final = TopicId(0)
#: Calls share a batch up to this size while others wait: some costs are those of batches, not of bytes.
_JOINED_SIZE: Final = 5 * MIB


class Outgoing:
    """What one session has under way."""

    def __init__(self, *, ack: int, batch_size: int, linger_ns: int, codec: Codec) -> None:
        self._ack = ack
        self._batch_size = min(batch_size, BLOCK_SIZE_MAX)
        self._linger_ns = linger_ns
        #: How blocks are compressed; the sender sets it to none where the server does not agree.
        self.codec = codec
        self.client_id = ClientId(0)
        self.session_epoch = SessionEpoch(0)
        #: The number of the next batch, and numbers below it that are free.
        self.next_seq = ClientSeq(1)
        self._free: list[ClientSeq] = []
        #: Numbers that batches without records gave up, of late.
        self._given_up: set[int] = set()
        self.window_batches = SESSION_WINDOW_BATCHES
        self.window_bytes = SESSION_WINDOW_SIZE
        self._gathering: Batch | None = None
        self._sealed: deque[Batch] = deque()
        #: Batches with a number by it, mostly ascending; those that are not, because their number was free.
        self._numbered: dict[int, Batch] = {}
        self._out_of_line: set[int] = set()
        self._sent_size = 0
        #: Numbers to be sent again: now, and once everything before them is decided.
        self._again: list[int] = []
        self._later: list[int] = []
        #: Nothing is sent before this time.
        self.paused_until_ns = 0
        #: Why nothing more is sent, though what was sent is still answered.
        self._stopped_by: ReadOnlyError | None = None
        #: Bytes of everything that is sealed and not decided.
        self._sealed_size = 0
        #: Decided and not announced yet.
        self.decided: list[Batch] = []
        #: What went wrong since somebody asked.
        self.first_error: Exception | None = None
        #: How long stored batches took, from their first record to the ack.
        self.latency = LatencyHistogram()

    @property
    def is_lingering(self) -> bool:
        """Whether something is gathered that is not sent before its time, though nothing is on its way."""
        return self._gathering is not None and self._linger_ns > 0

    @property
    def size(self) -> int:
        """Bytes of everything that is not decided."""
        gathering = self._gathering
        return self._sealed_size if gathering is None else self._sealed_size + gathering.size

    @property
    def is_empty(self) -> bool:
        """Whether everything is decided."""
        return not self.size

    @property
    def next_number(self) -> ClientSeq:
        """The number that the next new batch gets."""
        return self.next_seq if self._leaves_hole() else min([self.next_seq, *self._free])

    @property
    def lowest_undecided(self) -> ClientSeq:
        """All numbers below are decided or free."""
        first = next(iter(self._numbered), int(self.next_seq))
        return ClientSeq(min(first, *self._out_of_line) if self._out_of_line else first)

    @property
    def lowest_unused(self) -> ClientSeq:
        """All numbers below are decided: where the server is too, unless it has lost something."""
        lowest = self.lowest_undecided
        return min(lowest, self._free[0]) if self._free else lowest

    def allow(self, batches: int, size: int) -> None:
        """The server grants this window; beyond that of a session it could not tell repetitions any more."""
        self.window_batches = max(1, min(batches, SESSION_WINDOW_BATCHES))
        self.window_bytes = size

    # --- handing in ------------------------------------------------------------------------------------------------

    def add(
        self, topic: str, topic_id: TopicId, blocks: Sequence[Records], now_ns: int
    ) -> tuple[tuple[Batch, ...], int]:
        """Take blocks of one call; the batches that have them, and the place of the first record in the first."""
        if len(blocks) == 1 and blocks[0].size < self._batch_size:
            batch = self._gather(topic, topic_id, blocks[0], now_ns)
            offset = batch.take(blocks[0])
            if batch.size >= self._batch_size or batch.record_count >= BATCH_RECORDS_MAX:
                self.seal()
            return (batch,), offset
        self.seal()
        self._sealed_size += sum(block.size for block in blocks)
        last = self._sealed[-1] if len(self._sealed) > 1 else None
        if last is not None and last.topic_id == topic_id and last.may_hold(blocks[0], _JOINED_SIZE):
            # It waits behind others: large ones cost the least.
            return (last,), last.take(blocks[0])
        batches = [Batch(topic, topic_id, now_ns) for _ in blocks]
        for batch, block in zip(batches, blocks, strict=True):
            batch.take(block)
        self._sealed += batches
        return tuple(batches), 0

    def join(self, topic_id: TopicId, value: bytes, size_max: int) -> Batch | None:
        """Make one small record part of what is gathered, which is then not full; None if it has to be added."""
        batch = self._gathering
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

    def begin_one(self, topic: str, topic_id: TopicId, block: EncodedBlock, now_ns: int) -> Batch | None:
        """Number a batch that is sent at once as it is; None where others come first, or it would be packed."""
        if self._sealed_size or self._gathering is not None or self._free or now_ns < self.paused_until_ns:
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
    def waiting_session(self) -> tuple[int, int, int]:
        """What the headers of all such batches say: client, low half of the session epoch, and choices."""
        return self.client_id, self.session_epoch & 0xFFFF_FFFF, AS_TOPIC | self._ack << 8

    def end_one(self, batch: Batch, base_seq: int, position: int, timestamp_ns: int, now_ns: int) -> None:
        """It is stored. Nobody has it yet who could be told, so it is not among the `decided`."""
        del self._numbered[batch.client_seq]
        self._sealed_size -= batch.size
        self._sent_size -= batch.size
        self.latency.add(now_ns - batch.begun_ns)
        batch.base_seq, batch.position = Seq(base_seq), Position(position)
        batch.timestamp_ns = TimestampNs(timestamp_ns)
        batch.connection = None
        batch.pieces = []
        batch.is_done = True

    def add_numbered(
        self, topic: str, topic_id: TopicId, blocks: Sequence[Records], client_seq: int, now_ns: int
    ) -> tuple[Batch, ...]:
        """Take blocks that repeat batches under the numbers they had."""
        self.seal()
        batches = []
        for seq, block in enumerate(blocks, client_seq):
            batch = Batch(topic, topic_id, now_ns)
            batch.take(block)
            self._sealed_size += batch.size
            self._number(batch, ClientSeq(seq))
            heappush(self._again, seq)
            batches.append(batch)
        self.next_seq = max(self.next_seq, ClientSeq(client_seq + len(blocks)))
        return tuple(batches)

    def _gather(self, topic: str, topic_id: TopicId, block: Records, now_ns: int) -> Batch:
        gathering = self._gathering
        if gathering is not None:
            size, count = gathering.size + block.size, gathering.record_count + block.record_count
            if size <= self._batch_size and count <= BATCH_RECORDS_MAX and gathering.topic_id == topic_id:
                return gathering
            self.seal()
        self._gathering = gathering = Batch(topic, topic_id, now_ns)
        return gathering

    def seal(self) -> None:
        """End the gathering: what there is goes out as it is."""
        if self._gathering is not None:
            self._sealed.append(self._gathering)
            self._sealed_size += self._gathering.size
            self._gathering = None

    # --- sending ---------------------------------------------------------------------------------------------------

    def next_batch(self, now_ns: int) -> Batch | None:
        """What may be sent now; whoever takes it sends it."""
        if now_ns < self.paused_until_ns or self._stopped_by is not None:
            return None
        while self._again:
            batch = self._numbered.get(heappop(self._again))
            if batch is not None and batch.connection is None:
                return batch
        while self._later and self._later[0] <= self.lowest_undecided:
            batch = self._numbered.get(heappop(self._later))
            if batch is not None and batch.connection is None:
                return batch
        if self._leaves_hole():
            return self._filling()
        self._seal_what_is_due(now_ns)
        if not self._sealed or not self._has_window(self._sealed[0]):
            return None
        batch = self._sealed.popleft()
        if self._free:
            number = heappop(self._free)
        else:
            number, self.next_seq = self.next_seq, ClientSeq(self.next_seq + 1)
        self._number(batch, number)
        return batch

    def _leaves_hole(self) -> bool:
        """Whether batches are under way that a free number lies below."""
        return bool(self._free and self._numbered) and self._free[0] < max(self._numbered)

    def _filling(self) -> Batch:
        """A batch that gives the lowest free number up: it has no records, and its refusal uses the number."""
        batch = Batch("", _NO_TOPIC, 0)
        number = heappop(self._free)
        self._number(batch, number)
        self._given_up = {each for each in self._given_up if each > number - SESSION_WINDOW_BATCHES} | {number}
        return batch

    def due_ns(self) -> int | None:
        """When there may be something to send though nothing happens until then."""
        if self.paused_until_ns and (
            self._again or self._later or self._sealed or self._gathering or self._leaves_hole()
        ):
            return self.paused_until_ns
        return None if self._gathering is None else self._gathering.begun_ns + self._linger_ns

    def _seal_what_is_due(self, now_ns: int) -> None:
        gathering = self._gathering
        if gathering is None or self._sealed:
            return
        # Without a linger, records are gathered for as long as others are on their way, and no longer.
        due = now_ns >= gathering.begun_ns + self._linger_ns if self._linger_ns else not self._numbered
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
            self._out_of_line.add(number)
        self._numbered[number] = batch
        self._sent_size += batch.size

    def frame_of(self, batch: Batch, wall_ns: int) -> tuple[bytes, Buffer]:
        """Header and block of a batch for the wire."""
        block = batch.block_for(self.codec)
        return self._header_of(batch, block, wall_ns), block

    def held_frame_of(self, batch: Batch, wall_ns: int) -> tuple[bytes, int, HeldValues] | None:
        """Header and number of a large batch that has its checksum behind it, and its values; None of other batches."""
        held = batch.held_for(self.codec)
        return None if held is None else (self._header_of(batch, held.size, wall_ns), batch.client_seq, held)

    def _header_of(self, batch: Batch, block: Buffer | int, wall_ns: int) -> bytes:
        return batch.header_of(block, self.client_id, self.session_epoch, self._ack, TimestampNs(wall_ns))

    def sent(self, batch: Batch, connection: object) -> None:
        """It went out on a connection."""
        batch.connection = connection
        batch.sends += 1

    # --- verdicts --------------------------------------------------------------------------------------------------

    def acked(self, rows: Rows, now_ns: int = 0) -> AckStatus:
        """What an ACK says of batches; the worst that the sender has to act on. `now_ns` is 0 where nobody measures.

        UNKNOWN wants another connection, RETRY a pause, because what was sent back is what everything waits for.
        """
        worst = AckStatus.OK
        is_unfilled = False
        sent_back: set[int] = set()
        for client_seq, base_seq, position, timestamp_ns, _topic, _run, _count, status, level, reason in rows.tolist():
            batch = self._numbered.get(client_seq)
            if batch is None:
                if status == AckStatus.REJECTED and client_seq not in self._given_up:
                    # It counted as done at a lower level, and is refused now.
                    self.report(rejection(reason, "a topic", client_seq))
                continue
            if status <= AckStatus.DUPLICATE:
                batch.base_seq, batch.position = Seq(base_seq), Position(position)
                batch.timestamp_ns = TimestampNs(timestamp_ns)
                # What we sent twice by ourselves repeats nothing that the caller knows of.
                batch.is_duplicate = status == AckStatus.DUPLICATE and batch.sends == 1
                if now_ns:
                    self.latency.add(now_ns - batch.begun_ns)
                self._decide(batch, None)
            elif status == AckStatus.REJECTED:
                # Where it got into the order (level 1), its number is used.
                is_free = reason in CLIENT_SEQ_UNUSED and not level
                if is_free:
                    heappush(self._free, ClientSeq(client_seq))
                if batch.record_count:
                    self._decide(batch, self._refusal(batch, reason, level))
                    continue
                # It was to be refused; where that has not used the number, it is tried again.
                self._decide(batch, None)
                is_unfilled |= is_free
            elif self._stopped_by is not None:
                self._decide(batch, unknown_outcome(batch.topic, client_seq, self._stopped_by))
            elif status == AckStatus.RETRY:
                batch.connection = None
                heappush(self._later, client_seq)
                sent_back.add(client_seq)
            else:
                worst = AckStatus.UNKNOWN
        if worst is AckStatus.OK and (is_unfilled or self.lowest_undecided in sent_back):
            return AckStatus.RETRY
        return worst

    def _refusal(self, batch: Batch, reason: int, level: int) -> SeawallError:
        """The error of a refused batch; a log that takes nothing cannot tell whether an earlier copy is stored."""
        if reason == ErrorCode.READ_ONLY and not level:
            if batch.sends > 1:
                why = str(self._stopped_by or "the server takes nothing now, and was sent it before")
                return unknown_outcome(batch.topic, batch.client_seq, why)
            if self._stopped_by is not None:
                return self._stopped_by
        return rejection(reason, batch.topic, batch.client_seq)

    def refused(self, client_seq: int, until_ns: int) -> None:
        """The server is under pressure until then; the batch of that number, if there is one, has to come again."""
        self.paused_until_ns = max(self.paused_until_ns, until_ns)
        batch = self._numbered.get(client_seq)
        if batch is not None:
            batch.connection = None
            heappush(self._again, client_seq)

    def lost(self, connection: object) -> None:
        """A connection is gone, and with it the fate of what was sent on it."""
        for client_seq, batch in self._numbered.items():
            if batch.connection is connection:
                batch.connection = None
                heappush(self._again, client_seq)

    def welcomed(self, client_id: ClientId, session_epoch: SessionEpoch, next_seq: ClientSeq) -> None:
        """A session is granted: the next number is not decided there, free ones below it are of a forgotten session."""
        self.client_id, self.session_epoch = client_id, session_epoch
        self.next_seq = max(self.next_seq, next_seq)
        self._free = sorted(number for number in self._free if number >= next_seq)

    def undecided(self) -> list[Batch]:
        """Everything that is under way; the gathering ends."""
        self.seal()
        return [*self._numbered.values(), *self._sealed]

    def fail(self, error: Exception) -> None:
        """Give everything up: what was never sent did not happen, of what was nobody knows.

        A server that is read-only still answers what it was sent: that is not given up while its connection lives.
        """
        if isinstance(error, ReadOnlyError):
            self._stopped_by = error
        self._again.clear()
        self._later.clear()
        for batch in self.undecided():
            if self._stopped_by is None or batch.connection is None:
                in_doubt = batch.sends and isinstance(error, RetryableError | FatalError | SessionExpiredError)
                self._decide(batch, unknown_outcome(batch.topic, batch.client_seq, error) if in_doubt else error)
        self._sealed.clear()

    def take_error(self) -> Exception | None:
        """The first error since the last time somebody asked."""
        error, self.first_error = self.first_error, None
        return error

    def take_decided(self) -> list[Batch]:
        """What was decided since the last time, to be announced."""
        decided, self.decided = self.decided, []
        return decided

    def forget_silent(self) -> None:
        """Keep of what was decided only what somebody is to be told of."""
        self.decided = [batch for batch in self.decided if batch.callbacks]

    def _decide(self, batch: Batch, error: Exception | None) -> None:
        if self._numbered.pop(batch.client_seq, None) is not None:
            self._sent_size -= batch.size
            self._out_of_line.discard(batch.client_seq)
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
        """Something went wrong that no delivery may tell of."""
        self.first_error = self.first_error or error
