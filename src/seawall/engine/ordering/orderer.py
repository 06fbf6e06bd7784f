"""Who gives positions to what a store writes: a store has one orderer, and knows no more of it than this.

    local_orderer        the store numbers its own appends, and makes changes at once
    sequenced_orderer    brokers and a sequencer make the order, for this process and for connections

A change that is no append is made at a position of the same order. What a store logs by itself (ceilings, rolls,
evictions, terms) takes none where a sequencer orders (`following`).
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

#: The epoch of a session, and the first client seq that is not decided.
Opened: TypeAlias = tuple[SessionEpoch, ClientSeq]


@dataclass(frozen=True, slots=True)
class WantedSession:
    """The next session of a publisher."""

    client_id: ClientId
    start_seq: ClientSeq
    #: Whether the client id was drawn for it just now.
    is_drawn: bool = False
    #: After so long what is missing between its batches is given up, of order 5; 0 waits as long as the settings say.
    gap_ns: int = 0
    #: Whether everything undecided below `start_seq` is given up at once.
    abandons: bool = False


class Orderer(Protocol):
    """Gives positions to the appends and changes of one store. One owner at a time, the same as the store's."""

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Number and stage appends; each has its numbers or its error. Without any, what has arrived by itself."""

    def begin_next(self, appends: Sequence[Append]) -> Commit | None:
        """`begin` while one commit is under way; None if that cannot be."""

    def commit_one(
        self, topic_id: TopicId, block: ReadableBuffer, record_count: int, state: MemoryLock
    ) -> Numbered | None:
        """Commit one plain block on this thread; None if it needs more than its numbers."""

    def finish(self, commit: Commit) -> None:
        """Publish a commit that is written: readers see it, and every append of it is decided."""

    def change(self, make: Callable[[], R], topic_id: TopicId | None = None) -> R:
        """Make a change, of a topic or of no one, at its position: what was ordered before it is stored by then."""

    def open_session(self, wanted: WantedSession, make: Callable[[], Opened]) -> Opened:
        """Open a session at its position, by `make`: what comes behind it of an older one is refused."""

    def retire(self, client_ids: Sequence[ClientId], make: Callable[[Sequence[ClientId]], None]) -> Sequence[ClientId]:
        """Retire sessions at a position, by `make`; those of which nothing was under way."""

    def tail(self, topic_id: TopicId, from_seq: Seq, size_max: int) -> list[StoredBatch]:
        """What is ordered of a topic and not stored yet, from a seq on."""

    def close(self) -> None:
        """Let go of what belongs to the order, before the store is closed."""


#: Makes the orderer of a store that is being opened.
OrdererFactory: TypeAlias = Callable[[StoreParts, Maintenance], Orderer]
