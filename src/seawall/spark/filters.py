"""Filters that Spark hands down, as bounds on what is read: seqs, times, topics.

Filters on `offset`, `topic` and `timestamp` leave out whole stretches of the log; times only if the column shows the
log's own, which never run back. Spark looks at every row all the same: of a frame that is used with several filters it
may hand the rows of one to another (Spark 4.3 keeps one reader for a frame), and then nobody else would notice.

Bounds are taken from all filters together: all of them hold for every row. This module must not ask a server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_END: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Comparison: TypeAlias = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


@dataclass(slots=True)
class Bound:
    """Numbers from the first up to the end, which is not included."""

    first: int = 0
    end: int = _END

    @property
    def has_first(self) -> bool:
        """Whether something is left out before the first."""
        return self.first > 0

    @property
    def has_end(self) -> bool:
        """Whether something is left out from the end on."""
        return self.end < _END

    def narrow(self, each: _Comparison, number: int) -> None:
        """Leave out what a comparison with a number leaves out."""
        if isinstance(each, EqualTo | GreaterThanOrEqual):
            self.first = max(self.first, number)
        if isinstance(each, GreaterThan):
            self.first = max(self.first, number + 1)
        if isinstance(each, EqualTo | LessThanOrEqual):
            self.end = min(self.end, number + 1)
        if isinstance(each, LessThan):
            self.end = min(self.end, number)


@dataclass(slots=True)
class Bounds:
    """What is read at all."""

    #: Microseconds since 1970.
    moments: Bound = field(default_factory=Bound)
    seqs: Bound = field(default_factory=Bound)
    #: None if any topic is.
    topics: frozenset[str] | None = None

    def take(self, filters: Iterable[Filter], *, has_log_time: bool) -> None:
        """Take the bounds of some filters."""
        for each in filters:
            match each:
                case EqualTo(attribute=("topic",), value=str(name)):
                    self._keep([name])
                case In(attribute=("topic",), value=names):
                    self._keep(names)
                case In(attribute=("offset",), value=numbers) if all(type(number) is int for number in numbers):
                    self.seqs.narrow(GreaterThanOrEqual(("offset",), 0), min(numbers, default=_END))
                    self.seqs.narrow(LessThanOrEqual(("offset",), 0), max(numbers, default=0))
                case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
                    self._compare(each, has_log_time)

    def _compare(self, each: _Comparison, has_log_time: bool) -> None:
        if each.attribute == ("offset",) and type(each.value) is int:
            self.seqs.narrow(each, each.value)
        if each.attribute == ("timestamp",) and isinstance(each.value, datetime) and has_log_time:
            self.moments.narrow(each, _microseconds(each.value))

    def _keep(self, names: Iterable[object]) -> None:
        named = frozenset(name for name in names if isinstance(name, str))
        self.topics = named if self.topics is None else self.topics & named


def _microseconds(moment: datetime) -> int:
    """A time as it is counted; Spark's literals have a zone."""
    since = (moment if moment.tzinfo is not None else moment.astimezone()) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
