"""The control batches with JSON blocks: those that are rare and that people read.

The table of `control/codec.py` lists the keys of each. A document is compact JSON with all keys, in the order of the
table; any other encoding of the same content is damage.

The configuration of a topic is a JSON object that this module does not interpret: `topics` knows what it means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from seawall import limits
from seawall.core.identifiers import check_router_name, check_stored_name
from seawall.core.types import Position, Seq, Term, TopicEpoch, TopicId
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.storage.control.codec import ControlCommand, require_topic, require_unsigned
from seawall.wire.format.codes import GapReason
from seawall.wire.format.fields import (
    Buffer,
    JsonObject,
    json_object,
    json_text,
    json_unsigned,
    read_json_object,
    write_json,
)

#: Reasons of evictions; every other loss is a `Loss`.
EVICTION_REASONS: Final = frozenset({GapReason.CAP, GapReason.TTL})

_REASONS: Final = {reason.name.lower(): reason for reason in GapReason}


class _Document(ABC):
    """A control whose block is JSON."""

    __slots__ = ()
    COMMAND: ClassVar[ControlCommand]

    def encode(self) -> bytes:
        """The block."""
        block = write_json(self.document())
        if len(block) > limits.CONTROL_DOCUMENT_SIZE_MAX:
            raise LimitError(
                f"{self.COMMAND.name}: {len(block)} bytes of JSON, at most {limits.CONTROL_DOCUMENT_SIZE_MAX}"
            )
        return block

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        what = cls.COMMAND.name
        if len(block) > limits.CONTROL_DOCUMENT_SIZE_MAX:
            raise CorruptionError(f"{what}: block of {len(block)} bytes, at most {limits.CONTROL_DOCUMENT_SIZE_MAX}")
        control = cls.from_document(read_json_object(block, what))
        try:
            is_written_form = control.encode() == bytes(block)
        except RecursionError as error:
            # Encoding starts deeper in the stack than parsing did, so a document may parse and still be too deep here.
            raise CorruptionError(f"{what}: nested too deep") from error
        if not is_written_form:
            raise CorruptionError(f"{what}: the document has keys, blanks or numbers that no writer writes")
        return control

    @abstractmethod
    def document(self) -> JsonObject:
        """The block as JSON."""

    @classmethod
    @abstractmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes; `parse` finds unknown keys."""


@dataclass(frozen=True, slots=True)
class TopicCreate(_Document):
    """A topic is created, at a time in milliseconds since 1970. Ids and epochs are never reused."""

    COMMAND: ClassVar = ControlCommand.TOPIC_CREATE
    topic_id: TopicId
    name: str
    epoch: TopicEpoch
    config: JsonObject
    created_ms: int = 0

    def __post_init__(self) -> None:
        _require_named(self.topic_id, self.name, self.epoch)

    def document(self) -> JsonObject:
        """The block as JSON."""
        return {
            "topic_id": self.topic_id,
            "name": self.name,
            "epoch": self.epoch,
            "config": dict(self.config),
            "created_ms": self.created_ms,
        }

    @classmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes."""
        what = "TOPIC_CREATE"
        # The oldest logs have topics without it.
        created_ms = json_unsigned({"created_ms": 0, **document}, "created_ms", what, 63)
        return cls(*_named(document), json_object(document, "config", what), created_ms)


@dataclass(frozen=True, slots=True)
class TopicDelete(_Document):
    """A topic is deleted, with its records, cursors and keys; `before` is its last configuration."""

    COMMAND: ClassVar = ControlCommand.TOPIC_DELETE
    topic_id: TopicId
    name: str
    epoch: TopicEpoch
    before: JsonObject

    def __post_init__(self) -> None:
        _require_named(self.topic_id, self.name, self.epoch)

    def document(self) -> JsonObject:
        """The block as JSON."""
        return {"topic_id": self.topic_id, "name": self.name, "epoch": self.epoch, "before": dict(self.before)}

    @classmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes."""
        return cls(*_named(document), json_object(document, "before", "TOPIC_DELETE"))


@dataclass(frozen=True, slots=True)
class TopicConfigure(_Document):
    """A topic's configuration is replaced."""

    COMMAND: ClassVar = ControlCommand.TOPIC_CONFIG
    topic_id: TopicId
    before: JsonObject
    after: JsonObject

    def __post_init__(self) -> None:
        require_topic(self.topic_id)

    def document(self) -> JsonObject:
        """The block as JSON."""
        return {"topic_id": self.topic_id, "before": dict(self.before), "after": dict(self.after)}

    @classmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes."""
        before, after = (json_object(document, key, "TOPIC_CONFIG") for key in ("before", "after"))
        return cls(_topic_id(document), before, after)


@dataclass(frozen=True, slots=True)
class RouterChange(_Document):
    """A router is created (`before` is None), changed, or deleted (`after` is None); both are its settings.

    `next_seq` is where it reads its source next.
    """

    COMMAND: ClassVar = ControlCommand.ROUTER
    name: str
    source_id: TopicId
    dest_id: TopicId
    next_seq: Seq
    before: JsonObject | None
    after: JsonObject | None

    def __post_init__(self) -> None:
        check_router_name(self.name)
        require_topic(self.source_id)
        require_topic(self.dest_id)
        require_unsigned(self.next_seq)
        if self.source_id == self.dest_id or not self.next_seq or (self.before is None and self.after is None):
            raise InvalidInputError(
                f"router {self.name!r} from topic {self.source_id} at {self.next_seq} to {self.dest_id}: it needs two "
                "topics, a seq from 1, and settings before or after"
            )

    @property
    def topic_id(self) -> TopicId:
        """No topic: it names two."""
        return TopicId(0)

    def document(self) -> JsonObject:
        """The block as JSON."""
        return {
            "name": self.name,
            "source_id": self.source_id,
            "dest_id": self.dest_id,
            "next_seq": self.next_seq,
            "before": None if self.before is None else dict(self.before),
            "after": None if self.after is None else dict(self.after),
        }

    @classmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes."""
        what = "ROUTER"
        source_id, dest_id = (json_unsigned(document, key, what, 32) for key in ("source_id", "dest_id"))
        next_seq = json_unsigned(document, "next_seq", what)
        before, after = (
            None if document.get(key) is None else json_object(document, key, what) for key in ("before", "after")
        )
        name = json_text(document, "name", what)
        return cls(name, TopicId(source_id), TopicId(dest_id), Seq(next_seq), before, after)


@dataclass(frozen=True, slots=True)
class FloorRaise(_Document):
    """Records below `evict_floor` are evicted by a cap or their age; `removed_bytes` are those of the live ones.

    The control states the bytes, so that the segments of evicted records may be dropped before the next snapshot.
    """

    COMMAND: ClassVar = ControlCommand.FLOOR
    topic_id: TopicId
    reason: GapReason
    evict_floor: Seq
    previous: Seq
    removed_bytes: int

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        require_unsigned(self.evict_floor, self.previous, self.removed_bytes)
        if self.reason not in EVICTION_REASONS or not 1 <= self.previous < self.evict_floor:
            raise InvalidInputError(
                f"evict from {self.previous} to below {self.evict_floor} for {self.reason.name}: the floor must "
                "rise, by cap or ttl"
            )

    def document(self) -> JsonObject:
        """The block as JSON."""
        return {
            "topic_id": self.topic_id,
            "reason": self.reason.name.lower(),
            "evict_floor": self.evict_floor,
            "previous": self.previous,
            "removed_bytes": self.removed_bytes,
        }

    @classmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes."""
        evict_floor, previous, removed = (
            json_unsigned(document, key, "FLOOR") for key in ("evict_floor", "previous", "removed_bytes")
        )
        return cls(_topic_id(document), _reason(document, "FLOOR"), Seq(evict_floor), Seq(previous), removed)


@dataclass(frozen=True, slots=True)
class Loss(_Document):
    """A range of seqs that will never be readable, both ends included, and the reason.

    `lost_bytes` are those of its live records; seqs that no record ever had count 0.
    """

    COMMAND: ClassVar = ControlCommand.LOSS
    topic_id: TopicId
    first_seq: Seq
    last_seq: Seq
    reason: GapReason
    lost_bytes: int = 0

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        require_unsigned(self.first_seq, self.last_seq, self.lost_bytes)
        if self.reason in EVICTION_REASONS or not 1 <= self.first_seq <= self.last_seq:
            raise InvalidInputError(
                f"{self.first_seq} to {self.last_seq} for {self.reason.name} is no loss: it is a range from 1 on, and "
                "evictions raise a floor"
            )

    def document(self) -> JsonObject:
        """The block as JSON."""
        return {
            "topic_id": self.topic_id,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "reason": self.reason.name.lower(),
            "lost_bytes": self.lost_bytes,
        }

    @classmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes."""
        first_seq, last_seq, lost_bytes = (
            json_unsigned(document, key, "LOSS") for key in ("first_seq", "last_seq", "lost_bytes")
        )
        return cls(_topic_id(document), Seq(first_seq), Seq(last_seq), _reason(document, "LOSS"), lost_bytes)


@dataclass(frozen=True, slots=True)
class TermStart(_Document):
    """A leadership begins; its batches start at `start_position`."""

    COMMAND: ClassVar = ControlCommand.TERM
    term: Term
    previous: Term
    start_position: Position

    def __post_init__(self) -> None:
        require_unsigned(self.start_position)
        if not 0 <= self.previous < self.term <= 0xFFFF_FFFF:
            raise InvalidInputError(f"term {self.term} cannot follow term {self.previous}: terms rise, in 32 bits")

    @property
    def topic_id(self) -> TopicId:
        """No topic: a term is of the whole log."""
        return TopicId(0)

    def document(self) -> JsonObject:
        """The block as JSON."""
        return {"term": self.term, "previous": self.previous, "start_position": self.start_position}

    @classmethod
    def from_document(cls, document: JsonObject) -> Self:
        """The control that a document describes."""
        term, previous = (Term(json_unsigned(document, key, "TERM", 32)) for key in ("term", "previous"))
        return cls(term, previous, Position(json_unsigned(document, "start_position", "TERM")))


def _require_named(topic_id: TopicId, name: str, epoch: TopicEpoch) -> None:
    require_topic(topic_id)
    check_stored_name(name)
    require_unsigned(epoch)


def _topic_id(document: JsonObject) -> TopicId:
    return TopicId(json_unsigned(document, "topic_id", "control batch", 32))


def _named(document: JsonObject) -> tuple[TopicId, str, TopicEpoch]:
    name = json_text(document, "name", "control batch")
    return _topic_id(document), name, TopicEpoch(json_unsigned(document, "epoch", "control batch"))


def _reason(document: JsonObject, what: str) -> GapReason:
    word = json_text(document, "reason", what)
    if word not in _REASONS:
        raise CorruptionError(f"{what}: {word!r} is no reason for a loss")
    return _REASONS[word]
