"""Transactions: what was staged is published into its topics, all of it or nothing, at one position.

    plan    1. look     every range is whole batches that are staged and live; every topic takes what it gets
            2. room     for each topic in one segment, and in the log: a full disk is found here
    fill    3. copy     staged batches, verified, to the places they will have; readers are not kept from reading;
                        or nothing, where whole staged segments become segments of the topic (`adoption`)
    log     4. number   all batches at one position, each header stamped anew and written over the one that was copied
            5. sync     the places
            6. write    one compound: the mark with its key, references, cursors, and the delete of what was staged
            7. publish  catalog and index learn of it: readers of all topics see all of it

Nothing is promised before step 4: whatever is refused or finds no room until then leaves bytes behind the end of a
segment that nobody looks at. From there on only a failing disk keeps the transaction out, and ends the store.

INV-TRANSACTION-ONCE: a staged range is published once, and the remembered epoch of an owner never goes down. What was
staged is deleted by the control that publishes it, so no range is published twice, also for an owner that nobody
remembers.

The log refers to a transaction only after all its batches are durable in their segments.

Ceilings that a transaction needs are in its own compound: nobody sees a seq above the durable ones before it is durable
as well. A crash before that leaves everything staged, one behind it leaves everything published.

One owner at a time, the same as the store's. This module must not know who waits, nor how the order is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.transactions import CommittedTransaction, StagedRange, WantedTransaction
from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.engine.commit.appends import NO_SESSION
from seawall.engine.commit.reserver import Need
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.store.control_log import HEADROOM
from seawall.engine.store.parts import StoreParts
from seawall.engine.transactions import adoption
from seawall.engine.transactions.adoption import Adoption
from seawall.engine.transactions.copying import BatchCopier
from seawall.engine.transactions.plan import Share, TransactionPlan
from seawall.engine.transactions.staging import StagedBatches, delete_staged, plain_size
from seawall.errors import ConflictError, LimitError
from seawall.kernels.admission.frontier import Rows
from seawall.kernels.runtime.memory import Bytes
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import Ceiling, Reference
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise
from seawall.storage.control.transactions import TransactionMark, check_key
from seawall.storage.segments.batch_index import INDEX_ENTRY, Entries
from seawall.topics.config import Durability
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.codes import AS_TOPIC, BatchFlags

#: Lets others look at the store for the length of a stretch in which nothing that they see is changed.
Unlocked: TypeAlias = Callable[[], AbstractContextManager[None]]

_HEADER: Final = limits.BATCH_HEADER_SIZE

#: From so many bytes on places are synced while readers go on: then there is little left to sync while they cannot.
_SYNCED_AHEAD_SIZE: Final = limits.MIB


class Transactions:
    """The transactions of one store."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance) -> None:
        self._parts = parts
        self._maintenance = maintenance
        self._log_of = parts.logs.of
        self._ceiling_step = parts.settings.ceiling_step
        #: Bytes that one control batch may take in the log.
        self._logged_max = parts.settings.commit_size_max

    def repeated(self, owner: str, epoch: int) -> CommittedTransaction | None:
        """The answer to a commit that was made before; `FencedError` if a later one of the owner was."""
        check_key(owner, epoch)
        return self._parts.catalog.transactions.repeated(owner, epoch)

    def begin_apart(self, topic: TopicState) -> None:
        """Have what is staged in a topic from now on lie in segments of its own."""
        self._log_of(topic).wants_roll = True
        self._parts.reservations.forget()

    def check(self, wanted: WantedTransaction) -> None:
        """Refuse what cannot be committed as things are; what is too old makes room for it."""
        self._parts.controls.begin_change()
        with self._parts.guard.preparing():
            now = TimestampNs(self._parts.machine.clock.wall_ns())
            for share in self._plan(wanted).shares.values():
                self._parts.cleaner.check_space(share.topic, share.need.records, share.need.plain_size, now)

    def commit(self, wanted: WantedTransaction, unlocked: Unlocked = nullcontext) -> CommittedTransaction:
        """Publish what was staged, once for each key; durable when this returns. What is refused changes nothing."""
        parts = self._parts
        self._parts.controls.begin_change()
        parts.reservations.forget()
        now = parts.machine.clock.wall_ns()
        adoption_of = Adoption(self._log_of)
        with self._parts.guard.preparing():
            plan = self._plan(wanted)
            try:
                self._make_reservations(plan, adoption_of, now)
                self._fill(plan, unlocked)
            except BaseException:
                plan.pins.unpin_all()
                adoption_of.take_back()
                for share in plan.shares.values():
                    if share.reservation is not None:
                        parts.maker.take_back(share.reservation)
                raise
        with self._parts.guard.changing():
            self._log(plan, adoption_of, now)
        plan.pins.unpin_all()
        topics = [share.topic for share in plan.shares.values()]
        self._maintenance.tidy_up([topic for topic in topics if parts.cleaner.is_limited(topic)])
        committed = parts.catalog.transactions.last(wanted.owner)
        assert committed is not None, "it was remembered just now"
        return committed

    def abort(self, ranges: Sequence[StagedRange]) -> int:
        """Delete what was staged and will not be published; how many records went. Durable when this returns."""
        self._parts.controls.begin_change()
        deletes = delete_staged(self._parts.catalog, ranges, self._parts.cleaner)
        if deletes:
            self._parts.controls.commit_many(deletes)
        for delete in deletes:
            self._parts.cleaner.deleted(delete)
        self._maintenance.tidy_up([])
        return sum(int(np.diff(delete.removed.ranges).sum()) for delete in deletes)

    # --- plan ----------------------------------------------------------------------------------------------------

    def _plan(self, wanted: WantedTransaction) -> TransactionPlan:
        """What a transaction does, or why it cannot."""
        catalog, cleaner = self._parts.catalog, self._parts.cleaner
        if len(wanted.offsets) > limits.TRANSACTION_CURSORS_MAX:
            raise LimitError(f"{len(wanted.offsets)} cursors join, at most {limits.TRANSACTION_CURSORS_MAX} may")
        batches = StagedBatches.of(catalog, self._log_of, [part.staged for part in wanted.parts])
        shares: dict[TopicId, Share] = {}
        topic_ids: npt.NDArray[np.uint32] = np.zeros(len(batches), np.uint32)
        for place, (part, numbers) in enumerate(zip(wanted.parts, batches.numbers, strict=True)):
            topic = self._destination(part.topic)
            share = shares.setdefault(topic.topic_id, Share(topic))
            share.parts.append(place)
            share.numbers += numbers
            topic_ids[numbers.start : numbers.stop] = topic.topic_id
        for share in shares.values():
            staged = [batches.staged[place] for place in share.parts]
            records = sum(each.range.record_count for each in staged)
            size = int(batches.entries["length"][share.numbers].sum(dtype=np.int64))
            share.need = Need(records, plain_size(staged, cleaner), size)
            share.adopted = adoption.find(share.topic, batches, share.parts, self._log_of)
        if len(shares) > limits.TRANSACTION_TOPICS_MAX:
            raise LimitError(f"a transaction into {len(shares)} topics, at most {limits.TRANSACTION_TOPICS_MAX}")
        cursors = [catalog.commit(*offset) for offset in wanted.offsets]
        segments: npt.NDArray[np.uint64] = np.zeros(len(batches), np.uint64)
        places: npt.NDArray[np.uint64] = np.zeros(len(batches), np.uint64)
        headers: Bytes = np.zeros(len(batches) * _HEADER, np.uint8)
        plan = TransactionPlan(wanted, batches, shares, cursors, topic_ids, segments, places, headers)
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
                f"topic {name!r} is kept in memory alone, and would lose its part of a transaction by any end; give "
                "the topic another class"
            )
        return topic

    def _make_reservations(self, plan: TransactionPlan, adoption_of: Adoption, now: int) -> None:
        """Room for the batches of every topic in one segment of it, and for the compound in the log."""
        parts = self._parts
        logged = plan.logged_size + HEADROOM
        parts.writer.reserve(logged, TimestampNs(now))
        for share in plan.shares.values():
            need = share.need
            # Evictions that are logged by themselves were made by `check`.
            parts.cleaner.check_space(share.topic, need.records, need.plain_size, TimestampNs(now), evicts=False)
            if share.adopted:
                raised = parts.cleaner.evict_ahead(share.topic, need.records, need.plain_size, TimestampNs(now))
                share.ahead = [] if raised is None else [raised]
                adoption_of.prepare(share.adopted, TimestampNs(now))
                plan.places[share.numbers] = plan.batches.entries["at"][share.numbers]
                for each in share.adopted:
                    plan.pins.pin(each.segment.shared)
                continue
            share.reservation = parts.maker.make(share.topic, need, logged, TimestampNs(now))
            share.ahead = share.reservation.ahead
            lengths = plan.batches.entries["length"][share.numbers].astype(np.uint64)
            segment = share.reservation.filling.segment
            plan.pins.pin(segment.shared)
            plan.segments[share.numbers] = segment.first_seq
            plan.places[share.numbers] = lengths.cumsum() - lengths + np.uint64(segment.end)

    # --- fill ----------------------------------------------------------------------------------------------------

    def _fill(self, plan: TransactionPlan, unlocked: Unlocked) -> None:
        """Copy every staged batch to its place, not durably yet, unless it is adopted, and keep its header."""
        batches = plan.batches
        with BatchCopier(plan) as copying:
            for (topic, held), numbers in zip(batches.staged, batches.numbers, strict=True):
                if plan.shares[TopicId(int(plan.topic_ids[numbers.start]))].adopted:
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
            for share in plan.shares.values():
                for each in share.adopted:
                    adoption.fill(each, batches, plan.headers)
                if share.reservation is not None and share.need.size >= _SYNCED_AHEAD_SIZE:
                    share.reservation.filling.segment.sync()

    # --- log -----------------------------------------------------------------------------------------------------

    def _log(self, plan: TransactionPlan, adoption_of: Adoption, now: int) -> None:
        """Give the batches their numbers, make their places durable, log the transaction and let it take effect."""
        writer, cleaner = self._parts.writer, self._parts.cleaner
        # How much is deleted is looked up while it is still there.
        deletes = delete_staged(self._parts.catalog, plan.batches.ranges, cleaner)
        parts: list[SimpleControl] = [*self._ahead(plan)]
        _restamp(plan.headers, plan.topic_ids)
        position, timestamp_ns, rows = writer.number_together(plan.headers, now)
        entries = _entries(rows, plan.places)
        for share in plan.shares.values():
            if share.adopted:
                self._adopt(plan, share, adoption_of, entries, now)
            else:
                self._place(plan, share, entries)
        parts += adoption_of.rolls()
        parts += _references(plan)
        parts += deletes
        records = int(rows["record_count"].sum(dtype=np.int64))
        mark = TransactionMark(plan.wanted.owner, plan.wanted.epoch, len(rows), records)
        control = writer.control_of([mark, *parts, *plan.cursors])
        writer.stage_together(control, position, timestamp_ns)
        writer.flush(durable=True)
        self._parts.catalog.apply(control, position)
        adoption_of.settle()
        for part in parts:
            if isinstance(part, FloorRaise):
                cleaner.evicted(part)
            elif isinstance(part, DeleteRecords):
                cleaner.deleted(part)

    def _ahead(self, plan: TransactionPlan) -> list[SimpleControl]:
        """What has to be in the log before the batches; ceilings count at once, since nobody sees what they allow."""
        frontier = self._parts.writer.frontier
        ahead: list[SimpleControl] = []
        for topic_id, share in plan.shares.items():
            ahead += share.ahead
            numbers = frontier.topic(topic_id)
            behind = numbers.next_seq + share.need.records
            if numbers.ceiling - behind < self._ceiling_step // 4:
                ceiling = Seq(behind + self._ceiling_step)
                ahead.append(Ceiling(topic_id, ceiling, numbers.ceiling))
                frontier.set_ceiling(topic_id, ceiling)
        return ahead

    def _adopt(self, plan: TransactionPlan, share: Share, adoption_of: Adoption, entries: Entries, now: int) -> None:
        """Make the staged segments of a share segments of its topic, with other headers."""
        for each in share.adopted:
            plan.segments[each.numbers.start : each.numbers.stop] = entries["base_seq"][each.numbers.start]
            self._parts.checkpoint_schedule.rolled(each.segment.index.end)
        adoption_of.execute(share.topic, share.adopted, plan.headers, entries, TimestampNs(now))

    def _place(self, plan: TransactionPlan, share: Share, entries: Entries) -> None:
        """Put the headers of a topic's batches over those that were copied, make all of them durable, index them."""
        segment = share.made_reservation.filling.segment
        segment.place(share.need.size)
        for number in share.numbers:
            segment.write_at(int(plan.places[number]), [plan.headers[number * _HEADER : (number + 1) * _HEADER].data])
        segment.sync()
        segment.index.extend(entries[share.numbers])


def _entries(rows: Rows, places: npt.NDArray[np.uint64]) -> Entries:
    """The entries of batches that are numbered, at their places."""
    entries: Entries = np.zeros(len(rows), INDEX_ENTRY)
    for name in ("base_seq", "timestamp_ns", "base_offset", "position"):
        entries[name] = rows[name]
    entries["count"], entries["length"] = rows["record_count"], rows["size"]
    entries["at"] = places
    return entries


def _restamp(headers: Bytes, topic_ids: npt.NDArray[np.uint32]) -> None:
    """Make headers of staged batches those of other topics: without a session or a key, and asking for nothing."""
    rows = headers.reshape(-1, _HEADER)
    rows[:, 12:20] = 0
    rows[:, 40:44] = topic_ids.astype("<u4").view(np.uint8).reshape(-1, 4)
    rows[:, 48:56] = np.frombuffer(NO_SESSION.to_bytes(8, "little"), np.uint8)
    rows[:, 88:92] = 0
    rows[:, 92:94] = AS_TOPIC
    rows[:, 95] &= int(BatchFlags.OPAQUE)


def _references(plan: TransactionPlan) -> list[Reference]:
    """Where each batch lies, with the header it has there."""
    found = []
    for number in range(len(plan.batches)):
        header = parse_batch_header(
            plan.headers[number * _HEADER : (number + 1) * _HEADER].tobytes(), source=BatchSource.STORED
        )
        found.append(Reference(header, Seq(int(plan.segments[number])), int(plan.places[number])))
    return found
