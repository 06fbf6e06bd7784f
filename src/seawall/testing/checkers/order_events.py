"""The events of an ordering history: what can happen to a batch in a pod.

A pod consists of brokers, a sequencer, replicas and readers over one fabric. An event is one step of one of them, with
the numbers it used, right or wrong: a history records the steps, and `ordering_checkers` checks them.

Rules
- Slot indexes are absolute; counts (`completed`, `durable`, a replica's position) are exclusive: the first not done.
- Seqs start at 1, so a base seq of 0 means none. Positions start at 0, so an unknown position is None.
- `block` identifies the content of a batch, like a checksum: a resent batch has the same block.
- A power loss destroys the rings, so slot indexes of a broker start at 0 again after a cold `Recovered`.

Events are pure values and do not know how they are recorded, stored or checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from seawall.wire.format.codes import AckStatus, GapReason

__all__ = [
    "EVENT_TYPES",
    "AckStatus",
    "Answered",
    "BatchSeen",
    "Claimed",
    "ClientRestored",
    "Collected",
    "Committed",
    "Completed",
    "Crashed",
    "CursorRestored",
    "DurableAdvanced",
    "EntryKind",
    "GapDeclared",
    "GapReason",
    "GapSeen",
    "GivenUp",
    "OrderEvent",
    "Ordered",
    "PayloadWritten",
    "Published",
    "ReadBy",
    "ReadMode",
    "Recovered",
    "ReplicaDurable",
    "Role",
    "Sent",
    "SessionFenced",
    "SessionJoined",
    "SessionOpened",
    "Settled",
    "SkipSeen",
    "TermGranted",
    "ViewChanged",
]


class EntryKind(IntEnum):
    """The kind of an entry."""

    BATCH = 0  #: a batch; gets seqs unless the frontier rejects it
    NOP = 1  #: a slot without a new batch: a duplicate, a rejection, a bounce, a slot of a dead broker
    SKIP = 2  #: client seqs that are declared lost; has no slot
    CONTROL = 3  #: a change of state without seqs, such as the opening of a session


class ReadMode(IntEnum):
    """How far a reader may read."""

    ORDERED = 0  #: up to the committed frontier
    DURABLE = 1  #: up to the durable frontier


class ReadBy(IntEnum):
    """The numbers that a reader follows."""

    POSITION = 0  #: all entries, in the total order
    TOPIC = 1  #: one topic, by seq


class Role(IntEnum):
    """What can crash."""

    CLIENT = 0
    BROKER = 1
    SEQUENCER = 2
    REPLICA = 3
    POWER = 4  #: everything at once, including the fabric


# --- publishers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session took effect at a position: behind it, only batches of this session of the client are stored."""

    client: int
    session_epoch: int
    start_seq: int  #: the first client seq; applies to a new client
    position: int


@dataclass(frozen=True, slots=True)
class SessionJoined:
    """Another connection joined an open session."""

    client: int
    session_epoch: int
    connection: int


@dataclass(frozen=True, slots=True)
class SessionFenced:
    """A publisher was notified that its session has ended because a newer one is open."""

    client: int
    session_epoch: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A publisher sent a batch to a broker, for the first time or again."""

    client: int
    client_seq: int
    session_epoch: int
    broker: int
    topic: int
    order: int
    records: int
    block: int
    ack_level: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A publisher received an answer, with position and base seq if known."""

    client: int
    client_seq: int
    level: int
    status: AckStatus
    position: int | None
    base_seq: int


# --- rings of brokers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """`writer` claimed the next slot in the ring of `broker`."""

    broker: int
    writer: int
    index: int


@dataclass(frozen=True, slots=True)
class PayloadWritten:
    """`writer` wrote the bytes of a batch to the location that a slot of `broker` will refer to."""

    broker: int
    writer: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class Published:
    """`writer` published a slot of `broker` by writing its token."""

    broker: int
    writer: int
    index: int
    client: int
    client_seq: int
    session_epoch: int
    order: int
    block: int


@dataclass(frozen=True, slots=True)
class Collected:
    """A collector collected a published slot; `block` identifies the bytes that the slot referred to then."""

    broker: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A collector skipped a slot that was claimed but not published for too long; it becomes a NOP."""

    broker: int
    index: int


@dataclass(frozen=True, slots=True)
class Completed:
    """All slots of a ring below `index` may be reused."""

    broker: int
    index: int


# --- the order --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TermGranted:
    """A sequencer may order from `start_position` on; entries of older terms there are invalid."""

    term: int
    start_position: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """A sequencer wrote an entry of the global order. A SKIP has no slot and covers `skip_count` client seqs."""

    position: int
    term: int
    kind: EntryKind
    broker: int | None
    index: int | None
    client: int
    client_seq: int
    session_epoch: int
    order: int
    block: int
    skip_count: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """The frontier passed an entry; a batch that was not rejected got seqs.

    The topic of a SKIP is that of the batch it releases: readers of that topic see the SKIP too.
    """

    position: int
    status: AckStatus
    topic: int
    base_seq: int
    records: int


@dataclass(frozen=True, slots=True)
class GapDeclared:
    """Seqs of a topic, both ends included, are lost. A recovery declares its gaps before its `Recovered`."""

    topic: int
    first_seq: int
    last_seq: int
    reason: GapReason


# --- replicas ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """From now on these replicas are the members of the view."""

    view: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaDurable:
    """A replica has stored everything below a position durably."""

    replica: int
    position: int


@dataclass(frozen=True, slots=True)
class DurableAdvanced:
    """The frontier declared everything below a position durable."""

    position: int


# --- readers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """A reader received a batch. A restarted reader counts as another reader."""

    reader: int
    by: ReadBy
    mode: ReadMode
    position: int
    topic: int
    base_seq: int
    records: int
    client: int
    client_seq: int
    block: int


@dataclass(frozen=True, slots=True)
class SkipSeen:
    """A reader received a SKIP of lost client seqs."""

    reader: int
    by: ReadBy
    mode: ReadMode
    position: int
    client: int
    client_seq: int
    skip_count: int


@dataclass(frozen=True, slots=True)
class GapSeen:
    """A reader of a topic received a gap of lost seqs, both ends included."""

    reader: int
    topic: int
    first_seq: int
    last_seq: int


# --- crashes and recovery ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crashed:
    """A role crashed."""

    role: Role
    number: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The pod continues with the committed entries below `kept`, at `next_position`.

    Warm: the fabric survived, with all committed entries. Cold: entries that no replica stored are lost.
    """

    warm: bool
    kept: int
    next_position: int


@dataclass(frozen=True, slots=True)
class CursorRestored:
    """After a recovery, collecting from a ring continues at `index`."""

    broker: int
    index: int


@dataclass(frozen=True, slots=True)
class ClientRestored:
    """After a recovery, the lowest client seq that the sequencer considers undecided."""

    client: int
    session_epoch: int
    next_expected: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is in flight: faults have stopped, enough replicas are up, and publishers have retried."""


OrderEvent: TypeAlias = (
    SessionOpened
    | SessionJoined
    | SessionFenced
    | Sent
    | Answered
    | Claimed
    | PayloadWritten
    | Published
    | Collected
    | GivenUp
    | Completed
    | TermGranted
    | Ordered
    | Committed
    | GapDeclared
    | ViewChanged
    | ReplicaDurable
    | DurableAdvanced
    | BatchSeen
    | SkipSeen
    | GapSeen
    | Crashed
    | Recovered
    | CursorRestored
    | ClientRestored
    | Settled
)

#: All event types, by their name in stored histories.
EVENT_TYPES: Final[dict[str, type[OrderEvent]]] = {
    kind.__name__: kind
    for kind in (
        *(SessionOpened, SessionJoined, SessionFenced, Sent, Answered),
        *(Claimed, PayloadWritten, Published, Collected, GivenUp, Completed),
        *(TermGranted, Ordered, Committed, GapDeclared),
        *(ViewChanged, ReplicaDurable, DurableAdvanced),
        *(BatchSeen, SkipSeen, GapSeen),
        *(Crashed, Recovered, CursorRestored, ClientRestored, Settled),
    )
}
