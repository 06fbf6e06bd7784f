"""The configuration of a topic: which settings there are, what they default to, and which values they take.

    TopicConfig.from_json({"cap_records": 1000})        what is left out has its default
    config.changed({"ttl_ms": 0})                       what is left out stays as it is
    config.to_json()                                    every setting, in one order

The log and its clients share it. How a log stores and changes one is in `topics/config.py`.

A limit of 0 is no limit, for every `cap_…`, `ttl_ms`, `max_deliveries` and `segment_max_age_ms`: retention of nothing
would delete everything, and nobody means that.

`durable` is a short form of `durability`: true is `fsync`, false is `disk`. Where both are given `durability` counts;
`to_json` shows it as whether the class is `fsync`.

A `TopicConfig` that exists keeps every rule, so nobody checks one again. Numbers beyond a range that is marked
"clamped" are moved to its nearest end, as published; every other bad value is a `ConfigError`.
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
    """What a full topic does with an append: drop its oldest records, or refuse it."""

    OLD = "old"
    REJECT = "reject"


class Durability(StrEnum):
    """What an ack of level 2 waits for, and what a crash may take."""

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
    """Which values a setting takes: in words that follow "must be", and as a function that raises for any other."""

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
    """What is declared about a setting beside its default: its rule, and its JSON key where that is another word."""
    return {"rule": rule, "key": key}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Every setting of a topic."""

    kind: TopicType = field(default=TopicType.LOG, metadata=_about(_word(TopicType), "type"))
    #: Age at which a record goes, in milliseconds.
    ttl_ms: int = field(default=0, metadata=_about(_unsigned()))
    #: Live records and live bytes at most; the one reached first acts.
    cap_records: int = field(default=0, metadata=_about(_unsigned()))
    cap_bytes: int = field(default=0, metadata=_about(_unsigned()))
    discard: Discard = field(default=Discard.OLD, metadata=_about(_word(Discard)))
    durability: Durability = field(default=Durability.FSYNC, metadata=_about(_word(Durability)))
    #: Rank in delivery; null follows recency if `auto_priority` is on.
    priority: int | None = field(default=None, metadata=_about(_or_none(_clamped(-1000, 1000))))
    auto_priority: bool = field(default=True, metadata=_about(_flag()))
    #: Whether an append may create this name.
    auto_create: bool = field(default=True, metadata=_about(_flag()))
    #: How long an idempotency key is remembered; 0 is not at all.
    idempotency_window_ms: int = field(default=120_000, metadata=_about(_unsigned()))
    #: Whether a reader is spared the records of its own node.
    dedupe_node: bool = field(default=True, metadata=_about(_flag()))
    #: Queues: how long a claim lasts, how long claims are gathered, and what becomes of a job nobody finishes.
    lease_ms: int = field(default=30_000, metadata=_about(_duration(100, 86_400_000)))
    claim_jitter_ms: int = field(default=0, metadata=_about(_duration(0, 5_000)))
    max_deliveries: int = field(default=0, metadata=_about(_unsigned()))
    dead_letter: str | None = field(default=None, metadata=_about(_or_none(_topic_name())))
    leases_durable: bool = field(default=False, metadata=_about(_flag()))
    order: Order = field(default=Order.TOTAL, metadata=_about(_number_of(Order)))
    #: Ack level of a batch that does not ask for one.
    ack_level: AckLevel = field(default=AckLevel.DURABLE, metadata=_about(_number_of(AckLevel)))
    #: When a segment is closed and the next begun.
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
        """The configuration a document asks for; what it leaves out has its default."""
        return _defaults().changed(document)

    @classmethod
    def from_server(cls, document: JsonObject) -> TopicConfig:
        """The configuration that a server reports; settings of a newer server that are not known here are left out."""
        return cls.from_json({key: value for key, value in document.items() if key in _SETTINGS or key == _DURABLE})

    @property
    def bytes_max(self) -> int:
        """Bytes of records it may hold, 0 for no limit: what is in memory only has one in any case."""
        return self.cap_bytes or (limits.EPHEMERAL_BYTES_MAX if self.durability is Durability.EPHEMERAL else 0)

    def changed(self, document: JsonObject) -> TopicConfig:
        """This configuration with the settings of a document; the new one checks them itself."""
        arguments = _arguments(document)
        make: Callable[..., TopicConfig] = TopicConfig
        return make(**{name: arguments.get(name, getattr(self, name)) for name, _ in _SETTINGS.values()})

    def to_json(self) -> dict[str, JsonValue]:
        """Every setting by its JSON key, `durable` included, as plain values."""
        document: dict[str, JsonValue] = {}
        for key, (name, _) in _SETTINGS.items():
            value: JsonValue = getattr(self, name)
            if isinstance(value, StrEnum | IntEnum):
                value = value.value
            document[key] = value
        document[_DURABLE] = self.durability is Durability.FSYNC
        return document


#: Every setting by its JSON key: the name of its field, and its rule.
_SETTINGS: Final[Mapping[str, tuple[str, Rule]]] = {
    declared.metadata["key"] or declared.name: (declared.name, declared.metadata["rule"])
    for declared in fields(TopicConfig)
}

_DURABLE: Final = "durable"


@cache
def _defaults() -> TopicConfig:
    return TopicConfig()


def _arguments(document: JsonObject) -> dict[str, JsonValue]:
    """The fields a document sets, by their names, not yet checked."""
    known = [*_SETTINGS, _DURABLE]
    for key in document:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}"
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
