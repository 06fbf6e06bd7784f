"""Commits transactions: publishes staged records to their topics, all or none, at one position.

    plan    1. check    every range is whole batches that are staged and live; every topic accepts its records
            2. reserve  space in one segment of each topic, and in the log: a full disk is found here
    copy    3. copy     verify staged batches and write them to their segment positions, while readers continue;
                        or nothing, if whole staged segments become segments of the topic (`adoption`)
    log     4. number   all batches at one position; write the new headers over the copied ones
            5. sync     the segments
            6. write    one compound: the mark with its key, references, cursors, and the delete of the staged records
            7. publish  update catalog and index: readers of all topics see the whole transaction

Nothing is promised before step 4: a refusal or a full disk until then leaves bytes after the end of a segment, which
nothing reads. From there on only a failing disk prevents the transaction, and it ends all writing to the store.

INV-TRANSACTION-ONCE: a staged range is published once, and the remembered epoch of an owner never goes down. The
control that publishes staged records also deletes them, so no range is published twice, not even for an owner that was
forgotten.

`compounds` has the steps that are not special to transactions, and when the log may refer to a batch. A crash before
the compound is durable leaves everything staged, one after it leaves everything published.

One owner at a time, the owner of the store. This module must not know who waits, nor how the order is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.transactions import CommittedTransaction, StagedRange, WantedTransaction
from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.engine.commit.log_writer import Unlocked
from seawall.engine.commit.reserver import Need
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.store.parts import StoreParts
from seawall.engine.transactions import adoption
from seawall.engine.transactions.adoption import Adoption
from seawall.engine.transactions.compounds import CompoundWriter, restamp
from seawall.engine.transactions.copying import BatchCopier
from seawall.engine.transactions.plan import CompoundAppends, TopicWrite, TransactionPlan
from seawall.engine.transactions.staging import StagedBatches, delete_staged, plain_size
from seawall.errors import ConflictError, LimitError
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.transactions import TransactionMark, check_key
from seawall.storage.segments.batch_index import Entries
from seawall.topics.config import Durability
from seawall.topics.state import TopicState

#: From this size on segments are synced early, while readers continue, so that little is left to sync under the lock.
_EARLY_SYNC_SIZE: Final = limits.MIB


class Transactions:
    """The transactions of one store."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance) -> None:
        self._parts = parts
        self._maintenance = maintenance
        self._log_of = parts.logs.of
        self._compounds = CompoundWriter(parts)
        #: The most bytes that one control batch may take in the log.
        self._logged_max = parts.settings.commit_size_max

    def repeated(self, owner: str, epoch: int) -> CommittedTransaction | None:
        """The result of a commit that was made before; `FencedError` if the owner has committed a later one."""
        check_key(owner, epoch)
        return self._parts.catalog.transactions.repeated(owner, epoch)

    def begin_partition(self, topic: TopicState) -> None:
        """Begin a new segment for the next records that are staged in a topic."""
        self._log_of(topic).wants_roll = True
        self._parts.reservations.forget()

    def check(self, wanted: WantedTransaction, also: Sequence[SimpleControl]) -> None:
        """Refuse a transaction that cannot be committed now; evicts expired records to make space for it."""
        self._parts.controls.begin_change()
        with self._parts.guard.preparing():
            now = TimestampNs(self._parts.machine.clock.wall_ns())
            for write in self._plan(wanted, also).appends.writes.values():
                self._parts.cleaner.check_space(write.topic, write.need.records, write.need.plain_size, now)

    def commit(
        self, wanted: WantedTransaction, also: Sequence[SimpleControl], unlocked: Unlocked = nullcontext
    ) -> CommittedTransaction:
        """Publish staged records, once for each key; durable when this returns. A refusal changes nothing.

        The changes in `also` take effect with it.
        """
        parts = self._parts
        self._parts.controls.begin_change()
        parts.reservations.forget()
        now = parts.machine.clock.wall_ns()
        adoptions = Adoption(self._log_of)
        with self._parts.guard.preparing():
            plan = self._plan(wanted, also)
            try:
                self._reserve(plan, adoptions, now)
                self._copy(plan, unlocked)
            except BaseException:
                adoptions.roll_back()
                self._compounds.roll_back(plan.appends)
                raise
        with self._parts.guard.changing():
            self._log(plan, adoptions, now)
        plan.appends.pins.unpin_all()
        topics = [write.topic for write in plan.appends.writes.values()]
        self._maintenance.tidy_up([topic for topic in topics if parts.cleaner.is_limited(topic)])
        committed = parts.catalog.transactions.last(wanted.owner)
        assert committed is not None, "it was remembered just now"
        return committed

    def abort(self, ranges: Sequence[StagedRange]) -> int:
        """Delete staged records that will not be published; returns how many. Durable when this returns."""
        self._parts.controls.begin_change()
        deletes = delete_staged(self._parts.catalog, ranges, self._parts.cleaner)
        if deletes:
            self._parts.controls.commit_many(deletes)
        for delete in deletes:
            self._parts.cleaner.deleted(delete)
        self._maintenance.tidy_up([])
        return sum(int(np.diff(delete.removed.ranges).sum()) for delete in deletes)

    # --- plan ----------------------------------------------------------------------------------------------------

    def _plan(self, wanted: WantedTransaction, also: Sequence[SimpleControl]) -> TransactionPlan:
        """The plan of a transaction; raises if it cannot be committed."""
        catalog, cleaner = self._parts.catalog, self._parts.cleaner
        if len(wanted.offsets) > limits.TRANSACTION_CURSORS_MAX:
            raise LimitError(
                f"{len(wanted.offsets)} cursors in a transaction, at most {limits.TRANSACTION_CURSORS_MAX}"
            )
        batches = StagedBatches.of(catalog, self._log_of, [part.staged for part in wanted.parts])
        writes: dict[TopicId, TopicWrite] = {}
        topic_ids: npt.NDArray[np.uint32] = np.zeros(len(batches), np.uint32)
        for part_number, (part, numbers) in enumerate(zip(wanted.parts, batches.numbers, strict=True)):
            topic = self._destination(part.topic)
            write = writes.setdefault(topic.topic_id, TopicWrite(topic))
            write.parts.append(part_number)
            write.numbers += numbers
            topic_ids[numbers.start : numbers.stop] = topic.topic_id
        for write in writes.values():
            staged = [batches.staged[part_number] for part_number in write.parts]
            records = sum(each.range.record_count for each in staged)
            size = int(batches.entries["length"][write.numbers].sum(dtype=np.int64))
            write.need = Need(records, plain_size(staged, cleaner), size)
            write.adopted = adoption.find(write.topic, batches, write.parts, self._log_of)
        if len(writes) > limits.TRANSACTION_TOPICS_MAX:
            raise LimitError(f"a transaction into {len(writes)} topics, at most {limits.TRANSACTION_TOPICS_MAX}")
        cursors = [catalog.commit(*offset) for offset in wanted.offsets]
        plan = TransactionPlan(wanted, batches, CompoundAppends.of(writes, topic_ids), cursors, also)
        if plan.logged_size > self._logged_max:
            raise LimitError(
                f"a transaction of {len(batches)} batches takes {plan.logged_size} bytes of the log at once, at most "
                f"{self._logged_max}; publish larger batches, or commit more often"
            )
        return plan

    def _destination(self, name: str) -> TopicState:
        topic = self._parts.catalog.named(name)
        if topic.config.durability is Durability.EPHEMERAL:
            raise ConflictError(
                f"topic {name!r} is kept in memory alone and would lose its part of the transaction at a restart; "
                "give the topic another durability class"
            )
        return topic

    def _reserve(self, plan: TransactionPlan, adoptions: Adoption, now: int) -> None:
        """Reserve space for the batches of every topic, in one segment each, and for the compound in the log."""
        parts, appends, logged = self._parts, plan.appends, plan.logged_size
        self._compounds.reserve_log(logged, now)
        for write in appends.writes.values():
            need = write.need
            # `check` has made the evictions that are logged on their own.
            parts.cleaner.check_space(write.topic, need.records, need.plain_size, TimestampNs(now), evicts=False)
            if write.adopted:
                raised = parts.cleaner.plan_eviction(write.topic, need.records, need.plain_size, TimestampNs(now))
                write.controls_before = [] if raised is None else [raised]
                adoptions.prepare(write.adopted, TimestampNs(now))
                appends.file_positions[write.numbers] = plan.batches.entries["at"][write.numbers]
                for each in write.adopted:
                    appends.pins.pin(each.file)
            else:
                lengths = plan.batches.entries["length"][write.numbers].astype(np.uint64)
                self._compounds.reserve(write, appends, lengths, logged, now)

    # --- copy ----------------------------------------------------------------------------------------------------

    def _copy(self, plan: TransactionPlan, unlocked: Unlocked) -> None:
        """Copy every staged batch that is not adopted to its segment position, without a sync, and keep its header."""
        batches = plan.batches
        with BatchCopier(plan) as copying:
            for (topic, held), numbers in zip(batches.staged, batches.numbers, strict=True):
                if plan.appends.writes[TopicId(int(plan.appends.topic_ids[numbers.start]))].adopted:
                    continue
                at = numbers.start
                while at < numbers.stop:
                    first_seq = Seq(int(batches.entries[at]["base_seq"]))
                    end_seq = Seq(held.last_seq + 1)
                    log = self._log_of(topic)
                    planned = log.plan(first_seq, end_seq, limits.TRANSACTION_PIECE_SIZE)
                    log.note_reader(planned.end_seq)
                    with unlocked():
                        at += copying.copy(at, planned)
            with unlocked():
                copying.finish()
        with unlocked():
            for write in plan.appends.writes.values():
                for each in write.adopted:
                    adoption.read_headers(each, batches, plan.appends.headers)
                if write.reservation is not None and write.need.size >= _EARLY_SYNC_SIZE:
                    write.reservation.segment.segment.sync()

    # --- log -----------------------------------------------------------------------------------------------------

    def _log(self, plan: TransactionPlan, adoptions: Adoption, now: int) -> None:
        """Number the batches, make their segments durable, log the transaction and apply it."""
        compounds, appends = self._compounds, plan.appends
        # Look up the deleted sizes while the records still exist.
        deletes = delete_staged(self._parts.catalog, plan.batches.ranges, self._parts.cleaner)
        parts = compounds.controls_before(appends)
        restamp(appends.headers, appends.topic_ids)
        numbers = compounds.number(appends, now)
        for write in appends.writes.values():
            if write.adopted:
                self._adopt(appends, write, adoptions, numbers.entries, now)
            else:
                compounds.write_headers(write, appends, numbers.entries)
        parts += adoptions.rolls()
        parts += compounds.references(appends)
        parts += [*deletes, *plan.also]
        mark = TransactionMark(plan.wanted.owner, plan.wanted.epoch, len(appends), numbers.record_count)
        compounds.commit([mark, *parts, *plan.cursors], numbers)
        adoptions.settle()
        compounds.settle(parts)

    def _adopt(
        self, appends: CompoundAppends, write: TopicWrite, adoptions: Adoption, entries: Entries, now: int
    ) -> None:
        """Make the staged segments of a write segments of its topic, with new headers."""
        for each in write.adopted:
            appends.segments[each.numbers.start : each.numbers.stop] = entries["base_seq"][each.numbers.start]
            self._parts.checkpoint_schedule.rolled(each.index.end)
        adoptions.execute(write.topic, write.adopted, appends.headers, entries, TimestampNs(now))
