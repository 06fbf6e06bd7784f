"""What a watch wants: names and prefixes of topics, where it starts in each, and what it reports about a topic.

    orders       the topic with this name
    audit.*      every topic whose name starts with `audit.`
    *            every topic

Topics of Seawall itself, whose names start with _, never match. Rules of the start
- A topic with a position of the same epoch continues there, and with one of epoch 0 in any case.
- A topic with a position of another epoch was created again: it is reported as that, and starts at its first record.
- A topic that appeared after the positions were taken starts at its beginning: its id is not below `later_from`.
- Every other topic starts at its beginning, or with `from_end` at its end.

This module must not know where topics are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from seawall import limits
from seawall.core.identifiers import check_names, check_topic_name, is_reserved_name
from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.errors import InvalidInputError, LimitError

_ANY: Final = "*"

_NO_TOPIC: Final = TopicId(0)
_NO_POSITION: Final = Position(0)

#: The epoch of a position that applies to whatever topic has the name.
ANY_EPOCH: Final = TopicEpoch(0)


class WatchPosition(NamedTuple):
    """How far a watch has read a topic."""

    epoch: TopicEpoch
    next_seq: Seq
    #: SKIPs below this position of the total order were delivered.
    after_position: Position = _NO_POSITION


class TopicPatterns:
    """Names and prefixes of topics."""

    __slots__ = ("_lengths", "_prefixes", "names", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` are checked names, and prefixes with a trailing `*`."""
        #: Every name and prefix, as it was given.
        self.texts: Final = tuple(dict.fromkeys(texts))
        self.names: Final = frozenset(text for text in self.texts if not text.endswith(_ANY))
        self._prefixes = frozenset(text[:-1] for text in self.texts if text.endswith(_ANY))
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})

    @classmethod
    def parse(cls, texts: Sequence[str]) -> TopicPatterns:
        """Check names and prefixes that a user has given."""
        check_names(texts)
        if not texts:
            raise InvalidInputError("nothing to watch: give at least one topic name, or a prefix such as 'audit.*'")
        if len(texts) > limits.WATCH_NAMES_MAX:
            raise LimitError(f"{len(texts)} names to watch, at most {limits.WATCH_NAMES_MAX}; use prefixes")
        for text in texts:
            stem = text.removesuffix(_ANY)
            if stem or not text:
                check_topic_name(stem)
        return cls(texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPatterns) and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def __repr__(self) -> str:
        return f"<TopicPatterns {', '.join(self.texts)}>"

    def matches(self, name: str) -> bool:
        """True if a topic with this name is watched."""
        if name in self.names:
            return True
        return not is_reserved_name(name) and any(name[:length] in self._prefixes for length in self._lengths)


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """Everything that a watch starts with."""

    patterns: TopicPatterns
    from_end: bool = False
    positions: Mapping[str, WatchPosition] = field(default_factory=dict)
    #: Topics with ids from this on appeared after the positions were taken; 0 if they are not from a cursor.
    later_from: TopicId = _NO_TOPIC
    #: True to deliver a record only once it is synced to disk.
    is_strong: bool = False

    @property
    def continues(self) -> bool:
        """True if the watch continues an earlier one."""
        return self.later_from > 0


class TopicEventKind(IntEnum):
    """What a watch reports about a topic besides its records."""

    JOINED = 1
    RECREATED = 2
    CAUGHT_UP = 3
    DELETED = 4


class TopicEvent(NamedTuple):
    """One report about a topic, in order with its records.

    JOINED and RECREATED precede the records of a topic, DELETED follows them. `seq` is the seq to read next, and
    `end_seq` the seq after the last record.
    """

    kind: TopicEventKind
    topic_id: TopicId
    epoch: TopicEpoch
    seq: Seq
    end_seq: Seq
    name: str
