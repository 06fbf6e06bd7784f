"""What a follower is given and what it gives back: the parts of its store, a commit of entries, how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from seawall.core.types import Position, Term
from seawall.engine.appends import Commit
from seawall.engine.follow_looking import Look
from seawall.engine.log_writer import LogWriter
from seawall.engine.removal import Removal
from seawall.engine.room_making import RoomMaker
from seawall.engine.rooms import Reservations
from seawall.engine.sessions import Sessions
from seawall.io.interfaces import Clock
from seawall.kernels.epochs import WalRows
from seawall.storage.control_batches import Aside, SimpleControl
from seawall.storage.control_order import OrderNop, OrderSkip
from seawall.topics.catalog import TopicCatalog
from seawall.topics.state import TopicState


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a follower asks its store to do."""

    begin: Callable[[], None]
    commit: Callable[[Sequence[SimpleControl]], None]
    preparing: Callable[[], AbstractContextManager[None]]
    changing: Callable[[], AbstractContextManager[None]]
    fail: Callable[[BaseException], None]
    tidy_up: Callable[[Sequence[TopicState]], None]


@dataclass(frozen=True, slots=True)
class FollowerParts:
    """What a follower needs of its store."""

    catalog: TopicCatalog
    reservations: Reservations
    writer: LogWriter
    maker: RoomMaker
    removal: Removal
    sessions: Sessions
    hooks: Hooks
    clock: Clock
    term: Term


@dataclass(frozen=True, slots=True)
class Following:
    """What one call has followed: `count` entries, so that everything below `next_position` has come as far as its
    class promises: `fsync` synced, `disk` written, `memory` and `ephemeral` in the memory of this process."""

    count: int
    next_position: Position


class FollowCommit(Commit):
    """Entries that are staged, and what has to be written before they take effect."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look
        #: Rows of all that takes effect, in order.
        self.rows: list[WalRows] = []
        self.asides: list[tuple[Aside, Position]] = []
        #: NOPs that decide and SKIPs, by their position.
        self.marks: dict[Position, OrderNop | OrderSkip] = {}
