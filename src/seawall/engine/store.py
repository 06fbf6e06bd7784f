"""The storage engine of one data directory: numbers, log, places, recovery. One owner, no thread, no clock of its own.

The way of an append, all of it on the caller's thread:
    1. room     space in the segment and in the log is reserved; a full disk is found here, before a number is given
    2. number   the frontier stamps position, seq, offset and time into the batch (`sequencer.frontier`)
    3. place    the batch gets the next file position of its topic's segment; a large one is written there and synced
    4. log      one epoch: small batches as they are, references to large ones; one write
    5. sync     for class fsync; weaker classes sync with whatever is synced next
    6. publish  the catalog and the index learn of it: readers may see it, the caller is told

Everything else that changes state is a control batch that goes the same way. Opening is in `opening`.

Checkpoint: batches that wait in the log are copied to their places, segments synced and sealed, a snapshot is written,
and log files that no snapshot needs are removed.

A full disk refuses appends and harms nothing: reads go on, and appends do again as soon as there is space. Deletes of
topics still work: every append leaves room for them in the log, and behind that there is the ballast.

INV-STORE-ROOM: once a batch has its numbers nothing but a failing disk can keep it out of the log.
INV-STORE-FAILED: after a failed write or sync the store takes no further change: what the disk holds is unknown until
recovery has looked. Reads go on.
INV-STORE-NO-HOLE: a seq that counts as live and that no batch holds is told to readers as a gap by corruption.
INV-REFERENCE-AFTER-DATA: the log refers to a large batch only after the batch is durable at its place.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Final

from seawall import limits
from seawall.core.types import Position, Seq, Term, TimestampNs, TopicId
from seawall.engine.replay import add_entry, store_sections
from seawall.engine.sessions import Sessions
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.topic_log import Filling, StoredBatch, TopicLog, remove_segments, topic_home
from seawall.errors import (
    CallerError,
    ConflictError,
    DiskFullError,
    FatalError,
    InvariantError,
    RetryableError,
    SeawallError,
)
from seawall.sequencer.frontier import CommitFrontier, RunStop, TopicNumbers
from seawall.storage.control import Ceiling, Reference, SegmentRoll
from seawall.storage.control_batches import Compound, Control, SimpleControl, control_batch
from seawall.storage.control_documents import Loss, TermStart, TopicCreate, TopicDelete
from seawall.storage.directory import DataDirectory
from seawall.storage.epochs import WalAddress
from seawall.storage.segments import SegmentLimits
from seawall.storage.snapshots import Snapshot, SnapshotStore
from seawall.storage.wal import WalWriter
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Durability, TopicConfig
from seawall.topics.gaps import Gap
from seawall.topics.persistence import catalog_sections
from seawall.topics.state import TopicState
from seawall.wire.batches import BatchHeader, BatchSource, parse_batch_header
from seawall.wire.codes import GapReason
from seawall.wire.fields import JsonObject

#: Losses, or ceilings, logged at one position.
_CONTROLS_PER_BATCH: Final = 1_000

#: Bytes of control batches that may stand in an epoch beside the appends, and bytes of a reference to a large batch.
_CONTROL_ROOM: Final = 1_024
_REFERENCE_ROOM: Final = 256

#: Room in the log that appends leave to deletes of topics and to the next opening, for when the disk is full.
_HEADROOM: Final = 16 * limits.KIB
_USES_HEADROOM: Final = (TopicDelete, TermStart, Loss)

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

#: What an append needs to know of a batch before it is numbered: how many records, and of which topic.
_COUNT_AND_TOPIC: Final = Struct("<28xI8xI")


class Store:
    """An open data directory. Made by `open_store`."""

    def __init__(
        self,
        machine: Machine,
        settings: StoreSettings,
        directory: DataDirectory,
        snapshots: SnapshotStore,
        wal: WalWriter,
        catalog: TopicCatalog,
        frontier: CommitFrontier,
        logs: dict[TopicId, TopicLog],
        term: Term,
        *,
        sessions: Sessions,
        checkpoint_at: WalAddress,
    ) -> None:
        self._machine = machine
        self._settings = settings
        self._directory = directory
        self._snapshots = snapshots
        self._wal = wal
        self._logs = logs
        self._frontier = frontier
        self._term = term
        self._failure: BaseException | None = None
        self._checkpoint_at = checkpoint_at
        self.catalog = catalog
        self.sessions = sessions

    # --- changes -------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, config: TopicConfig) -> TopicState:
        """Create a topic; durable when this returns."""
        self._require_usable()
        created = self.catalog.create(name, config)
        with self._preparing():
            self._directory.make_topic(created.topic_id)
        ceiling = Ceiling(created.topic_id, Seq(1 + self._settings.ceiling_step), Seq(1))
        self._commit(created, ceiling)
        return self.catalog.named(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; durable when this returns."""
        deleted = self.catalog.delete(name)
        self._commit(deleted)
        with self._preparing():
            remove_segments(topic_home(self._machine.files, self._directory, deleted.topic_id))
            self._directory.restore_ballast()

    def configure_topic(self, name: str, patch: JsonObject) -> TopicState:
        """Change settings of a topic; durable when this returns."""
        changed = self.catalog.configure(name, patch)
        if changed is not None:
            self._commit(changed)
        return self.catalog.named(name)

    def commit_cursor(self, owner: str, name: str, next_seq: Seq) -> None:
        """Keep how far an owner has read; durable when this returns."""
        self._commit(self.catalog.commit(owner, name, next_seq))
        self._checkpoint_if_due()

    def append(self, name: str, batches: Sequence[bytearray]) -> list[BatchHeader]:
        """Append encoded batches of one topic as one commit; returns their stamped headers.

        Each batch is as a writer encodes it, with its checksums right. It is stamped in place.
        """
        self._require_usable()
        topic = self.catalog.named(name)
        if not batches:
            return []
        self._raise_ceiling(topic, _record_count(topic, batches))
        log = self._log_of(topic)
        now = self._machine.clock.wall_ns()
        rolls = log.needs_roll(_bounds(topic), TimestampNs(now))
        with self._preparing():
            filling = self._make_room(topic, log, batches, rolls, now)
        with self._changing():
            roll = self._roll(topic, log, now) if rolls else None
            headers = self._number(batches, filling, roll, now)
            if topic.config.durability is Durability.FSYNC:
                self._wal.sync()
            if roll is not None:
                self.catalog.apply(roll[0], roll[1])
            for header in headers:
                self.catalog.apply_append(header)
        self._checkpoint_if_due()
        return headers

    def sync(self) -> None:
        """Make everything appended so far durable, whatever its class."""
        self._require_usable()
        with self._changing():
            self._wal.sync()

    def checkpoint(self) -> None:
        """Bring every batch to its place, write a snapshot, and let go of the log that is not needed any more.

        `DiskFullError` where there is no space for index or snapshot: nothing is lost, and it may be tried again.
        """
        self._require_usable()
        with self._preparing():
            self._wal.sync()
            for log in self._logs.values():
                log.fill()
                log.seal_rolled()
            filling = [
                (topic_id, each.segment.first_seq, each.segment.index.entries)
                for topic_id, log in self._logs.items()
                for each in log.filling
            ]
            sections = catalog_sections(self.catalog) | store_sections(filling, self.sessions)
            now = self._machine.clock.wall_ns()
            self._snapshots.write(Snapshot(self._frontier.next_position, self._wal.at, now, sections))
            self._wal.drop_before(WalAddress(min(self._snapshots.wal_needed_from, self._wal.synced_through)))
            self._checkpoint_at = self._wal.at
            self._directory.restore_ballast()

    def close(self) -> None:
        """End in order: the next open finds nothing to repair. After a failure only the files are given back."""
        try:
            self._wal.close(clean=self._failure is None)
        finally:
            for log in self._logs.values():
                log.close()
            self._directory.close()

    # --- questions -----------------------------------------------------------------------------------------------

    def read(self, name: str, from_seq: Seq, *, size_max: int) -> list[StoredBatch | Gap]:
        """What a reader at `from_seq` gets next: batches and, in order with them, the gaps it has to know of."""
        topic = self.catalog.named(name)
        if from_seq > topic.head_seq:
            return []
        items: list[StoredBatch | Gap] = []
        log = self._logs.get(topic.topic_id)
        batches = [] if log is None else list(log.read(from_seq, topic.next_seq, size_max))
        reached = from_seq
        for batch in batches:
            items.extend(_holes(topic, reached, Seq(batch.header.base_seq - 1)))
            items.append(batch)
            reached = Seq(batch.header.base_seq + batch.header.record_count)
        if log is None or next(log.read(reached, topic.next_seq, 1), None) is None:
            # No batch follows, so what is left up to the head is lost, and the reader is told now.
            items.extend(_holes(topic, reached, topic.head_seq))
        return items

    def seq_at(self, name: str, timestamp_ns: TimestampNs) -> Seq:
        """Seq of the first record that is not older than `timestamp_ns`; the next one to come if all are."""
        topic = self.catalog.named(name)
        log = self._logs.get(topic.topic_id)
        found = None if log is None else log.seq_at(timestamp_ns)
        return topic.next_seq if found is None else max(found, topic.floor)

    # --- inside --------------------------------------------------------------------------------------------------

    def begin_term(self, *, lost: Sequence[Loss]) -> None:
        """Log that this process writes now, and what the end of the one before has cost.

        Whatever fails in it ends the store: a clean close would vouch for numbers that have not been accounted for.
        """
        with self._changing():
            self._commit(TermStart(self._term, self.catalog.term, self._frontier.next_position))
            self._commit_many(lost)

    def _number(
        self, batches: Sequence[bytearray], filling: Filling, roll: tuple[SegmentRoll, Position, bytes] | None, now: int
    ) -> list[BatchHeader]:
        """Number and place every batch, write them as one epoch."""
        pieces: list[bytes | bytearray] = [] if roll is None else [roll[2]]
        first_position = self._frontier.next_position if roll is None else roll[1]
        segment = filling.segment
        headers: list[BatchHeader] = []
        small: list[tuple[int, int]] = []
        offset = sum(map(len, pieces))
        large = False
        for batch in batches:
            admission = self._frontier.admit(batch, term=self._term, wall_ns=now)
            refused = admission.stop is not RunStop.DONE or int(admission.rows[0]["status"])
            if refused:
                raise InvariantError("INV-STORE-ROOM", f"a batch was refused after its room was reserved: {admission}")
            header = parse_batch_header(batch, source=BatchSource.STORED)
            at = segment.place(len(batch))
            if len(batch) >= limits.LARGE_BATCH_SIZE:
                segment.write_at(at, [batch])
                large = True
                reference = Reference(header, segment.first_seq, at)
                piece: bytes | bytearray = control_batch(
                    reference, position=header.position, timestamp_ns=header.timestamp_ns, term=self._term
                )
            else:
                piece = batch
                small.append((len(segment.index), offset))
            pieces.append(piece)
            offset += len(piece)
            add_entry(segment.index, header, at)
            headers.append(header)
        if large:
            segment.sync()
        receipt = self._wal.append_epoch(pieces, first_position, len(pieces), headers[-1].timestamp_ns)
        for entry, behind in small:
            filling.waiting[entry] = WalAddress(receipt.batches_at + behind)
        return headers

    def _make_room(
        self, topic: TopicState, log: TopicLog, batches: Sequence[bytearray], rolls: bool, now: int
    ) -> Filling:
        """The segment that takes the batches, with room for them there and in the log (INV-STORE-ROOM).

        Where there is none a segment that was begun for them is taken back: no roll in the log tells of it.
        """
        begins = rolls or log.writing is None
        if begins:
            log.begin(topic.next_seq, TimestampNs(now))
        filling = log.filling[-1]
        logged = sum(len(batch) if len(batch) < limits.LARGE_BATCH_SIZE else 0 for batch in batches)
        try:
            filling.segment.reserve(sum(map(len, batches)))
            self._wal.reserve(logged + len(batches) * _REFERENCE_ROOM + _CONTROL_ROOM + _HEADROOM, TimestampNs(now))
        except (CallerError, RetryableError):
            if begins:
                log.take_back()
            raise
        return filling

    def _roll(self, topic: TopicState, log: TopicLog, now: int) -> tuple[SegmentRoll, Position, bytes]:
        """The control batch that says that a new segment has begun, numbered."""
        previous = log.filling[-2].segment.first_seq
        roll = SegmentRoll(topic.topic_id, topic.next_seq, previous)
        position, timestamp_ns = self._frontier.number_control(now)
        return roll, position, control_batch(roll, position=position, timestamp_ns=timestamp_ns, term=self._term)

    def _commit(self, *controls: SimpleControl) -> None:
        """Log controls at one position, durably, and let them take effect."""
        self._require_usable()
        control: Control = controls[0] if len(controls) == 1 else Compound(controls)
        now = self._machine.clock.wall_ns()
        with self._preparing():
            uses_headroom = all(isinstance(part, _USES_HEADROOM) for part in controls)
            self._reserve_control(len(control.encode()), TimestampNs(now), uses_headroom=uses_headroom)
        with self._changing():
            position, timestamp_ns = self._frontier.number_control(now)
            batch = control_batch(control, position=position, timestamp_ns=timestamp_ns, term=self._term)
            self._wal.append_epoch([batch], position, 1, timestamp_ns)
            self._wal.sync()
            self.catalog.apply(control, position)
            for part in controls:
                self._tell_frontier(part)

    def _tell_frontier(self, part: SimpleControl) -> None:
        match part:
            case TopicCreate():
                self._frontier.add_topic(TopicNumbers(part.topic_id))
            case TopicDelete():
                self._frontier.remove_topic(part.topic_id)
                log = self._logs.pop(part.topic_id, None)
                if log is not None:
                    log.close()
            case Ceiling():
                self._frontier.set_ceiling(part.topic_id, part.ceiling)
            case _:
                pass

    def _commit_many(self, controls: Sequence[SimpleControl]) -> None:
        for first in range(0, len(controls), _CONTROLS_PER_BATCH):
            self._commit(*controls[first : first + _CONTROLS_PER_BATCH])

    def _reserve_control(self, length: int, now_ns: TimestampNs, *, uses_headroom: bool) -> None:
        """Room in the log for a control; what must work on a full disk gets what was kept for it."""
        needed = length + limits.BATCH_HEADER_SIZE + (0 if uses_headroom else _HEADROOM)
        try:
            self._wal.reserve(needed, now_ns)
        except DiskFullError:
            if not uses_headroom or not self._directory.has_ballast:
                raise
            self._directory.release_ballast()
            self._wal.reserve(needed, now_ns)

    def _raise_ceiling(self, topic: TopicState, wanted: int) -> None:
        """Log a higher ceiling ahead of need: `wanted` seqs must lie below a durable one, and some more."""
        left = self._frontier.seqs_left(topic.topic_id)
        step = self._settings.ceiling_step
        if left - wanted < step // 4:
            ceiling = Seq(topic.next_seq + left)
            self._commit(Ceiling(topic.topic_id, Seq(topic.next_seq + wanted + step), ceiling))

    def _log_of(self, topic: TopicState) -> TopicLog:
        log = self._logs.get(topic.topic_id)
        if log is None:
            log = TopicLog(topic_home(self._machine.files, self._directory, topic.topic_id), self._wal.locate, [], [])
            self._logs[topic.topic_id] = log
        return log

    def _checkpoint_if_due(self) -> None:
        """A checkpoint on the side of another change, which stands whatever becomes of this."""
        if self._wal.at - self._checkpoint_at < self._settings.checkpoint_size:
            return
        try:
            self.checkpoint()
        except DiskFullError:
            # The log stays longer than it should; the next try is after another stretch of it.
            self._checkpoint_at = self._wal.at
        except (SeawallError, OSError):
            # Whoever changes something next is told: INV-STORE-FAILED.
            if self._failure is None:
                raise

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A stretch in which numbers are given and files are written: whatever fails in it ends the store's writing."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """A stretch in which no numbers are given: what is refused in it, by a full disk too, may be tried again."""
        try:
            yield
        except (CallerError, RetryableError):
            raise
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise DiskFullError(f"{error.filename}: the disk is full; free some space on it") from error
            self._failure = error
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _require_usable(self) -> None:
        """INV-STORE-FAILED."""
        if self._failure is not None:
            raise FatalError(
                f"{self._directory.path}: an earlier change failed ({self._failure}); close it and open it again"
            ) from self._failure


def _bounds(topic: TopicState) -> SegmentLimits:
    config = topic.config
    return SegmentLimits(config.segment_max_records, config.segment_max_bytes, config.segment_max_age_ms)


def _record_count(topic: TopicState, batches: Sequence[bytearray]) -> int:
    """Records of all batches, each of which must be of this topic: its name may have been given to another one."""
    total = 0
    for batch in batches:
        count, topic_id = _COUNT_AND_TOPIC.unpack_from(batch)
        if topic_id != topic.topic_id:
            raise ConflictError(
                f"a batch for topic id {topic_id}, but {topic.name!r} is {topic.topic_id}: it was deleted and created "
                "again meanwhile; publish anew if the records are meant for the new one"
            )
        total += count
    return total


def _holes(topic: TopicState, first: Seq, last: Seq) -> list[Gap]:
    """What a reader has to be told of a range that no batch covers (INV-STORE-NO-HOLE)."""
    if first > last:
        return []
    lost = [Gap(low, high, GapReason.CORRUPTION) for low, high in topic.live_runs(first, last)]
    return sorted([*topic.gaps(first, last), *lost], key=lambda gap: gap.first_seq)
