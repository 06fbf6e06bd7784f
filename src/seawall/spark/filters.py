"""Turns filters that Spark pushes down into bounds on what is read: seqs, times and topics.

Filters on `offset`, `topic` and `timestamp` exclude whole ranges of the log; `timestamp` only if the column shows the
log's own time, which is monotonic. Spark still evaluates the filters on each row. That is necessary: Spark 4.3 keeps
one reader for a frame that is used with several filters, and may give the rows of one use to another.

All filters hold for every row, so their bounds are intersected. This module must not contact a server.
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
    """Numbers from `first` to `end` (exclusive)."""

    first: int = 0
    end: int = _END

    @property
    def has_first(self) -> bool:
        """True if there is a lower bound."""
        return self.first > 0

    @property
    def has_end(self) -> bool:
        """True if there is an upper bound."""
        return self.end < _END

    def narrow(self, each: _Comparison, number: int) -> None:
        """Apply a comparison with a number."""
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
    """The bounds on what is read."""

    #: Microseconds since 1970.
    moments: Bound = field(default_factory=Bound)
    seqs: Bound = field(default_factory=Bound)
    #: None for all topics.
    topics: frozenset[str] | None = None

    def take(self, filters: Iterable[Filter], *, has_log_time: bool) -> None:
        """Narrow the bounds by filters. `has_log_time` says that `timestamp` shows the log's own time."""
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
    """Microseconds since 1970; a time without a zone is local time. Spark's literals have a zone."""
    since = (moment if moment.tzinfo is not None else moment.astimezone()) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
