"""The script of `crash_world` for a store that applies an order: records are ordered first, and then applied.

Numbers are assigned when a batch is ordered; its ack counts from when it is applied. Every other change is made at a
position of the order. Some batches have sessions, with entries that store nothing: duplicates, refusals, and abandoned
client seqs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from crash_history import Level, Written, require
from crash_world import LEVELS, World

from seawall.core.types import ClientId, ClientSeq, Position
from seawall.engine.ordering.applier import Applier
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.store.store import Store
from seawall.limits import KIB
from seawall.testing.checkers.committed_order import CommittedOrder
from seawall.topics.config import Discard, Durability, TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.format.codes import AckStatus
from seawall.wire.format.records import encode_block

GOI_ENTRIES = 256
BLOG_SIZE = 1024 * KIB
CLIENT = ClientId(77)


@dataclass(frozen=True)
class Ordered:
    """A batch that has its numbers and is not followed yet."""

    position: Position
    topic_id: int
    level: Level
    base_seq: int
    timestamp_ns: int
    values: list[Written]


class FollowingWorld(World):
    """A store that applies an order, and the history of its clients."""

    order: CommittedOrder
    applier: Applier
    ordered: list[Ordered]

    def open(self) -> Store:
        store = super().open()
        self.ordered = []
        self._seq = self._epoch = 0
        self.order = CommittedOrder(
            store.parts.writer.frontier, term=store.parts.term, goi_entries=GOI_ENTRIES, blog_size=BLOG_SIZE
        )
        self.applier = Applier(store.parts, store.maintenance, goi_entries=GOI_ENTRIES, blog_size=BLOG_SIZE)
        return store

    def _config(self, durability: Durability) -> TopicConfig:
        # The sequencer would refuse batches for a full topic; here there is none.
        return replace(super()._config(durability), discard=Discard.OLD)

    def _pick(self) -> TopicState | None:
        self._apply_all()
        return super()._pick()

    @contextmanager
    def changing(self) -> Iterator[Store]:
        """One change that is no append, at a position of the order."""
        self._apply_all()
        with super().changing() as store:
            try:
                with self.applier.at(self.order.committed):
                    yield store
            finally:
                self.order.committed = max(self.order.committed, self.applier.next_position)

    def close(self) -> None:
        try:
            if self.store is not None and self.store.guard.failure is None:
                self._apply_all()
        finally:
            # A full disk may refuse what is left of the order, since a topic is put in order when it is first used. The
            # store is closed all the same, and gives its lock back.
            super().close()

    def _append(self, groups: list[tuple[TopicState, list[Written]]]) -> None:
        if not self._epoch:
            with self.changing() as store:
                self._epoch, first = store.session_keeper.open(SessionSpec(CLIENT, ClientSeq(1)))
                self._seq = first - 1
        for topic, values in groups:
            self._order_some(topic)
            self._order(topic, values)
        self._apply_all()

    def _order(self, topic: TopicState, values: list[Written]) -> None:
        block = encode_block([value.record() for value in values])
        seq = self._next_seq() if self.chance.random() < 0.5 else 0
        session = {"client_id": CLIENT, "client_seq": seq, "session_epoch": self._epoch} if seq else {}
        position = self.order.committed
        self.order.batch(
            topic.topic_id,
            block,
            len(values),
            wall_ns=self.clock.wall_ns(),
            broker=self.chance.choice((0, 1)),
            raise_ceiling=self.applier.ensure_ceilings,
            **session,
        )
        side = self.order.sides[position & (GOI_ENTRIES - 1)]
        numbers = (int(side["base_seq"]), int(side["timestamp_ns"]))
        self.ordered.append(Ordered(position, topic.topic_id, LEVELS[topic.config.durability], *numbers, values))

    def _order_some(self, topic: TopicState) -> None:
        """Entries that bring no records."""
        kind = self.chance.choice(("none", "none", "nop", "skip", "refused"))
        if kind == "nop":
            status = self.chance.choice((AckStatus.DUPLICATE, AckStatus.RETRY, AckStatus.REJECTED))
            self.order.nop(status, topic_id=topic.topic_id, client_id=CLIENT, client_seq=max(1, self._seq))
        elif kind == "skip":
            first = self._next_seq()
            self.order.skip(topic.topic_id, CLIENT, first, 1)
        elif kind == "refused":
            fields = {"client_id": CLIENT, "client_seq": self._next_seq(), "session_epoch": self._epoch}
            status = self.order.batch(9_999, b"\1\0\0\0\0", 1, **fields)
            require(status is AckStatus.REJECTED, "a batch of no topic was admitted")

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _apply_all(self) -> None:
        """Apply the ordered batches, commit by commit; applied batches are acked."""
        if self.store is None or self.applier.next_position >= self.order.committed:
            return
        with super().changing():
            self.level = Level.STAGED
            while self.applier.next_position < self.order.committed:
                done = self.order.apply_once(self.applier).next_position
                followed = [each for each in self.ordered if each.position < done]
                self.ordered = self.ordered[len(followed) :]
                self.level = max((each.level for each in followed), default=Level.STAGED)
                for each in followed:
                    for seq, value in enumerate(each.values, each.base_seq):
                        self.history.acked(each.topic_id, seq, value, each.timestamp_ns, self.level)

    def check_opened(self) -> None:
        """Check the sessions: they know only sent batches, and all applied ones."""
        super().check_opened()
        window = self._usable().sessions.window
        if CLIENT in window:
            state = window.state(CLIENT)
            require(state.next_expected == state.highest_seen + 1, f"a client seq is open again: {state}")


__all__ = ["FollowingWorld"]
