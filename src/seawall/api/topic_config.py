"""The settings of a topic: their names, defaults and valid values.

    TopicConfig.from_json({"cap_records": 1000})        other settings get their defaults
    config.changed({"ttl_ms": 0})                       other settings stay as they are
    config.to_json()                                    every setting, in a fixed order

The log and its clients share this module. `topics/config.py` stores and changes the settings of a log.

A limit of 0 means no limit, for every `cap_…`, `ttl_ms`, `max_deliveries` and `segment_max_age_ms`: a retention of
nothing would delete everything, which is never intended.

`durable` is a short form of `durability`: true is `fsync`, false is `disk`. If both are given, `durability` wins. In
`to_json`, `durable` is true if the durability is `fsync`.

A `TopicConfig` is validated when it is created, so it is always valid. A number outside a range that is marked
"clamped" moves to the nearest end of the range, as documented; every other invalid value raises `ConfigError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from functools import cache
from typing import Final, TypeAlias

from seawall import limits
from seawall.core.identifiers import check_topic_name
from seawall.errors import ConfigError
from seawall.wire.format.codes import U64_MAX, AckLevel
from seawall.wire.format.fields import JsonObject, JsonValue

_Read: TypeAlias = Callable[[object], JsonValue]


class TopicType(StrEnum):
    """How a topic is read."""

    LOG = "log"
    QUEUE = "queue"


class Discard(StrEnum):
    """What a full topic does on an append: drop its oldest records, or refuse the append."""

    OLD = "old"
    REJECT = "reject"


class Durability(StrEnum):
    """What an ack of level 2 waits for, and what a crash may lose."""

    EPHEMERAL = "ephemeral"
    MEMORY = "memory"
    DISK = "disk"
    FSYNC = "fsync"


class Order(IntEnum):
    """How the records of a topic are ordered."""

    NONE = 0
    BROKER = 1
    TOTAL = 2
    CLIENT = 5


@dataclass(frozen=True, slots=True)
class Rule:
    """The valid values of a setting: as text that completes "must be", and as a function that raises for any other."""

    allowed: str
    read: _Read


def _unsigned(low: int = 0, high: int = U64_MAX) -> Rule:
    def read(raw: object) -> int:
        number = _integer(raw)
        if not low <= number <= high:
            raise ValueError
        return number

    return Rule(f"a whole number from {low} to {high}", read)


def _clamped(low: int, high: int) -> Rule:
    """A whole number of any size, moved into the range."""
    return Rule("a whole number", lambda raw: min(max(_integer(raw), low), high))


def _duration(low: int, high: int) -> Rule:
    """Milliseconds, not negative, moved into the range."""
    unsigned = _unsigned()
    return Rule(unsigned.allowed, lambda raw: min(max(_integer(unsigned.read(raw)), low), high))


def _flag() -> Rule:
    def read(raw: object) -> bool:
        if not isinstance(raw, bool):
            raise ValueError
        return raw

    return Rule("true or false", read)


def _word(words: type[StrEnum]) -> Rule:
    def read(raw: object) -> StrEnum:
        return words(_text(raw))

    return Rule("one of " + ", ".join(words), read)


def _number_of(numbers: type[IntEnum]) -> Rule:
    def read(raw: object) -> IntEnum:
        return numbers(_integer(raw))

    return Rule("one of " + ", ".join(str(int(number)) for number in numbers), read)


def _or_none(rule: Rule) -> Rule:
    return Rule(f"{rule.allowed}, or null", lambda raw: None if raw is None else rule.read(raw))


def _topic_name() -> Rule:
    return Rule("the name of a topic", lambda raw: check_topic_name(_text(raw)))


def _integer(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise ValueError
    return int(raw)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError
    return raw


def _about(rule: Rule, key: str = "") -> Mapping[str, Rule | str]:
    """The metadata of a setting: its rule, and its JSON key if that differs from the field name."""
    return {"rule": rule, "key": key}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Every setting of a topic."""

    kind: TopicType = field(default=TopicType.LOG, metadata=_about(_word(TopicType), "type"))
    #: Age at which a record is deleted, in milliseconds.
    ttl_ms: int = field(default=0, metadata=_about(_unsigned()))
    #: Limits of live records and live bytes; the one reached first applies.
    cap_records: int = field(default=0, metadata=_about(_unsigned()))
    cap_bytes: int = field(default=0, metadata=_about(_unsigned()))
    discard: Discard = field(default=Discard.OLD, metadata=_about(_word(Discard)))
    durability: Durability = field(default=Durability.FSYNC, metadata=_about(_word(Durability)))
    #: Rank in delivery; null follows recency if `auto_priority` is on.
    priority: int | None = field(default=None, metadata=_about(_or_none(_clamped(-1000, 1000))))
    auto_priority: bool = field(default=True, metadata=_about(_flag()))
    #: Whether an append may create this name.
    auto_create: bool = field(default=True, metadata=_about(_flag()))
    #: How long an idempotency key is remembered; 0 disables idempotency keys.
    idempotency_window_ms: int = field(default=120_000, metadata=_about(_unsigned()))
    #: Whether a reader skips the records of its own node.
    dedupe_node: bool = field(default=True, metadata=_about(_flag()))
    #: Queues: how long a claim lasts, how long claims are gathered, and what happens to a job that is not finished.
    lease_ms: int = field(default=30_000, metadata=_about(_duration(100, 86_400_000)))
    claim_jitter_ms: int = field(default=0, metadata=_about(_duration(0, 5_000)))
    max_deliveries: int = field(default=0, metadata=_about(_unsigned()))
    dead_letter: str | None = field(default=None, metadata=_about(_or_none(_topic_name())))
    leases_durable: bool = field(default=False, metadata=_about(_flag()))
    order: Order = field(default=Order.TOTAL, metadata=_about(_number_of(Order)))
    #: Ack level of a batch that does not request one.
    ack_level: AckLevel = field(default=AckLevel.DURABLE, metadata=_about(_number_of(AckLevel)))
    #: When a segment is closed and the next one started.
    segment_max_records: int = field(default=10_000, metadata=_about(_unsigned(1)))
    segment_max_bytes: int = field(default=64 * limits.MIB, metadata=_about(_unsigned(limits.PAGE_SIZE)))
    segment_max_age_ms: int = field(default=3_600_000, metadata=_about(_unsigned()))

    def __post_init__(self) -> None:
        for key, (name, rule) in _SETTINGS.items():
            raw: object = getattr(self, name)
            try:
                value = rule.read(raw)
            except ValueError as error:
                raise ConfigError(f"{key} of a topic is {_shown(raw)}: it must be {rule.allowed}") from error
            object.__setattr__(self, name, value)

    @classmethod
    def from_json(cls, document: JsonObject) -> TopicConfig:
        """Create a configuration from a JSON document; missing settings get their defaults."""
        return _defaults().changed(document)

    @classmethod
    def from_server(cls, document: JsonObject) -> TopicConfig:
        """Create a configuration from the reply of a server; ignores unknown settings of a newer server."""
        return cls.from_json({key: value for key, value in document.items() if key in _SETTINGS or key == _DURABLE})

    @property
    def bytes_max(self) -> int:
        """Limit of the bytes of records; 0 means no limit. An ephemeral topic always has a limit."""
        return self.cap_bytes or (limits.EPHEMERAL_BYTES_MAX if self.durability is Durability.EPHEMERAL else 0)

    def changed(self, document: JsonObject) -> TopicConfig:
        """Returns a copy with the settings of a document; raises `ConfigError` if one is invalid."""
        arguments = _arguments(document)
        make: Callable[..., TopicConfig] = TopicConfig
        return make(**{name: arguments.get(name, getattr(self, name)) for name, _ in _SETTINGS.values()})

    def to_json(self) -> dict[str, JsonValue]:
        """Returns every setting by its JSON key, including `durable`, as plain values."""
        document: dict[str, JsonValue] = {}
        for key, (name, _) in _SETTINGS.items():
            value: JsonValue = getattr(self, name)
            if isinstance(value, StrEnum | IntEnum):
                value = value.value
            document[key] = value
        document[_DURABLE] = self.durability is Durability.FSYNC
        return document


#: Field name and rule of every setting, by its JSON key.
_SETTINGS: Final[Mapping[str, tuple[str, Rule]]] = {
    declared.metadata["key"] or declared.name: (declared.name, declared.metadata["rule"])
    for declared in fields(TopicConfig)
}

_DURABLE: Final = "durable"


@cache
def _defaults() -> TopicConfig:
    return TopicConfig()


def _arguments(document: JsonObject) -> dict[str, JsonValue]:
    """Returns the fields that a document sets, by field name; their values are not validated yet."""
    known = [*_SETTINGS, _DURABLE]
    for key in document:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"the settings are {', '.join(known)}"
            raise ConfigError(f"a topic has no setting {_shown(key)}: {hint}")
    arguments = {_SETTINGS[key][0]: value for key, value in document.items() if key != _DURABLE}
    if _DURABLE in document:
        durable = document[_DURABLE]
        if not isinstance(durable, bool):
            raise ConfigError(f"{_DURABLE} of a topic is {_shown(durable)}: it must be true or false")
        arguments.setdefault("durability", Durability.FSYNC if durable else Durability.DISK)
    return arguments


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:59] + "…"
