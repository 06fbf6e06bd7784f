"""Maintenance of a data directory: flushes, checkpoints, retention, and the shutdown.

A checkpoint flushes unflushed batches, syncs and seals segments, writes a snapshot, and removes log files that no
snapshot needs. `checkpoint_schedule` knows when one is due; `retention` decides which records to delete.

A crash during a checkpoint leaves the previous snapshot and a log that is longer than needed. A full disk ends the
checkpoint, and nothing is lost. This module must not know who appends, nor who assigns positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from seawall.core.types import TimestampNs
from seawall.engine.commit.appends import Commit
from seawall.engine.maintenance.flushing import FlushJob, SealJob, flush_log, plan_log_flushes, plan_log_seals
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.replay import store_sections
from seawall.errors import RetryableError, SeawallError
from seawall.storage.snapshots import Snapshot
from seawall.storage.wal.epochs import WalAddress
from seawall.topics.persistence import catalog_sections
from seawall.topics.state import TopicState


class Maintenance:
    """The maintenance of one data directory. One owner at a time, the owner of the store."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._wal, self._writer, self._logs = parts.wal, parts.writer, parts.logs
        self._guard, self._cleaner, self._checkpoint_schedule = parts.guard, parts.cleaner, parts.checkpoint_schedule
        self._clock = parts.machine.clock

    # --- retention and checkpoints -------------------------------------------------------------------------------

    def retain(self, topics: Sequence[TopicState] | None = None) -> None:
        """Evict records that are too old or exceed a cap, of some topics or of all."""
        self._guard.require_usable()
        self._parts.pending.apply()
        self._cleaner.retain(TimestampNs(self._clock.wall_ns()), topics)
        self.drop_dead()

    def drop_dead(self) -> None:
        """Free the space of segments without live records."""
        with self._guard.preparing():
            self._cleaner.drop_dead()
            self._parts.directory.restore_ballast()

    def checkpoint(self) -> None:
        """Flush every batch to its segment, write a snapshot, and remove log files that are not needed any more.

        `DiskFullError` if there is no space for an index or the snapshot: nothing is lost, and the caller may retry.
        """
        parts, wal = self._parts, self._wal
        self.retain()
        parts.sessions.note_activity(self._clock.wall_ns() // 1_000_000, parts.sessions.live())
        with self._guard.preparing():
            self._writer.flush(durable=True)
            parts.reservations.forget()
            while self._logs.recover_unflushed():
                pass
            for log in self._logs:
                flush_log(log, wal.locate, wal.at)
                log.seal_rolled()
            catalog = parts.current_catalog()
            sections = catalog_sections(catalog) | store_sections(self._logs.unsealed_entries(), parts.sessions)
            # With a sequencer, batches that are numbered and not logged yet are not part of the snapshot.
            position = max(catalog.next_position, wal.next_position)
            parts.snapshots.write(Snapshot(position, wal.at, self._clock.wall_ns(), sections))
            wal.drop_before(WalAddress(min(parts.snapshots.wal_needed_from, wal.synced_through)))
            self._checkpoint_schedule.checkpointed(wal.at)
        self._cleaner.recheck_all()
        self.drop_dead()
        with self._guard.preparing():
            self._cleaner.store_deletes()

    @property
    def is_tidy_up_due(self) -> bool:
        """True if `tidy_up` has something to do."""
        return self._wal.at + self._writer.staged >= self._checkpoint_schedule.next_check_at or self._cleaner.has_dead()

    def is_due_after(self, commit: Commit) -> bool:
        """True if `tidy_up` has something to do for the topics of a commit, or for any."""
        if commit.limited:
            now = TimestampNs(self._clock.wall_ns())
            if any(self._cleaner.is_due(topic, now) for topic in commit.limited):
                return True
        return self.is_tidy_up_due

    def tidy_up(self, limited: Sequence[TopicState] = ()) -> None:
        """Run the evictions and the checkpoint that are due after a change, which is valid whatever happens here.

        Evicts from the `limited` topics, which have caps or a maximum age.
        """
        try:
            now = TimestampNs(self._clock.wall_ns())
            due = [topic for topic in limited if self._cleaner.is_due(topic, now)]
            if due:
                self.retain(due)
            elif self._cleaner.unchecked:
                self.drop_dead()
            at = self._wal.at + self._writer.staged
            if at >= self._checkpoint_schedule.next_check_at:
                self._checkpoint_schedule.run_due(at, self.checkpoint)
        except RetryableError:
            # No space or no free descriptor: the log stays too long, and the next attempt follows after it has grown
            # again.
            self._checkpoint_schedule.checkpointed(self._wal.at)
        except (SeawallError, OSError):
            # The next change raises it: INV-STORE-FAILED.
            if not self._guard.is_failed:
                raise

    # --- background flushes --------------------------------------------------------------------------------------

    def plan_flushes(self) -> list[FlushJob]:
        """Plan the flush of all unflushed batches; the jobs execute without the store (`flushing.py`)."""
        self._parts.pending.apply()
        jobs = [job for log in self._logs for job in plan_log_flushes(log, self._wal.locate, self._wal.at)]
        # Skip segments without unflushed batches: they may be rolled back meanwhile.
        return [job for job in jobs if job.entries.size]

    def plan_seals(self) -> list[SealJob]:
        """The segments that can be sealed without the store (`flushing.py`): the roll that follows each is durable."""
        if not self._writer.is_settled:
            return []
        return [seal for log in self._logs for seal in plan_log_seals(log)]

    # --- shutdown ------------------------------------------------------------------------------------------------

    def close(self, *, marks_clean: bool = True) -> None:
        """Shut down cleanly: the next opening has nothing to repair, unless `marks_clean` is false.

        After a failure, only close the files.
        """
        try:
            if not self._guard.is_failed:
                with self._guard.changing():
                    self._writer.flush(durable=True)
                if self._checkpoint_schedule.is_worth_checkpoint(self._wal.at):
                    # A checkpoint makes the next opening fast.
                    with suppress(RetryableError):
                        self.checkpoint()
        finally:
            try:
                is_whole = not self._guard.is_failed and not self._writer.is_behind
                self._wal.close(clean=is_whole and marks_clean)
            finally:
                try:
                    self._logs.close()
                finally:
                    # Release the directory lock even after a failure: the next process needs it.
                    self._parts.directory.close()
