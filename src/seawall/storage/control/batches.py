"""Complete control batches: compounds of several changes at one position, and the header around a block.

    COMPOUND   count u32, 0 u32, then for each part: command u16, 0 u16, length u32, block

A compound has 1 to 20,000 parts, none of them a compound. They take effect in their order, at one position, all or
none, since a batch is in the log as a whole or not at all.

An unpositioned control batch (command ASIDE) has the layout of a compound and its own command number. It takes no
position: its header carries the position of the next batch, which has not taken effect yet. So a store that applies an
order made elsewhere can log its own changes (rolls, ceilings, evictions, terms) between two entries of that order. It
holds no entry of the order: no reference, NOP, SKIP or transaction.

A control batch is valid if its block is (`control/codec.py`), if its header has no codec, no records, no numbers of a
topic and the topic and client of the block, if every reference in it carries the position of the batch itself, and if a
transaction is whole (`control/transactions.py`).

For any bytes, `parse_control` and `read_control` return a control or raise `CorruptionError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, Self, TypeAlias

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, Term, TimestampNs, TopicId
from seawall.errors import CorruptionError, InvalidInputError, LimitError, ProtocolError
from seawall.storage.control.codec import (
    Ceiling,
    Checkpoint,
    ClientRow,
    ControlCommand,
    CursorCommit,
    Reference,
    RouterStep,
    SegmentRoll,
)
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import (
    FloorRaise,
    Loss,
    RouterChange,
    TermStart,
    TopicConfigure,
    TopicCreate,
    TopicDelete,
)
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.control.queues import DeadLettered, Leases
from seawall.storage.control.sessions import SessionsRetired
from seawall.storage.control.transactions import TransactionMark, check_whole
from seawall.wire.format.batches import BatchHeader, batch_header, encode_batch, stamp
from seawall.wire.format.codes import AS_TOPIC, Codec
from seawall.wire.format.fields import Buffer, pack, require_at_least, require_zero

_COUNT: Final = Struct("<II")
_PART: Final = Struct("<HHI")

#: A control that changes one thing.
SimpleControl: TypeAlias = (
    Reference
    | TopicCreate
    | TopicDelete
    | TopicConfigure
    | Ceiling
    | DeleteRecords
    | FloorRaise
    | Loss
    | CursorCommit
    | SegmentRoll
    | ClientRow
    | TermStart
    | Checkpoint
    | OrderNop
    | OrderSkip
    | TransactionMark
    | SessionsRetired
    | DeadLettered
    | Leases
    | RouterChange
    | RouterStep
)

_SIMPLE: Final[dict[int, type[SimpleControl]]] = {
    kind.COMMAND: kind
    for kind in (
        Reference,
        TopicCreate,
        TopicDelete,
        TopicConfigure,
        Ceiling,
        DeleteRecords,
        FloorRaise,
        Loss,
        CursorCommit,
        SegmentRoll,
        ClientRow,
        TermStart,
        Checkpoint,
        OrderNop,
        OrderSkip,
        TransactionMark,
        SessionsRetired,
        DeadLettered,
        Leases,
        RouterChange,
        RouterStep,
    )
}

#: Entries of the order: they have their own position, so an unpositioned control batch cannot hold them.
_ENTRIES: Final = (Reference, OrderNop, OrderSkip, TransactionMark)


@dataclass(frozen=True, slots=True)
class Compound:
    """Several changes at one position."""

    COMMAND: ClassVar = ControlCommand.COMPOUND
    parts: tuple[SimpleControl, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= limits.COMPOUND_PARTS_MAX:
            raise InvalidInputError(
                f"a compound of {len(self.parts)} parts, allowed are 1 to {limits.COMPOUND_PARTS_MAX}"
            )

    @property
    def topic_id(self) -> TopicId:
        """No topic: each part names its own."""
        return TopicId(0)

    def encode(self) -> bytes:
        """The block."""
        pieces = [_COUNT.pack(len(self.parts), 0)]
        for part in self.parts:
            block = part.encode()
            pieces += (pack(_PART, "part", part.COMMAND, 0, len(block)), block)
        return b"".join(pieces)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_COUNT.size, "COMPOUND", block)
        count, zero = _COUNT.unpack_from(block)
        require_zero("COMPOUND", zero)
        if count > limits.COMPOUND_PARTS_MAX:
            raise CorruptionError(f"COMPOUND: {count} parts, at most {limits.COMPOUND_PARTS_MAX}")
        parts: list[SimpleControl] = []
        at = _COUNT.size
        for _ in range(count):
            require_at_least(at + _PART.size, "COMPOUND", block)
            command, zero, length = _PART.unpack_from(block, at)
            require_zero("COMPOUND", zero)
            at += _PART.size
            require_at_least(at + length, "COMPOUND", block)
            parts.append(_parse_simple(command, block[at : at + length]))
            at += length
        if at != len(block):
            raise CorruptionError(f"COMPOUND: {len(block) - at} bytes after the last part")
        return cls(tuple(parts))


@dataclass(frozen=True, slots=True)
class UnpositionedControl(Compound):
    """Changes that take no position: they precede the batch whose position they carry."""

    COMMAND: ClassVar = ControlCommand.ASIDE

    def __post_init__(self) -> None:
        Compound.__post_init__(self)
        if any(isinstance(part, _ENTRIES) for part in self.parts):
            raise InvalidInputError("an aside holds no entry of the order: no reference, NOP, SKIP or transaction")


#: The content of one control batch.
Control: TypeAlias = SimpleControl | Compound

_COMPOUNDS: Final[dict[int, type[Compound]]] = {kind.COMMAND: kind for kind in (Compound, UnpositionedControl)}


def parse_control(command: int, block: Buffer) -> Control:
    """Parse the block of a control batch with this command."""
    try:
        kind = _COMPOUNDS.get(command)
        return _parse_simple(command, block) if kind is None else kind.parse(block)
    except (ProtocolError, InvalidInputError) as error:
        raise CorruptionError(f"control batch: {error}") from error


def parts_of(control: Control) -> tuple[SimpleControl, ...]:
    """The changes of a control, in the order in which they take effect."""
    return control.parts if isinstance(control, Compound) else (control,)


def references_of(control: Control) -> Iterator[Reference]:
    """The references (appends) in a control."""
    return (part for part in parts_of(control) if isinstance(part, Reference))


def control_batch(control: Control, *, position: Position, timestamp_ns: TimestampNs, term: Term) -> bytes:
    """Encode a control as a stored batch for the log."""
    if any(reference.header.position != position for reference in references_of(control)):
        raise InvalidInputError(f"a reference to a batch of another position in the control batch of {position}")
    check_whole(parts_of(control))
    block = control.encode()
    if len(block) > limits.BLOCK_SIZE_MAX:
        raise LimitError(f"a control batch of {len(block)} bytes, at most {limits.BLOCK_SIZE_MAX}; split it")
    header = batch_header(
        block,
        topic_id=control.topic_id,
        client_id=_client_of(control),
        client_seq=ClientSeq(0),
        session_epoch=0,
        record_count=0,
        timestamp_ns=timestamp_ns,
        command=control.COMMAND,
    )
    batch = bytearray(encode_batch(header, block))
    stamp(batch, position=position, base_seq=Seq(0), base_offset=Offset(0), timestamp_ns=timestamp_ns, term=term)
    return bytes(batch)


def read_control(header: BatchHeader, block: Buffer) -> Control:
    """Parse the control of a stored batch whose checksums are verified."""
    control = parse_control(header.command, block)
    expected = (control.topic_id, _client_of(control), 0, 0, 0, 0, Codec.NONE, AS_TOPIC, AS_TOPIC)
    found = (
        *(header.topic_id, header.client_id, header.client_seq, header.record_count, header.base_seq),
        *(header.base_offset, header.codec, header.order, header.ack_level),
    )
    if found != expected:
        raise CorruptionError(f"control batch at position {header.position}: its header does not fit its block")
    if any(reference.header.position != header.position for reference in references_of(control)):
        raise CorruptionError(f"control batch at position {header.position}: a reference to another position")
    try:
        check_whole(parts_of(control))
    except InvalidInputError as error:
        raise CorruptionError(f"control batch at position {header.position}: {error}") from error
    return control


def _client_of(control: Control) -> ClientId:
    return control.client_id if isinstance(control, ClientRow) else ClientId(0)


def _parse_simple(command: int, block: Buffer) -> SimpleControl:
    kind = _SIMPLE.get(command)
    if kind is None:
        raise CorruptionError(f"control batch: command {command} is not known")
    return kind.parse(block)
