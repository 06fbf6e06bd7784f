"""The storage engine of one data directory: changes. One owner, no thread, no clock of its own.

Appends go through `committer`, everything else that changes state is a control batch (`control_log`): both are
numbered, staged and written by `log_writer`, in one order. Opening is in `opening`.

A full disk refuses appends and harms nothing: reads go on, and appends do again as soon as there is space. `removal`
decides what goes.

INV-STORE-FAILED (`write_guard`): after a failed write or sync the store takes no further change.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from seawall.core.types import Offset, Seq, TopicId
from seawall.engine.appends import Append, Commit
from seawall.engine.committer import Committer
from seawall.engine.maintenance import Maintenance
from seawall.engine.parts import StoreParts
from seawall.engine.store_sessions import StoreSessions
from seawall.engine.store_transactions import StoreTransactions
from seawall.engine.topic_creation import Wanted, creates_max, only, plan_creations
from seawall.engine.topic_log import remove_segments, topic_home
from seawall.engine.transactions import Transactions
from seawall.engine.verifying import verify_directory
from seawall.errors import SeawallError
from seawall.io.interfaces import ReadableBuffer
from seawall.sequencer.frontier import Numbered
from seawall.storage.control_deletes import TagMatch
from seawall.storage.findings import VerifyReport
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.fields import JsonObject


class Store(StoreTransactions, StoreSessions):
    """An open data directory. Made by `open_store`."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance) -> None:
        self.parts = parts
        self.maintenance = maintenance
        self._machine = parts.machine
        self._settings = parts.settings
        self._catalog = parts.catalog
        self._logs = parts.logs
        self._pending = parts.pending
        self.guard = parts.guard
        self.controls = parts.controls
        self.removal = parts.removal
        self.upkeep = parts.upkeep
        self.sessions = parts.sessions
        #: Bytes that the appends of one commit may take in the log.
        self.commit_size_max = parts.settings.commit_size_max
        #: Topics that one commit may create.
        self.creates_max = creates_max(self.commit_size_max)
        self._leaves_mark = True
        self._committer = Committer(parts)
        #: A topic by its name, for who needs no look at what it holds.
        self.topic_named = parts.catalog.named
        self._transactions = Transactions(parts, maintenance)

    @property
    def catalog(self) -> TopicCatalog:
        """All topics as they are now."""
        return self.parts.current_catalog()

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
            remove_segments(topic_home(self._machine.files, self.parts.directory, deleted.topic_id))
            self.parts.directory.restore_ballast()

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
        self.maintenance.drop_dead()
        return removed

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
        return self.maintenance.is_tidy_up_due

    def tidy_up(self, limited: Sequence[TopicState] = ()) -> None:
        """Run the evictions and the checkpoint that are due behind another change."""
        self.maintenance.tidy_up(limited)

    def checkpoint(self) -> None:
        """Flush every batch to its segment, write a snapshot, and shorten the log."""
        self.maintenance.checkpoint()

    def finish(self, commit: Commit) -> bool:
        """The commit is written: its appends are stored, and readers see them. Whether `tidy_up` is due."""
        try:
            self._committer.finish(commit)
        except BaseException as error:
            self.guard.refuse(error)
            raise
        return self.maintenance.is_due_behind(commit)

    def fail(self, error: BaseException) -> None:
        """Writing a commit failed: what the disk holds is unknown, so nothing is changed any more."""
        self.guard.refuse(error)
        self.parts.writer.fail_flush(error)

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

    def leave_no_mark(self) -> None:
        """Have the next opening look at everything, however this one ends: somebody was cut off."""
        self._leaves_mark = False

    def close(self) -> None:
        """End in order: the next open finds nothing to repair. After a failure only the files are given back."""
        self.maintenance.close(leaves_mark=self._leaves_mark)

    def verify(self) -> VerifyReport:
        """Read everything in the directory and name every damage."""
        if self.guard.failure is None:
            self.sync()
        return verify_directory(self._machine.files, self.parts.directory)
