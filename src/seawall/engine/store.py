"""The storage engine of one data directory: numbers, log, places, recovery. One owner, no thread, no clock of its own.

The way of an append, all of it on the caller's thread:
    1. room     space in the segment and in the log is reserved; a full disk is found here, before a number is given
    2. number   the frontier stamps position, seq, offset and time into the batch (`sequencer.frontier`)
    3. place    the batch gets the next file position of its topic's segment; a large one is written there and synced
    4. log      one epoch: small batches as they are, references to large ones; one write
    5. sync     for class fsync; weaker classes sync with whatever is synced next
    6. publish  the catalog and the index learn of it: readers may see it, the caller is told

Everything else that changes state is a control batch that goes the same way.

Opening: snapshot, replay, repair of the torn tail, segments put in order, a new term. After an end that was not clean
every topic resumes at its ceiling, and the seqs between are an explicit crash gap: a number that anyone may have seen
is never given to another record. Positions resume far behind the last one for the same reason.

Checkpoint: batches that wait in the log are copied to their places, segments synced and sealed, a snapshot is written,
and log files that no snapshot needs are removed.

INV-STORE-ROOM: once a batch has its numbers nothing but a failing disk can keep it out of the log.
INV-STORE-FAILED: after a failed write or sync the store takes no further change: what the disk holds is unknown until
recovery has looked. Reads go on.
INV-REFERENCE-AFTER-DATA: the log refers to a large batch only after the batch is durable at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from seawall import limits
from seawall.core.types import Position, Seq, Term, TimestampNs, TopicId
from seawall.engine.replay import Replayed, add_entry, replay, segment_entries, segments_section
from seawall.engine.topic_log import Filling, StoredBatch, TopicLog
from seawall.errors import FatalError, InvariantError
from seawall.io.interfaces import Clock, Files
from seawall.sequencer.frontier import CommitFrontier, RunStop, TopicNumbers, at_ceiling
from seawall.storage.control import Ceiling, Reference, SegmentRoll
from seawall.storage.control_batches import Compound, Control, SimpleControl, control_batch
from seawall.storage.control_documents import Loss, TermStart, TopicCreate, TopicDelete
from seawall.storage.directory import DataDirectory, open_directory
from seawall.storage.epochs import WalAddress
from seawall.storage.segment_recovery import recover_topic
from seawall.storage.segments import SegmentLimits, TopicHome
from seawall.storage.snapshots import SectionKind, Snapshot, SnapshotStore
from seawall.storage.wal import WalWriter
from seawall.storage.wal_reader import repair_tail
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Durability, TopicConfig
from seawall.topics.gaps import Gap
from seawall.topics.persistence import catalog_sections
from seawall.topics.state import TopicState
from seawall.wire.batches import BatchHeader, BatchSource, parse_batch_header
from seawall.wire.codes import GapReason
from seawall.wire.fields import JsonObject

#: How far positions jump after an end that was not clean: more than can have been numbered between two syncs.
POSITION_JUMP: Final = 1 << 32

#: Losses logged at one position.
_LOSSES_PER_BATCH: Final = 1_000

#: Bytes of control batches that may stand in an epoch beside the appends.
_CONTROL_ROOM: Final = 1_024


@dataclass(frozen=True, slots=True)
class Machine:
    """What the store needs of the outside; everything random or timed comes through here."""

    files: Files
    clock: Clock
    random_bytes: Callable[[int], bytes]
    pid: int


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How one store is run."""

    wal_file_size: int = limits.WAL_FILE_SIZE
    ceiling_step: int = limits.CEILING_STEP
    ballast_size: int = limits.BALLAST_SIZE
    #: A checkpoint is due after this many bytes of log.
    checkpoint_size: int = 2 * limits.WAL_FILE_SIZE


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
        self._checkpoint_at = wal.at
        self.catalog = catalog

    # --- changes -------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, config: TopicConfig) -> TopicState:
        """Create a topic; durable when this returns."""
        created = self.catalog.create(name, config)
        self._directory.make_topic(created.topic_id)
        ceiling = Ceiling(created.topic_id, Seq(1 + self._settings.ceiling_step), Seq(1))
        self._commit(created, ceiling)
        return self.catalog.named(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; durable when this returns."""
        deleted = self.catalog.delete(name)
        self._commit(deleted)

    def configure_topic(self, name: str, patch: JsonObject) -> TopicState:
        """Change settings of a topic; durable when this returns."""
        changed = self.catalog.configure(name, patch)
        if changed is not None:
            self._commit(changed)
        return self.catalog.named(name)

    def commit_cursor(self, owner: str, name: str, next_seq: Seq) -> None:
        """Keep how far an owner has read; durable when this returns."""
        self._commit(self.catalog.commit(owner, name, next_seq))

    def append(self, name: str, batches: Sequence[bytearray]) -> list[BatchHeader]:
        """Append encoded batches of one topic as one commit; returns their stamped headers.

        Each batch is as a writer encodes it, with its checksums right. It is stamped in place.
        """
        self._require_usable()
        topic = self.catalog.named(name)
        if not batches:
            return []
        self._raise_ceiling(topic, sum(_record_count(batch) for batch in batches))
        log = self._log_of(topic)
        now = self._machine.clock.wall_ns()
        lengths = [len(batch) for batch in batches]
        roll = self._roll(topic, log, now)
        filling = log.writing
        if filling is None or roll is not None:
            log.begin(topic.next_seq, TimestampNs(now))
            filling = log.filling[-1]
        filling.segment.reserve(sum(lengths))
        self._wal.reserve(sum(lengths) + _CONTROL_ROOM + len(batches) * 256, TimestampNs(now))
        with self._changing():
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
        """Bring every batch to its place, write a snapshot, and let go of the log that is not needed any more."""
        self._require_usable()
        with self._changing():
            self._wal.sync()
            for log in self._logs.values():
                log.fill()
                log.seal_rolled()
            filling = [
                (topic_id, each.segment.first_seq, each.segment.index.entries)
                for topic_id, log in self._logs.items()
                for each in log.filling
            ]
            sections = catalog_sections(self.catalog) | {SectionKind.SEGMENTS: segments_section(filling)}
            now = self._machine.clock.wall_ns()
            self._snapshots.write(Snapshot(self._frontier.next_position, self._wal.at, now, sections))
            self._wal.drop_before(WalAddress(min(self._snapshots.wal_needed_from, self._wal.synced_through)))
            self._checkpoint_at = self._wal.at

    def close(self) -> None:
        """End in order: the next open finds nothing to repair. After a failure only the files are given back."""
        try:
            self._wal.close()
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
            items.extend(topic.gaps(reached, Seq(batch.header.base_seq - 1)))
            items.append(batch)
            reached = Seq(batch.header.base_seq + batch.header.record_count)
        if log is None or next(log.read(reached, topic.next_seq, 1), None) is None:
            # No batch follows, so what is left up to the head is lost, and the reader is told now.
            items.extend(topic.gaps(reached, topic.head_seq))
        return items

    # --- inside --------------------------------------------------------------------------------------------------

    def begin_term(self, *, lost: Sequence[Loss]) -> None:
        """Log that this process writes now, and what the end of the one before has cost."""
        start = TermStart(self._term, self.catalog.term, self._frontier.next_position)
        self._commit(start)
        for first in range(0, len(lost), _LOSSES_PER_BATCH):
            self._commit(*lost[first : first + _LOSSES_PER_BATCH])

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

    def _roll(self, topic: TopicState, log: TopicLog, now: int) -> tuple[SegmentRoll, Position, bytes] | None:
        """The control batch that begins a new segment, numbered, if the present one is full."""
        config = topic.config
        bounds = SegmentLimits(config.segment_max_records, config.segment_max_bytes, config.segment_max_age_ms)
        if not log.needs_roll(bounds, TimestampNs(now)):
            return None
        previous = log.filling[-1].segment.first_seq
        roll = SegmentRoll(topic.topic_id, topic.next_seq, previous)
        position, timestamp_ns = self._frontier.number_control(now)
        return roll, position, control_batch(roll, position=position, timestamp_ns=timestamp_ns, term=self._term)

    def _commit(self, *controls: SimpleControl) -> None:
        """Log controls at one position, durably, and let them take effect."""
        self._require_usable()
        control: Control = controls[0] if len(controls) == 1 else Compound(controls)
        now = self._machine.clock.wall_ns()
        self._wal.reserve(len(control.encode()) + limits.BATCH_HEADER_SIZE, TimestampNs(now))
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
            log = TopicLog(_home(self._machine.files, self._directory, topic.topic_id), self._wal.locate, [], [])
            self._logs[topic.topic_id] = log
        return log

    def _checkpoint_if_due(self) -> None:
        if self._wal.at - self._checkpoint_at >= self._settings.checkpoint_size:
            self.checkpoint()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A stretch in which numbers are given and files are written: whatever fails in it ends the store's writing."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _require_usable(self) -> None:
        """INV-STORE-FAILED."""
        if self._failure is not None:
            raise FatalError(
                f"{self._directory.path}: an earlier change failed ({self._failure}); close it and open it again"
            ) from self._failure


_DEFAULTS: Final = StoreSettings()


def open_store(machine: Machine, path: str, settings: StoreSettings = _DEFAULTS) -> Store:
    """Open a data directory, make it where it is missing, recover it where its last end was not clean."""
    files = machine.files
    directory = open_directory(
        files,
        path,
        pid=machine.pid,
        now_ns=machine.clock.wall_ns(),
        random_bytes=machine.random_bytes,
        ballast_size=settings.ballast_size,
    )
    try:
        return _recover(machine, settings, directory)
    except BaseException:
        directory.close()
        raise


def _recover(machine: Machine, settings: StoreSettings, directory: DataDirectory) -> Store:
    files = machine.files
    snapshots = SnapshotStore(files, directory.meta, directory.directory_id)
    replayed = replay(files, directory, snapshots.load().snapshot)
    end = repair_tail(files, directory.wal, directory.directory_id, replayed.end)
    wal = WalWriter(
        files,
        directory.wal,
        directory.directory_id,
        start=end,
        file_size=settings.wal_file_size,
        salt=lambda: int.from_bytes(machine.random_bytes(8), "little"),
    )
    logs = {topic.topic_id: _recover_log(files, directory, topic, replayed, wal) for topic in replayed.catalog}
    # Damage may have taken the newest batches, whose numbers were seen: it counts as an end that was not clean.
    unclean = bool(replayed.damages) or (not replayed.end.clean and replayed.end.epoch > 0)
    catalog = replayed.catalog
    numbers = [_numbers_of(topic) for topic in catalog]
    lost = [
        Loss(topic.topic_id, topic.next_seq, Seq(topic.ceiling - 1), GapReason.CRASH, 0)
        for topic in numbers
        if unclean and topic.next_seq < topic.ceiling
    ]
    position = max(catalog.next_position, end.position) + (POSITION_JUMP if unclean else 0)
    frontier = CommitFrontier(
        next_position=Position(position),
        last_timestamp_ns=max((topic.last_timestamp_ns for topic in catalog), default=end.timestamp_ns),
        topics=[at_ceiling(topic) for topic in numbers] if unclean else numbers,
        ceiling_step=settings.ceiling_step,
    )
    store = Store(machine, settings, directory, snapshots, wal, catalog, frontier, logs, Term(catalog.term + 1))
    try:
        store.begin_term(lost=lost)
    except BaseException:
        store.close()
        raise
    return store


def _recover_log(
    files: Files, directory: DataDirectory, topic: TopicState, replayed: Replayed, wal: WalWriter
) -> TopicLog:
    """Put the segments of one topic in order; batches that only the log has will be copied by the next checkpoint."""
    home = _home(files, directory, topic.topic_id)
    directory.make_topic(topic.topic_id)
    segments = replayed.segments.get(topic.topic_id, {})
    recovery = recover_topic(home, dict(segment_entries(segments)))
    filling = []
    for segment in (*recovery.pending, *([recovery.active] if recovery.active else [])):
        known = segments.get(segment.first_seq)
        filling.append(Filling(segment, {} if known is None else dict(known.waiting)))
    return TopicLog(home, wal.locate, list(recovery.sealed), filling)


def _home(files: Files, directory: DataDirectory, topic_id: TopicId) -> TopicHome:
    return TopicHome(files, directory.topic(topic_id), directory.directory_id, topic_id)


def _record_count(batch: bytearray) -> int:
    """Records of an encoded batch, as its header says."""
    return int.from_bytes(batch[28:32], "little")


def _numbers_of(topic: TopicState) -> TopicNumbers:
    return TopicNumbers(
        topic.topic_id,
        next_seq=topic.next_seq,
        next_offset=topic.end_offset,
        ceiling=max(topic.ceiling, topic.next_seq),
        last_timestamp_ns=topic.last_timestamp_ns,
        record_total=topic.live_records,
        byte_total=topic.live_bytes,
    )
