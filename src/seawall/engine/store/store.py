"""The storage engine of one data directory: a store and its orderer. One owner, no threads, no clock of its own.

The orderer (`orderer`) numbers appends. Every other change is a control batch (`control_log`) at a position that the
orderer assigns. `log_writer` stages and writes both, in one order. See `opening` for recovery, and `maintenance` for
checkpoints and retention.

A full disk refuses appends and does no harm: reads continue, and appends work again as soon as there is space.
`retention` decides which records to delete.

After a failed write or sync the store refuses every change (`write_guard`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from seawall.core.transactions import CommittedTransaction, StagedRange, WantedTransaction, partition_name
from seawall.core.types import Offset, Seq, TopicId
from seawall.engine.commit.appends import Append, Commit
from seawall.engine.commit.log_writer import Unlocked
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.ordering.orderer import Orderer
from seawall.engine.queues.job_store import JobStore
from seawall.engine.routing.routing import Routing
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.session_keeper import SessionKeeper
from seawall.engine.store.store_queries import StoreQueries
from seawall.engine.store.topic_creation import WantedTopics, creates_max, plan_creations, single_topic
from seawall.engine.store.topic_log import remove_segments, topic_home
from seawall.engine.transactions.staging import STAGING_PARTITIONS, find_staging, staging_config
from seawall.engine.transactions.transactions import Transactions
from seawall.errors import SeawallError
from seawall.io.interfaces import ReadableBuffer
from seawall.io.process.shared_lock import MemoryLock
from seawall.sequencer.frontier import Numbered
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.deletes import TagMatch
from seawall.storage.findings import VerifyReport
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.format.fields import JsonObject


class Store:
    """An open data directory. Use `open_store` to create one."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance, orderer: Orderer) -> None:
        self.parts = parts
        self.maintenance = maintenance
        self.orderer = orderer
        self.guard = parts.guard
        self.controls = parts.controls
        self.cleaner = parts.cleaner
        self.checkpoint_schedule = parts.checkpoint_schedule
        self.sessions = parts.sessions
        self.queries = StoreQueries(parts, orderer)
        self.session_keeper = SessionKeeper(parts, orderer)
        self.routing = Routing(parts, maintenance, orderer)
        self._transactions = Transactions(parts, maintenance)
        self.jobs = JobStore(parts, orderer)
        #: The most bytes that the appends of one commit may take in the log.
        self.commit_size_max = parts.settings.commit_size_max
        #: The most topics that one commit may create.
        self.creates_max = creates_max(self.commit_size_max)
        #: Topic lookups by name and by id that do not apply pending rows first.
        self.topic_named, self.topic_of = parts.catalog.named, parts.catalog.find
        #: How often a staging partition was assigned.
        self._partitions_assigned = 0
        #: If true, `close` marks the log as cleanly closed; otherwise the next opening recovers it as after a crash.
        self.marks_clean = True

    @property
    def catalog(self) -> TopicCatalog:
        """All topics, with every pending row applied."""
        return self.parts.current_catalog()

    # --- appends -------------------------------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Numbered]:
        """Commit appends and wait; returns their numbers, or raises the first error."""
        commit = self.begin(appends)
        try:
            commit.execute()
        except BaseException as error:
            self.fail(error)
            raise
        if self.finish(commit):
            self.tidy_up(commit.limited)
        return [append.result() for append in appends]

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Number and stage appends: each gets its numbers or its error. The caller executes the commit, then finishes
        it.

        Nothing else may change in between. The appends take at most `commit_size_max` bytes in the log. Without any,
        the orderer commits the batches that arrived on their own, if it receives such batches.
        """
        if self.guard.failure is not None:
            self.guard.require_usable()
        if self.controls.began_at is None:
            self.controls.begin_term()
        # The same as `guard.changing()`, which would cost as much as the kernels of a commit.
        try:
            return self.orderer.begin(appends)
        except BaseException as error:
            self.guard.refuse(error)
            raise

    def begin_next(self, appends: Sequence[Append]) -> Commit | None:
        """`begin` while another commit is in flight, to be executed and finished after it; None if that is not
        possible."""
        if self.guard.failure is not None:
            return None
        try:
            return self.orderer.begin_next(appends)
        except BaseException as error:
            self.guard.refuse(error)
            raise

    def commit_one(
        self, topic_id: TopicId, block: ReadableBuffer, record_count: int, state: MemoryLock
    ) -> Numbered | None:
        """Commit one plain block on this thread by one call; None if the caller has to use the separate steps.

        Holds `state` while it changes memory that other threads read.
        """
        if self.guard.failure is not None or self.controls.began_at is None:
            return None
        try:
            return self.orderer.commit_one(topic_id, block, record_count, state)
        except BaseException as error:
            self.fail(error)
            raise

    def finish(self, commit: Commit) -> bool:
        """Publish an executed commit: its appends are stored and visible to readers. True if `tidy_up` is due."""
        try:
            self.orderer.finish(commit)
        except BaseException as error:
            self.guard.refuse(error)
            raise
        return self.maintenance.is_due_after(commit)

    def fail(self, error: BaseException) -> None:
        """Refuse every change from now on: writing a commit failed, and the content of the disk is unknown."""
        self.guard.refuse(error)
        self.parts.writer.fail_flush(error)

    @property
    def is_tidy_up_due(self) -> bool:
        """True if `tidy_up` has something to do."""
        return self.maintenance.is_tidy_up_due

    def tidy_up(self, limited: Sequence[TopicState] = ()) -> None:
        """Run the evictions and the checkpoint that are due after a change."""
        self.maintenance.tidy_up(limited)

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, config: TopicConfig) -> TopicState:
        """Create a topic; durable when this returns."""
        return single_topic(self.create_topics([(name, config)]))

    def create_topics(self, wanted: WantedTopics) -> list[TopicState | SeawallError]:
        """Create at most `creates_max` topics by one commit, durably.

        Returns for each the topic, or the error that kept it from being created; raises an error that concerns all of
        them.
        """
        self.guard.require_usable()
        return self.orderer.change(partial(self._create, wanted, is_reserved=False))

    def _create(self, wanted: WantedTopics, *, is_reserved: bool) -> list[TopicState | SeawallError]:
        now_ms, step = self.parts.machine.clock.wall_ns() // 1_000_000, self.parts.settings.ceiling_step
        controls, refused = plan_creations(self.catalog, wanted, now_ms, step, is_reserved=is_reserved)
        if controls:
            self.controls.commit(*controls)
        return [refused.get(number) or self.catalog.stored(name) for number, (name, _) in enumerate(wanted)]

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; durable when this returns."""
        parts, topic_id = self.parts, self.catalog.named(name).topic_id

        def delete() -> None:
            self.controls.commit(self.catalog.delete(name))
            with self.guard.changing():
                self.cleaner.forget(topic_id)
                parts.logs.forget(topic_id)
            with self.guard.preparing():
                remove_segments(topic_home(parts.machine.files, parts.directory, topic_id))
                parts.directory.restore_ballast()

        self.orderer.change(delete, topic_id)

    def configure_topic(self, name: str, patch: JsonObject) -> TopicState:
        """Change settings of a topic; durable when this returns."""
        topic = self.catalog.named(name)
        return self.orderer.change(partial(self._configure, topic, patch), topic.topic_id)

    def _configure(self, topic: TopicState, patch: JsonObject) -> TopicState:
        changed = self.catalog.configure(topic, patch)
        if changed is not None:
            self.controls.commit(changed)
        return topic

    def commit_cursor(self, owner: str, name: str, next_seq: Seq, offset: Offset | None = None) -> None:
        """Store the next seq that an owner will read, and the offset if it gave one; durable when this returns."""

        def commit() -> None:
            self.controls.commit(self.catalog.commit(owner, name, next_seq, offset))
            self.tidy_up()

        self.orderer.change(commit, self.catalog.named(name).topic_id)

    def delete_records(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> int:
        """Delete records below a seq, with a tag, or both; returns how many.

        Only records that were ordered before this call are deleted. Durable when this returns.
        """

        def delete() -> int:
            self.guard.require_usable()
            self.parts.pending.apply()
            removed = self.cleaner.delete(name, before_seq=before_seq, match=match)
            self.maintenance.drop_dead()
            return removed

        return self.orderer.change(delete, self.catalog.named(name).topic_id)

    # --- transactions --------------------------------------------------------------------------------------------

    def staging(self, *, own_partition: bool = False) -> TopicState:
        """The topic in which transactions stage records; with `own_partition`, the next staging partition in turn.

        Creates the topic if it does not exist; durable when this returns.
        """
        partition = 0
        if own_partition:
            partition = 1 + self._partitions_assigned % STAGING_PARTITIONS
            self._partitions_assigned += 1
        config = staging_config(self.parts.settings.staging_ttl_ms)
        topic = find_staging(self.catalog, partition)
        if topic is None or topic.config != config:
            topic = self.orderer.change(partial(self._make_staging, partition, config))
        if partition:
            self._transactions.begin_partition(topic)
        return topic

    def _make_staging(self, partition: int, config: TopicConfig) -> TopicState:
        found = find_staging(self.catalog, partition)
        if found is None:
            return single_topic(self._create([(partition_name(partition), config)], is_reserved=True))
        return self._configure(found, config.to_json())

    def commit_transaction(
        self, wanted: WantedTransaction, unlocked: Unlocked = nullcontext, *, also: Sequence[SimpleControl] = ()
    ) -> CommittedTransaction:
        """Publish staged records, all or none, at one position, once for each key; durable when this returns.

        `unlocked` lets readers use the store while batches are copied. The changes in `also` take effect with it.
        """
        known = self._transactions.repeated(wanted.owner, wanted.epoch)
        if known is not None:
            return known
        with self.jobs.finishing(wanted.acks) as deletes:
            changes = (*also, *deletes)
            # Check first: evictions of the check are logged on their own and must not use the position of the
            # transaction.
            self._transactions.check(wanted, changes)
            return self.orderer.change(partial(self._transactions.commit, wanted, changes, unlocked))

    def abort_staged(self, ranges: Sequence[StagedRange]) -> int:
        """Delete staged records that will not be published; returns how many. Durable when this returns."""
        return self.orderer.change(partial(self._transactions.abort, ranges))

    # --- the directory -------------------------------------------------------------------------------------------

    def verify(self) -> VerifyReport:
        """Read everything in the directory and report all damage."""
        from seawall.engine.api.verify import verify_directory

        if not self.guard.is_failed:
            self.controls.sync()
        return verify_directory(self.parts.machine.files, self.parts.directory)

    def close(self) -> None:
        """Shut down cleanly: the next opening has nothing to repair. After a failure, only close the files."""
        try:
            self.orderer.close()
        finally:
            self.maintenance.close(marks_clean=self.marks_clean)
