"""The interface of an orderer, which assigns positions to everything that a store writes. Each store has one.

    local_orderer        numbers the appends of its own process, and makes changes immediately
    sequenced_orderer    brokers and a sequencer make the order, for this process and for connections

A change that is not an append takes a position in the same order. What a store logs by itself (ceilings, rolls,
evictions, terms) takes no position if a sequencer orders (`applier`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from seawall.core.types import ClientId, ClientSeq, Seq, SessionEpoch, TopicId
from seawall.engine.commit.appends import Append, Commit
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.topic_log import StoredBatch
from seawall.io.interfaces import ReadableBuffer
from seawall.io.process.shared_lock import MemoryLock
from seawall.sequencer.frontier import Numbered

R = TypeVar("R")

#: The epoch of an opened session, and its first undecided client seq.
Opened: TypeAlias = tuple[SessionEpoch, ClientSeq]


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """A request to open the next session of a publisher."""

    client_id: ClientId
    start_seq: ClientSeq
    #: True if the client id was drawn for this session.
    is_drawn: bool = False
    #: Order 5: how long to wait for a missing batch before it is skipped; 0 for the time in the settings.
    gap_ns: int = 0
    #: True to abandon everything undecided below `start_seq` immediately.
    abandons: bool = False


class Orderer(Protocol):
    """Assigns positions to the appends and changes of one store. Has one owner at a time, the owner of the store."""

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Number and stage appends; each gets its numbers or its error. Without appends, stages what has arrived."""

    def begin_next(self, appends: Sequence[Append]) -> Commit | None:
        """`begin` while one commit is in flight; None if that is impossible."""

    def commit_one(
        self, topic_id: TopicId, block: ReadableBuffer, record_count: int, state: MemoryLock
    ) -> Numbered | None:
        """Commit one plain block on this thread; None if it needs the general path."""

    def finish(self, commit: Commit) -> None:
        """Let a written commit take effect: readers see it, and all its appends are decided."""

    def change(self, apply_change: Callable[[], R], topic_id: TopicId | None = None) -> R:
        """Make a change at a position of its own; everything ordered before it is stored by then.

        `topic_id` is the topic that it concerns, if it concerns one.
        """

    def open_session(self, wanted: SessionSpec, log_session: Callable[[], Opened]) -> Opened:
        """Open a session at a position, by `log_session`; later batches of an older session are refused."""

    def retire(
        self, client_ids: Sequence[ClientId], log_retired: Callable[[Sequence[ClientId]], None]
    ) -> Sequence[ClientId]:
        """Retire, by `log_retired`, the sessions that have no batch in flight, at one position; the retired ones."""

    def tail(self, topic_id: TopicId, from_seq: Seq, size_max: int) -> list[StoredBatch]:
        """Batches of a topic that are ordered and not stored yet, from a seq on."""

    def close(self) -> None:
        """Release the resources of the order, before the store is closed."""


#: Creates the orderer of a store that is being opened.
OrdererFactory: TypeAlias = Callable[[StoreParts, Maintenance], Orderer]
