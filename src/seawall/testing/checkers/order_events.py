"""What can happen to a batch on its way through a pod, as values: the words that ordering histories are written in.

A pod is brokers, a sequencer, replicas and readers over one fabric. Each event is one step that somebody took, with the
numbers it was taken with, also where those are wrong: histories record what was done, `ordering_checkers` judge it.

Rules
- Slot indexes are absolute; counts (`completed`, `durable`, what a replica has) are exclusive: the first not yet done.
- Seqs begin at 1, so a base seq of 0 is none. Positions begin at 0, so a position that is not known is None.
- `block` stands for the content of a batch, as its checksum does: the same batch sent again has the same block.
- A power loss takes the rings with it, so slot indexes of a broker begin anew behind a cold `Recovered`.

Pure values: nothing here knows how they are recorded, stored or judged.
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
    """What stands at a position."""

    BATCH = 0  #: a batch, which gets seqs unless the frontier refuses it
    NOP = 1  #: a slot that brought no new batch: a repetition, a refusal, a bounce, a slot of a dead broker
    SKIP = 2  #: client seqs that are declared lost; it belongs to no slot
    CONTROL = 3  #: a change of state that gets no seq, such as the opening of a session


class ReadMode(IntEnum):
    """How far a reader may look."""

    ORDERED = 0  #: up to the committed frontier
    DURABLE = 1  #: up to the durable frontier


class ReadBy(IntEnum):
    """What a reader counts in."""

    POSITION = 0  #: everything, in the total order
    TOPIC = 1  #: one topic, by seq


class Role(IntEnum):
    """Who can crash."""

    CLIENT = 0
    BROKER = 1
    SEQUENCER = 2
    REPLICA = 3
    POWER = 4  #: everything at once, and the fabric with it


# --- publishers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session took effect at a position: of all that its client has behind it, only what is its own is stored."""

    client: int
    session_epoch: int
    start_seq: int  #: the client's first seq; counts for a client that is not known yet
    position: int


@dataclass(frozen=True, slots=True)
class SessionJoined:
    """One more connection of a session that is open."""

    client: int
    session_epoch: int
    connection: int


@dataclass(frozen=True, slots=True)
class SessionFenced:
    """A publisher was told that its session has ended because a newer one is open."""

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
    """A publisher got an answer; position and base seq where the answer knows them."""

    client: int
    client_seq: int
    level: int
    status: AckStatus
    position: int | None
    base_seq: int


# --- rings of brokers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """`writer` took the next slot of the ring of `broker`."""

    broker: int
    writer: int
    index: int


@dataclass(frozen=True, slots=True)
class PayloadWritten:
    """`writer` put the bytes of a batch where a slot of `broker` will point."""

    broker: int
    writer: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class Published:
    """`writer` made a slot of `broker` ready: its token is there."""

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
    """A collector took a slot that it found ready; `block` is what the bytes it points to were then."""

    broker: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A collector passed over a slot that was claimed and not ready for too long: it ends as a NOP."""

    broker: int
    index: int


@dataclass(frozen=True, slots=True)
class Completed:
    """All slots of a ring below `index` are free to be used again."""

    broker: int
    index: int


# --- the order --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TermGranted:
    """A sequencer may order, from `start_position` on; what older terms wrote there is not valid."""

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
    """The frontier passed an entry, and gave it seqs where it is a batch that was not refused.

    The topic of a SKIP is that of the batch it releases: its readers are told of the SKIP too.
    """

    position: int
    status: AckStatus
    topic: int
    base_seq: int
    records: int


@dataclass(frozen=True, slots=True)
class GapDeclared:
    """Seqs of a topic, both ends included, will never be read. A recovery declares its gaps before it is done."""

    topic: int
    first_seq: int
    last_seq: int
    reason: GapReason


# --- replicas ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """From now on these replicas count."""

    view: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaDurable:
    """A replica has everything below a position on its disk."""

    replica: int
    position: int


@dataclass(frozen=True, slots=True)
class DurableAdvanced:
    """The frontier calls everything below a position durable."""

    position: int


# --- readers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """A reader got a batch. A reader that starts anew is another reader."""

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
    """A reader was told that client seqs are lost."""

    reader: int
    by: ReadBy
    mode: ReadMode
    position: int
    client: int
    client_seq: int
    skip_count: int


@dataclass(frozen=True, slots=True)
class GapSeen:
    """A reader of a topic was told that seqs, both ends included, are gone."""

    reader: int
    topic: int
    first_seq: int
    last_seq: int


# --- ends and beginnings ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crashed:
    """Somebody stopped without a word."""

    role: Role
    number: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The pod goes on: what was committed below `kept` is there, and the next position is given.

    Warm: the fabric was there, and so is all that was committed. Cold: what no replica had is lost.
    """

    warm: bool
    kept: int
    next_position: int


@dataclass(frozen=True, slots=True)
class CursorRestored:
    """After a recovery, collecting from a ring goes on at `index`."""

    broker: int
    index: int


@dataclass(frozen=True, slots=True)
class ClientRestored:
    """After a recovery, this is the lowest seq of a client that the sequencer takes for undecided."""

    client: int
    session_epoch: int
    next_expected: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is under way any more: faults are over, enough replicas live, publishers have tried again."""


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

#: Every kind of event, by the name that histories are stored with.
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
