"""The script of `crash_world` with transactions: all of each or nothing exists, in every topic.

Records are staged first, then committed into some topics together with a cursor; some are aborted, some repeated. Some
use an own staging partition, each batch in its own segment, which the commit makes a segment of its topic. The table of
idempotency keys shows whether a transaction was committed, and everything else must agree with it:

- an acked transaction is committed;
- of a committed one every record is in its topics, under the seqs of its result, unless it was deleted or evicted; its
  cursor is stored;
- of one that is not committed no record is visible anywhere, nor its cursor;
- staged records are visible neither in a topic nor to readers of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from crash_following import GOI_ENTRIES, FollowingWorld
from crash_history import History, Level, Written, require
from crash_world import World, append_of

from seawall.core.transactions import (
    PARTITION_SEQS,
    CommittedTransaction,
    OffsetCommit,
    StagedPart,
    StagedRange,
    WantedTransaction,
    partition_named,
)
from seawall.core.types import Position, Seq, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.read.reading import stored_batches
from seawall.engine.store.store import Store
from seawall.engine.transactions import adoption
from seawall.engine.transactions.staging import StagedBatches
from seawall.errors import FullError, LimitError
from seawall.sequencer.frontier import Numbered
from seawall.topics.config import Durability
from seawall.topics.state import TopicState
from seawall.wire.format.codes import AckStatus

OWNER = "job"
#: Transactions whose records are checked repeatedly; older ones have been evicted, deleted or checked often.
WATCHED = 6


@dataclass
class Tried:
    """A transaction that a client tried to commit."""

    epoch: int
    #: Values by topic, in their order.
    values: dict[int, list[Written]]
    cursor: tuple[int, int] | None
    result: CommittedTransaction | None = None
    #: What was staged for it.
    staged: tuple[StagedRange, ...] = ()

    def copy(self) -> Tried:
        return replace(self)


@dataclass
class TransactionHistory(History):
    """The history, with tried transactions."""

    tried: list[Tried] = field(default_factory=list)
    epoch: int = 0

    def copy(self) -> TransactionHistory:
        known = super().copy()
        fields = (known.topics, known.names, known.cursors, known.writes, known.now_ns, known.kept)
        return TransactionHistory(*fields, [each.copy() for each in self.tried], self.epoch)


class TransactionWorld(World):
    """A store with transactions, and the history of its clients."""

    def __init__(self, disk: object, script: int, history: TransactionHistory | None = None) -> None:
        super().__init__(disk, script, TransactionHistory() if history is None else history)

    @property
    def told(self) -> TransactionHistory:
        assert isinstance(self.history, TransactionHistory)
        return self.history

    def weighted(self) -> list[Callable[[], None]]:
        return [*super().weighted(), *[self.transact] * 14, *[self.give_up] * 2, self.repeat]

    # --- steps -----------------------------------------------------------------------------------------------------

    def transact(self) -> None:
        """Stage some batches for one topic or more, and commit them."""
        wanted = self._tried()
        if wanted is None:
            return
        tried, parts = wanted
        self._commit(tried, parts)

    def give_up(self) -> None:
        """Stage something, and abort it."""
        topics = self._kept_topics()
        if topics:
            own_partition = self.chance.random() < 0.5
            ranges = [part.staged for part in self._stage([(topics[0], [Written(0, 20)])], own_partition=own_partition)]
            with self.changing() as store:
                require(store.abort_staged(ranges) == 1, "what was staged is not there to be aborted")

    def repeat(self) -> None:
        """Commit the last transaction that was acked again: its answer is the same, and nothing happens."""
        acked = [each for each in self.told.tried if each.result is not None]
        if acked and acked[-1].epoch == self.told.epoch:
            with self.changing() as store:
                again = store.commit_transaction(WantedTransaction(OWNER, acked[-1].epoch, ()))
                self.level = Level.STAGED
            require(again == acked[-1].result and again.is_repeated, f"{acked[-1].result} is told as {again}")

    def check_opened(self) -> None:
        kept = self.history.kept
        super().check_opened()
        self._check_transactions()
        last = self._usable().catalog.transactions.last(OWNER)
        for tried in self.told.tried:
            if kept is not Level.WRITTEN:
                # A power loss may lose staged records.
                tried.staged = ()
            elif tried is self.told.tried[-1] and tried.result is None:
                self._check_staged(tried, None if last is None else last.epoch)
        for tried in self.told.tried:
            if last is not None and tried.epoch == last.epoch and tried.result is None:
                # Its commit failed with an unknown outcome, and now it turns out to be committed.
                tried.result = last

    def _check_staged(self, tried: Tried, reached: int | None) -> None:
        """A transaction that is not committed may be tried again: its staged records still exist."""
        if reached is None or reached < tried.epoch:
            store = self._usable()
            for held in StagedBatches.of(store.catalog, store.parts.logs.of, tried.staged).staged:
                log, first, last = store.parts.logs[held.topic.topic_id], held.range.first_seq, held.range.last_seq
                found = sum(batch.record_count for batch in stored_batches(log, first, Seq(last + 1), 1 << 22))
                require(found == last + 1 - first, f"of what was staged for {tried.epoch}, {held.range} is gone")

    def check(self) -> None:
        super().check()
        self._check_transactions()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _kept_topics(self) -> list[TopicState]:
        catalog = self._usable().catalog
        return [topic for topic in catalog.shown() if topic.config.durability is not Durability.EPHEMERAL]

    def _tried(self) -> tuple[Tried, list[StagedPart]] | None:
        self._pick()
        topics = self._kept_topics()
        if not topics:
            return None
        chosen = self.chance.sample(topics, self.chance.randint(1, len(topics)))
        topics = [topic for topic in chosen for _ in range(self.chance.choice((1, 1, 2, 3)))]
        self.chance.shuffle(topics)
        own_partition = self.chance.random() < 0.4
        groups: list[tuple[TopicState, list[Written]]] = []
        values: dict[int, list[Written]] = {}
        for topic in topics:
            zeros = self.chance.choice(
                (0, 1, 20, 300, 4_000, 30_000, 66_000) if not own_partition else (66_000, 70_000)
            )
            count = self.chance.choice((1, 1, 3, 20)) if zeros < 4_000 else 1
            groups.append((topic, [self.history.write(topic.topic_id, zeros, None) for _ in range(count)]))
            values.setdefault(topic.topic_id, []).extend(groups[-1][1])
        parts = self._stage(groups, own_partition=own_partition)
        self.told.epoch += 1
        cursor = (chosen[0].topic_id, self.told.epoch + 1_000) if self.chance.random() < 0.5 else None
        return Tried(self.told.epoch, values, cursor, staged=tuple(part.staged for part in parts)), parts

    def _stage(self, groups: list[tuple[TopicState, list[Written]]], *, own_partition: bool) -> list[StagedPart]:
        if own_partition:
            return [part for group in groups for part in self._stage_in(self._staging(own_partition=True), [group])]
        return self._stage_in(self._staging(own_partition=False), groups)

    def _staging(self, *, own_partition: bool) -> TopicState:
        with self.changing() as store:
            staging = store.staging(own_partition=own_partition)
            self.level = Level.STAGED
        return staging

    def _stage_in(self, staging: TopicState, groups: list[tuple[TopicState, list[Written]]]) -> list[StagedPart]:
        appends = [append_of(staging.topic_id, values) for _, values in groups]
        self._append_staged(appends)
        parts: list[StagedPart] = []
        for (topic, values), append in zip(groups, appends, strict=True):
            first = Seq(partition_named(staging.name) * PARTITION_SEQS + append.result().base_seq)
            parts.append(StagedPart(topic.name, StagedRange(first, Seq(first + len(values) - 1))))
        return parts

    def _append_staged(self, appends: list[Append]) -> None:
        with self.changing() as store:
            store.append(appends)
            self.level = Level.WRITTEN

    def _commit(self, tried: Tried, parts: list[StagedPart]) -> None:
        offsets: tuple[OffsetCommit, ...] = ()
        if tried.cursor is not None:
            topic_id, next_seq = tried.cursor
            self.history.try_cursor(OWNER, topic_id, next_seq)
            name = next(topic.name for topic in self._kept_topics() if topic.topic_id == topic_id)
            offsets = (OffsetCommit(OWNER, name, Seq(next_seq)),)
        self.told.tried = [*self.told.tried[-WATCHED:], tried]
        wanted = WantedTransaction(OWNER, tried.epoch, tuple(parts), offsets)
        with self.changing() as store, adopting_anything():
            try:
                tried.result = store.commit_transaction(wanted)
            except (FullError, LimitError):
                # A topic that rejects: nothing happened.
                self.level = Level.STAGED
                self.told.tried.remove(tried)
                for topic_id, values in tried.values.items():
                    for value in values:
                        self.history.refused(topic_id, value)
                return
            for topic_id, values in tried.values.items():
                topic = store.catalog.find(TopicId(topic_id))
                assert topic is not None
                span = tried.result.span(topic.name)
                require(span is not None and span.record_count == len(values), f"{span} for {len(values)} records")
                assert span is not None
                for seq, value in zip(span.seqs, values, strict=True):
                    time_ns = tried.result.timestamp_ns
                    self.history.acked(topic_id, seq, value, time_ns, Level.DURABLE)
        if tried.cursor is not None:
            self.history.set_cursor(OWNER, *tried.cursor)

    # --- the oracle ------------------------------------------------------------------------------------------------

    def _check_transactions(self) -> None:
        store = self._usable()
        last = store.catalog.transactions.last(OWNER)
        reached = -1 if last is None else last.epoch
        acked = max((each.epoch for each in self.told.tried if each.result is not None), default=-1)
        require(reached >= acked, f"transaction {acked} was acked, the last one is {last}")
        for tried in self.told.tried:
            if tried.epoch <= reached and (tried.epoch == reached or tried.result is not None):
                self._check_happened(store, tried, last if tried.epoch == reached else tried.result)
            else:
                self._check_nothing(store, tried)
        self._check_positions(store)

    def _check_happened(self, store: Store, tried: Tried, result: CommittedTransaction | None) -> None:
        assert result is not None
        if tried.result is not None:
            require(result == tried.result, f"{tried.result} is told as {result}")
        for topic_id, values in tried.values.items():
            topic = store.catalog.find(TopicId(topic_id))
            facts = self.history.topic(topic_id)
            if topic is None:
                continue
            span = result.span(topic.name)
            require(
                span is not None and span.record_count == len(values), f"{result}: not all of {len(values)} records"
            )
            assert span is not None
            for seq, value in zip(span.seqs, values, strict=True):
                shown = facts.seen.get(seq)
                require(shown in (None, value.number), f"seq {seq} of {topic.name} is {shown}, not {value.number}")
                # A missing record must have been evicted or deleted, which the history has checked.
                is_gone = seq < topic.floor or seq in facts.dead or seq in facts.deletable
                require(
                    shown is not None or seq in facts.live or is_gone,
                    f"transaction {tried.epoch}: seq {seq} of {topic.name} is missing",
                )

    def _check_nothing(self, store: Store, tried: Tried) -> None:
        for topic_id, values in tried.values.items():
            if store.catalog.find(TopicId(topic_id)) is None:
                continue
            numbers = {value.number for value in values}
            shown = numbers & {live.value.number for live in self.history.topic(topic_id).live.values()}
            require(not shown, f"transaction {tried.epoch} did not happen, and {sorted(shown)} of it are there")

    def _check_positions(self, store: Store) -> None:
        """Readers of positions never see staged records, and see each position whole."""
        position, before = Position(0), -1
        while True:
            plan = store.queries.plan_positions(position, size_max=self.chance.choice((1, 50_000, 1 << 22)))
            batches = plan.stored()
            for batch in batches:
                require(batch.position >= position, f"position {batch.position} is read at {position}")
            first = min((batch.position for batch in batches), default=before + 1)
            require(first > before, f"position {first} is told twice")
            before = max((batch.position for batch in batches), default=before)
            if plan.is_last:
                return
            position = plan.end_position


@contextmanager
def adopting_anything() -> Iterator[None]:
    """Have staged segments adopted, however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adoption, "SIZE_MIN", 0)
        yield


class FollowingTransactionWorld(TransactionWorld, FollowingWorld):
    """The same with an external order: staged batches are applied, and a commit has a position of the order."""

    def _append_staged(self, appends: list[Append]) -> None:
        for append in appends:
            position = self.order.committed
            wall_ns = self.clock.wall_ns()
            ceilings = self.applier.ensure_ceilings
            self.order.batch(
                append.topic_id, append.block, append.record_count, wall_ns=wall_ns, raise_ceiling=ceilings
            )
            base_seq = int(self.order.sides[position & (GOI_ENTRIES - 1)]["base_seq"])
            numbers = (position, append.topic_id, base_seq, 0, wall_ns, append.record_count, len(append.block), 0)
            append.numbered = Numbered(AckStatus.OK, 0, *numbers)
        self._apply_all()


__all__ = ["FollowingTransactionWorld", "TransactionWorld"]
