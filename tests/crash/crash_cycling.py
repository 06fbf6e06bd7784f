"""The script of `crash_world` for publishers of one process that wait for small records: most commits are cycles.

Batches with and without a session, alone, together, or as two commits of which the second starts while the first is
written (`engine.commit.commit_cycle`). A session sometimes repeats a batch, and gets the result of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from crash_history import Level, Written, require
from crash_world import LEVELS, World, append_of

from seawall.core.types import ClientId, ClientSeq
from seawall.engine.commit.appends import Append, Commit
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import DiskFullError
from seawall.topics.config import Durability, TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.format.codes import AckStatus

CLIENT = ClientId(5)


@dataclass
class Batch:
    """A batch and its records."""

    topic: TopicState
    values: list[Written]
    append: Append


class CyclingWorld(World):
    """A store that one process appends to, and the history of its clients."""

    def settings(self) -> StoreSettings:
        # Ceilings that are raised seldom: reservations last for more than one commit.
        return replace(super().settings(), ceiling_step=self.script % 2 * 960 + 64)

    def open(self) -> Store:
        store = super().open()
        #: Epoch and next number of the session, 0 before it is opened; and the last batch of it that was stored.
        self.client, self.epoch, self.next_seq = CLIENT, 0, 0
        self.last: Batch | None = None
        self.cycles = self.ahead = 0
        return store

    def _config(self, durability: Durability) -> TopicConfig:
        # None that stays in the lane or in memory, which ends all cycles; most without caps and ages.
        durability = {Durability.MEMORY: Durability.FSYNC, Durability.EPHEMERAL: Durability.DISK}.get(
            durability, durability
        )
        if self.chance.random() < 0.2:
            return super()._config(durability)
        return TopicConfig(durability=durability, segment_max_records=self.chance.choice((9, 60, 1_000)))

    def weighted(self) -> list[Callable[[], None]]:
        return [*super().weighted(), *[self.row] * 20]

    def row(self) -> None:
        """Small batches in a row, for one topic or two."""
        topics = [topic for topic in (self._pick(), self._pick()) if topic is not None]
        for _ in range(self.chance.choice((2, 3, 5)) if topics else 0):
            chosen = self.chance.choices(topics, k=self.chance.choice((1, 1, 2, 3)))
            self._append([(topic, [self._write_small(topic)]) for topic in chosen])

    def _write_small(self, topic: TopicState) -> Written:
        return self.history.write(topic.topic_id, self.chance.choice((0, 20, 900)), None)

    def _append(self, groups: list[tuple[TopicState, list[Written]]]) -> None:
        if not self.epoch:
            with self.changing() as store:
                self.epoch, self.next_seq = store.session_keeper.open(SessionSpec(self.client, ClientSeq(1)))
        with self.changing() as store:
            self.level = Level.STAGED
            batches = [self._batch(topic, values) for topic, values in groups]
            self._commit_some(store, batches)
            # What each commit has made durable is known by then.
            self.level = Level.STAGED
            if any(batch.append.error is not None and batch.append.has_session for batch in batches):
                # The client seq of a refused batch stays undecided: continue as another client.
                self.client, self.epoch, self.last = ClientId(self.client + 1), 0, None
            else:
                due = store.sessions.window.state(self.client).next_expected
                require(due == self.next_seq, f"the session is at {self.next_seq}, the store at {due}")
        for batch in batches:
            if isinstance(batch.append.error, DiskFullError):
                raise batch.append.error

    def _batch(self, topic: TopicState, values: list[Written]) -> Batch:
        append = append_of(topic.topic_id, values)
        if self.chance.random() < 0.4:
            append = replace(
                append, client_id=self.client, client_seq=ClientSeq(self.next_seq), session_epoch=self.epoch
            )
            self.next_seq += 1
        return Batch(topic, values, append)

    def _commit_some(self, store: Store, batches: list[Batch]) -> None:
        """One commit, one each, or two at once; the last batch of the session once more in between."""
        if self.last is not None and self.chance.random() < 0.2:
            self._repeat(store, self.last)
        how = self.chance.choice(("together", "each", "ahead"))
        if how == "ahead" and len(batches) > 1:
            first = store.begin([batches[0].append])
            second = store.begin_next([batch.append for batch in batches[1:]])
            self.ahead += second is not None
            self._finish(store, first, batches[:1])
            if second is not None:
                self._finish(store, second, batches[1:])
            else:
                self._commit(store, batches[1:])
        else:
            step = 1 if how == "each" else len(batches)
            for first_batch in range(0, len(batches), step):
                self._commit(store, batches[first_batch : first_batch + step])

    def _commit(self, store: Store, batches: list[Batch]) -> None:
        self._finish(store, store.begin([batch.append for batch in batches]), batches)

    def _finish(self, store: Store, commit: Commit, batches: list[Batch]) -> None:
        self.cycles += commit.is_cycle
        if self.chance.random() < 0.2:
            # A reader runs during the write, and applies earlier commits.
            self._observe(store, Level.STAGED)
        is_untidy = self._write_out(store, commit)
        stored = [batch for batch in batches if batch.append.error is None]
        level = max((LEVELS[batch.topic.config.durability] for batch in stored), default=Level.STAGED)
        for batch in batches:
            self._answered(batch, level)
        if level > Level.STAGED:
            self._observe(store, level)
            self.history.reached(level)
        if is_untidy:
            store.tidy_up(commit.limited)

    def _write_out(self, store: Store, commit: Commit) -> bool:
        """Write a commit and finish it; True if maintenance is due after it."""
        try:
            commit.execute()
        except BaseException as error:
            store.fail(error)
            raise
        return store.finish(commit)

    def _answered(self, batch: Batch, level: Level) -> None:
        topic_id, numbered = batch.topic.topic_id, batch.append.numbered
        if batch.append.error is not None or numbered is None:
            for value in batch.values:
                self.history.refused(topic_id, value)
            return
        require(numbered.status is AckStatus.OK, f"a new batch was told {numbered}")
        for seq, value in enumerate(batch.values, numbered.base_seq):
            self.history.acked(topic_id, seq, value, numbered.timestamp_ns, level)
        if batch.append.has_session:
            self.last = batch

    def _repeat(self, store: Store, last: Batch) -> None:
        """Send a batch of the session again: it gets the result of the first."""
        numbered = last.append.numbered
        assert numbered is not None
        again = replace(last.append, numbered=None)
        commit = store.begin([again])
        # Where its topic has caps something may be evicted for it.
        self._write_out(store, commit)
        known = again.numbered
        if store.catalog.find(last.topic.topic_id) is not None:
            require(again.error is None and known is not None, f"a repetition was told {again.error}")
            assert known is not None
            require(known.status is AckStatus.DUPLICATE, f"a repetition was told {known}")
            require(known.base_seq in (0, numbered.base_seq), f"a repetition of {numbered} was told {known}")


__all__ = ["CyclingWorld"]
