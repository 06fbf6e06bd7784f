"""What keeps a data directory short and in order: flushes to segments, checkpoints, retention, and the end.

Checkpoint: batches that wait in the log are flushed to segments, segments are synced and sealed, a snapshot is written,
and log files that no snapshot needs are removed. When one is due is what `upkeep` knows; what goes is what `removal`
decides.

A crash in the middle of a checkpoint leaves a log that is longer than needed, and the snapshot before. A full disk
ends a checkpoint, and nothing is lost. This module must not know who appends, nor who gives positions.
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
    """The maintenance of one data directory. One owner at a time, the same as the store's."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._wal, self._writer, self._logs = parts.wal, parts.writer, parts.logs
        self._guard, self._cleaner, self._checkpoint_schedule = parts.guard, parts.cleaner, parts.checkpoint_schedule
        self._clock = parts.machine.clock

    # --- retention and checkpoints -------------------------------------------------------------------------------

    def retain(self, topics: Sequence[TopicState] | None = None) -> None:
        """Evict what is too old or too much, of some topics or of all of them."""
        self._guard.require_usable()
        self._parts.pending.apply()
        self._cleaner.retain(TimestampNs(self._clock.wall_ns()), topics)
        self.drop_dead()

    def drop_dead(self) -> None:
        """Give back the space of segments in which nothing is left."""
        with self._guard.preparing():
            self._cleaner.drop_dead()
            self._parts.directory.restore_ballast()

    def checkpoint(self) -> None:
        """Flush every batch to its segment, write a snapshot, and remove the log that is not needed any more.

        `DiskFullError` where there is no space for index or snapshot: nothing is lost, and it may be tried again.
        """
        parts, wal = self._parts, self._wal
        self.retain()
        parts.sessions.note(self._clock.wall_ns() // 1_000_000, parts.sessions.live())
        with self._guard.preparing():
            self._writer.flush(durable=True)
            parts.reservations.forget()
            while self._logs.recover_unflushed():
                pass
            for log in self._logs:
                flush_log(log, wal.locate, wal.at)
                log.seal_rolled()
            catalog = parts.current_catalog()
            sections = catalog_sections(catalog) | store_sections(self._logs.unsealed(), parts.sessions)
            # What is numbered and not logged yet, where others number, is not in it.
            position = max(catalog.next_position, wal.next_position)
            parts.snapshots.write(Snapshot(position, wal.at, self._clock.wall_ns(), sections))
            wal.drop_before(WalAddress(min(parts.snapshots.wal_needed_from, wal.synced_through)))
            self._checkpoint_schedule.checkpointed(wal.at)
        self._cleaner.look_everywhere()
        self.drop_dead()
        with self._guard.preparing():
            self._cleaner.store_deletes()

    @property
    def is_tidy_up_due(self) -> bool:
        """Whether `tidy_up` has something to do."""
        return self._wal.at + self._writer.staged >= self._checkpoint_schedule.look_at or self._cleaner.has_dead()

    def is_due_behind(self, commit: Commit) -> bool:
        """Whether `tidy_up` has something to do for the topics of a commit, or for any."""
        if commit.limited:
            now = TimestampNs(self._clock.wall_ns())
            if any(self._cleaner.is_due(topic, now) for topic in commit.limited):
                return True
        return self.is_tidy_up_due

    def tidy_up(self, limited: Sequence[TopicState] = ()) -> None:
        """Run the evictions and the checkpoint that are due behind another change, which stands whatever happens here.

        Evictions are those of the `limited` topics, which have caps or ages.
        """
        try:
            now = TimestampNs(self._clock.wall_ns())
            due = [topic for topic in limited if self._cleaner.is_due(topic, now)]
            if due:
                self.retain(due)
            elif self._cleaner.loose:
                self.drop_dead()
            at = self._wal.at + self._writer.staged
            if at >= self._checkpoint_schedule.look_at:
                self._checkpoint_schedule.look_after(at, self.checkpoint)
        except RetryableError:
            # No space, or no descriptor: the log stays longer than it should, the next try is after another stretch.
            self._checkpoint_schedule.checkpointed(self._wal.at)
        except (SeawallError, OSError):
            # Whoever changes something next gets it: INV-STORE-FAILED.
            if not self._guard.is_failed:
                raise

    # --- flushes on the side -------------------------------------------------------------------------------------

    def plan_flushes(self) -> list[FlushJob]:
        """What waits in the log for its segment; may be carried out without the store (`placing.py`)."""
        self._parts.pending.apply()
        jobs = [job for log in self._logs for job in plan_log_flushes(log, self._wal.locate, self._wal.at)]
        # A segment that nothing waits for may be taken back meanwhile.
        return [job for job in jobs if job.entries.size]

    def plan_seals(self) -> list[SealJob]:
        """Segments that can be sealed without the store (`placing.py`): that others follow them is durable."""
        if not self._writer.is_settled:
            return []
        return [seal for log in self._logs for seal in plan_log_seals(log)]

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self, *, leaves_mark: bool = True) -> None:
        """End in order: the next open finds nothing to repair, unless no mark is left. After a failure only the files
        are given back."""
        try:
            if not self._guard.is_failed:
                with self._guard.changing():
                    self._writer.flush(durable=True)
                if self._checkpoint_schedule.is_long(self._wal.at):
                    # So that the next opening is short.
                    with suppress(RetryableError):
                        self.checkpoint()
        finally:
            try:
                is_whole = not self._guard.is_failed and not self._writer.is_behind
                self._wal.close(clean=is_whole and leaves_mark)
            finally:
                try:
                    self._logs.close()
                finally:
                    # Whatever fails before: the next process must be let in.
                    self._parts.directory.close()
