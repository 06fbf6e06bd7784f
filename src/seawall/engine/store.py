"""The storage engine of one data directory: changes, checkpoints, failures. One owner, no thread, no clock of its own.

Appends go through `committer`, everything else that changes state is a control batch (`control_log`): both are
numbered, staged and written by `log_writer`, in one order. Opening is in `opening`.

Checkpoint: batches that wait in the log are copied to their places, segments synced and sealed, a snapshot is written,
and log files that no snapshot needs are removed.

A full disk refuses appends and harms nothing: reads go on, and appends do again as soon as there is space. `removal`
decides what goes.

INV-STORE-FAILED (`write_guard`): after a failed write or sync the store takes no further change.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from seawall import limits
from seawall.core.types import Offset, Seq, Term, TimestampNs, TopicId
from seawall.engine.appends import Append, Commit
from seawall.engine.committer import Committer
from seawall.engine.control_log import ControlLog
from seawall.engine.follow_parts import FollowerParts, Hooks
from seawall.engine.following import Follower
from seawall.engine.log_writer import LogWriter
from seawall.engine.pending_rows import PendingRows
from seawall.engine.placing import PlaceJob, SealJob
from seawall.engine.removal import Removal
from seawall.engine.replay import store_sections
from seawall.engine.room_making import RoomMaker
from seawall.engine.rooms import Reservations
from seawall.engine.sessions import Sessions
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.short_way import ShortWay
from seawall.engine.store_sessions import StoreSessions
from seawall.engine.store_transactions import StoreTransactions
from seawall.engine.topic_creation import Wanted, creates_max, only, plan_creations
from seawall.engine.topic_log import remove_segments, topic_home
from seawall.engine.topic_logs import TopicLogs
from seawall.engine.transactions import Transactions
from seawall.engine.upkeep import Upkeep
from seawall.engine.verifying import verify_directory
from seawall.engine.write_guard import WriteGuard
from seawall.errors import RetryableError, SeawallError
from seawall.io.interfaces import ReadableBuffer
from seawall.sequencer.frontier import Numbered
from seawall.storage.control_deletes import TagMatch
from seawall.storage.control_documents import Loss
from seawall.storage.directory import DataDirectory
from seawall.storage.epochs import WalAddress
from seawall.storage.findings import VerifyReport
from seawall.storage.snapshots import Snapshot, SnapshotStore
from seawall.storage.wal import WalWriter
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.persistence import catalog_sections
from seawall.topics.state import TopicState
from seawall.wire.fields import JsonObject


class Store(StoreTransactions, StoreSessions):
    """An open data directory. Made by `open_store`."""

    def __init__(
        self,
        machine: Machine,
        settings: StoreSettings,
        directory: DataDirectory,
        snapshots: SnapshotStore,
        wal: WalWriter,
        catalog: TopicCatalog,
        writer: LogWriter,
        logs: TopicLogs,
        term: Term,
        *,
        lost: Sequence[Loss],
        sessions: Sessions,
        checkpoint_at: WalAddress,
    ) -> None:
        self.guard = WriteGuard(directory.path)
        self._machine = machine
        self._settings = settings
        self._directory = directory
        self._snapshots = snapshots
        #: Bytes that the appends of one commit may take in the log.
        self.commit_size_max = min(limits.LANE_BUFFER_SIZE, settings.wal_file_size) // 2
        #: Topics that one commit may create.
        self.creates_max = creates_max(self.commit_size_max)
        self._wal = wal
        self._logs = logs
        logs.open_files.on_sync_failed = self.guard.refuse
        #: Puts some topics in order of which batches wait in the log since the opening; false if none is left.
        self.recover_waiting = logs.recover_waiting
        self._term = term
        self._leaves_mark = True
        self._writer = writer
        self._pending = PendingRows(ShortWay(wal, writer.frontier, term), catalog, logs)
        self._reservations = Reservations()
        self.controls = ControlLog(
            self.guard,
            directory,
            writer,
            catalog,
            machine.clock,
            term,
            pending=self._pending,
            reservations=self._reservations,
            lost=lost,
        )
        self.removal = Removal(catalog, logs, self.controls, settings.ephemeral_size)
        logs.on_recovered = self.removal.look_at
        self.upkeep = Upkeep(checkpoint_at, settings.checkpoint_size)
        self._maker = RoomMaker(writer, self.removal, logs.of, self.upkeep)
        self._committer = Committer(
            catalog,
            writer,
            self.controls,
            self._pending,
            self._reservations,
            self.removal,
            sessions.window,
            machine.clock,
            maker=self._maker,
            ceiling_step=settings.ceiling_step,
        )
        self._catalog = catalog
        #: A topic by its name, for who needs no look at what it holds.
        self.topic_named = catalog.named
        self.sessions = sessions
        self.live_clients = []
        self._transactions = Transactions(
            self._parts(), logs.of, self.upkeep, settings.ceiling_step, self.commit_size_max
        )

    @property
    def catalog(self) -> TopicCatalog:
        """All topics as they are now."""
        self._pending.apply()
        return self._catalog

    # --- changes -------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, config: TopicConfig) -> TopicState:
        """Create a topic; durable when this returns."""
        return only(self.create_topics([(name, config)]))

    def create_topics(self, wanted: Wanted) -> list[TopicState | SeawallError]:
        """Create topics by one commit, at most `creates_max`, durably: each topic, or why it was not created. What is
        wrong with all of them is raised."""
        self.guard.require_usable()
        return self._create_all(wanted, is_reserved=False)

    def _create(self, name: str, config: TopicConfig, *, is_reserved: bool) -> TopicState:
        return only(self._create_all([(name, config)], is_reserved=is_reserved))

    def _create_all(self, wanted: Wanted, *, is_reserved: bool) -> list[TopicState | SeawallError]:
        now_ms, step = self._machine.clock.wall_ns() // 1_000_000, self._settings.ceiling_step
        controls, refused = plan_creations(self.catalog, wanted, now_ms, step, is_reserved=is_reserved)
        if controls:
            self.controls.commit(*controls)
        return [refused.get(number) or self.catalog.stored(name) for number, (name, _) in enumerate(wanted)]

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; durable when this returns."""
        deleted = self.catalog.delete(name)
        self.controls.commit(deleted)
        with self.guard.changing():
            self.removal.forget(deleted.topic_id)
            self._logs.forget(deleted.topic_id)
        with self.guard.preparing():
            remove_segments(topic_home(self._machine.files, self._directory, deleted.topic_id))
            self._directory.restore_ballast()

    def configure_topic(self, name: str, patch: JsonObject) -> TopicState:
        """Change settings of a topic; durable when this returns."""
        return self._configure(self.catalog.named(name), patch)

    def _configure(self, topic: TopicState, patch: JsonObject) -> TopicState:
        changed = self.catalog.configure(topic, patch)
        if changed is not None:
            self.controls.commit(changed)
        return topic

    def commit_cursor(self, owner: str, name: str, next_seq: Seq, offset: Offset | None = None) -> None:
        """Keep how far an owner has read, with the offset it said that in, if it did; durable when this returns."""
        self.controls.commit(self.catalog.commit(owner, name, next_seq, offset))
        self.tidy_up()

    def delete_records(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> int:
        """Delete records below a seq, or with a tag, or both; how many went. Durable when this returns."""
        self.guard.require_usable()
        self._pending.apply()
        removed = self.removal.delete(name, before_seq=before_seq, match=match)
        self._let_go()
        return removed

    def retain(self, topics: Sequence[TopicState] | None = None) -> None:
        """Evict what is too old or too much, of some topics or of all of them."""
        self.guard.require_usable()
        self._pending.apply()
        self.removal.retain(TimestampNs(self._machine.clock.wall_ns()), topics)
        self._let_go()

    def follow(self, *, goi_entries: int, blog_size: int) -> Follower:
        """Follow an order that others make, from where the frontier is now; the store gives no position any more."""
        return Follower(self._parts(), self.commit_size_max, goi_entries, blog_size)

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Number and stage appends; each has its numbers or its error. The commit has to be written, then finished.

        Nothing else can be changed in between. Together they take at most `commit_size_max` bytes in the log.
        """
        if self.guard.failure is not None:
            self.guard.require_usable()
        if self.controls.began_at is None:
            self.controls.begin_term()
        try:
            return self._committer.begin(appends)
        except BaseException as error:
            self.guard.refuse(error)
            raise

    def begin_ahead(self, appends: Sequence[Append]) -> Commit | None:
        """`begin` while one commit is under way, to be written and finished after it; None if that cannot be: only one
        small batch that needs nothing but its numbers can be ahead, and only of another such."""
        if len(appends) != 1 or self.guard.failure is not None or self.is_tidy_up_due:
            return None
        try:
            return self._committer.begin_ahead(appends[0])
        except BaseException as error:
            self.guard.refuse(error)
            raise

    def commit_lone(self, topic_id: TopicId, block: ReadableBuffer, record_count: int, state: Lock) -> Numbered | None:
        """Commit one plain block on this thread, the shortest way there is; None if it has to go another.

        `state` is held while memory is changed that others read.
        """
        if self.guard.failure is not None or self.controls.began_at is None:
            return None
        try:
            return self._committer.commit_lone(topic_id, block, record_count, state)
        except BaseException as error:
            self.fail(error)
            raise

    @property
    def is_tidy_up_due(self) -> bool:
        """Whether `tidy_up` has something to do."""
        return self._wal.at + self._writer.staged >= self.upkeep.look_at or self.removal.has_dead()

    def is_due_behind(self, commit: Commit) -> bool:
        """Whether `tidy_up` has something to do for the topics of a commit, or for any."""
        if commit.limited:
            now = TimestampNs(self._machine.clock.wall_ns())
            if any(self.removal.is_due(topic, now) for topic in commit.limited):
                return True
        return self.is_tidy_up_due

    def finish(self, commit: Commit) -> bool:
        """The commit is written: its appends are stored, and readers see them. Whether `tidy_up` is due."""
        try:
            self._committer.finish(commit)
        except BaseException as error:
            self.guard.refuse(error)
            raise
        return self.is_due_behind(commit)

    def fail(self, error: BaseException) -> None:
        """Writing a commit failed: what the disk holds is unknown, so nothing is changed any more."""
        self.guard.refuse(error)
        self._writer.fail_flush(error)

    def append(self, appends: Sequence[Append]) -> list[Numbered]:
        """Commit appends and wait for it; their numbers, or the first error."""
        commit = self.begin(appends)
        try:
            commit.carry_out()
        except BaseException as error:
            self.fail(error)
            raise
        if self.finish(commit):
            self.tidy_up(commit.limited)
        return [append.result() for append in appends]

    def sync(self) -> None:
        """Make everything appended so far durable, whatever its class."""
        self.controls.sync()

    def checkpoint(self) -> None:
        """Bring every batch to its place, write a snapshot, and let go of the log that is not needed any more.

        `DiskFullError` where there is no space for index or snapshot: nothing is lost, and it may be tried again.
        """
        self.retain()
        self.note_sessions()
        with self.guard.preparing():
            self._writer.flush(durable=True)
            self._reservations.forget()
            while self._logs.recover_waiting():
                pass
            for log in self._logs:
                log.fill(self._wal.locate, self._wal.at)
                log.seal_rolled()
            sections = catalog_sections(self.catalog) | store_sections(self._logs.unsealed(), self.sessions)
            # What is numbered and not logged yet, where others number, is not in it.
            position = max(self._catalog.next_position, self._wal.next_position)
            self._snapshots.write(Snapshot(position, self._wal.at, self._machine.clock.wall_ns(), sections))
            self._wal.drop_before(WalAddress(min(self._snapshots.wal_needed_from, self._wal.synced_through)))
            self.upkeep.checkpointed(self._wal.at)
        self.removal.look_everywhere()
        self._let_go()
        with self.guard.preparing():
            self.removal.store_deletes()

    def plan_places(self) -> list[PlaceJob]:
        """What waits in the log for its places; may be carried out without the store (`placing.py`)."""
        self._pending.apply()
        jobs = [job for log in self._logs for job in log.plan_places(self._wal.locate, self._wal.at)]
        # A segment that nothing waits for may be taken back meanwhile.
        return [job for job in jobs if job.entries.size]

    def plan_seals(self) -> list[SealJob]:
        """Segments that can be sealed without the store (`placing.py`): that others follow them is durable."""
        if not self._writer.is_settled:
            return []
        return [seal for log in self._logs for seal in log.plan_seals()]

    @property
    def log_end(self) -> int:
        """The address behind everything that is logged."""
        return self._writer.log_end

    def leave_no_mark(self) -> None:
        """Have the next opening look at everything, however this one ends: somebody was cut off."""
        self._leaves_mark = False

    def close(self) -> None:
        """End in order: the next open finds nothing to repair. After a failure only the files are given back."""
        try:
            if self.guard.failure is None:
                with self.guard.changing():
                    self._writer.flush(durable=True)
                if self.upkeep.is_long(self._wal.at):
                    # So that the next opening is short.
                    with suppress(RetryableError):
                        self.checkpoint()
        finally:
            try:
                is_whole = self.guard.failure is None and not self._writer.is_behind
                self._wal.close(clean=is_whole and self._leaves_mark)
            finally:
                try:
                    self._logs.close()
                finally:
                    # Whatever fails before: the next process must be let in.
                    self._directory.close()

    def verify(self) -> VerifyReport:
        """Read everything in the directory and name every damage."""
        if self.guard.failure is None:
            self.sync()
        return verify_directory(self._machine.files, self._directory)

    # --- inside --------------------------------------------------------------------------------------------------

    def _parts(self) -> FollowerParts:
        stretches = (self.guard.preparing, self.guard.changing)
        hooks = Hooks(self.controls.begin_change, self.controls.commit_many, *stretches, self.fail, self.tidy_up)
        shared = (self._catalog, self._reservations, self._writer, self._maker, self.removal, self.sessions)
        return FollowerParts(*shared, hooks, self._machine.clock, self._term)

    def _let_go(self) -> None:
        """Give back the space of segments in which nothing is left."""
        with self.guard.preparing():
            self.removal.drop_dead()
            self._directory.restore_ballast()

    def tidy_up(self, limited: Sequence[TopicState] = ()) -> None:
        """Evictions and a checkpoint on the side of another change, which stands whatever becomes of this."""
        try:
            now = TimestampNs(self._machine.clock.wall_ns())
            due = [topic for topic in limited if self.removal.is_due(topic, now)]
            if due:
                self.retain(due)
            elif self.removal.loose:
                self._let_go()
            at = self._wal.at + self._writer.staged
            if at >= self.upkeep.look_at:
                self.upkeep.look_after(at, self.checkpoint)
        except RetryableError:
            # No space, or no descriptor: the log stays longer than it should, the next try is after another stretch.
            self.upkeep.checkpointed(self._wal.at)
        except (SeawallError, OSError):
            # Whoever changes something next is told: INV-STORE-FAILED.
            if self.guard.failure is None:
                raise
