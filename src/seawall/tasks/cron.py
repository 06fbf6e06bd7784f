"""Cron expressions: five fields that say at which minutes something is due.

    ┌ minute 0–59   ┌ hour 0–23   ┌ day of month 1–31   ┌ month 1–12 or jan–dec   ┌ day of week 0–7 or sun–sat
    */5             9-17          *                     *                         mon-fri

A field is a list, separated by commas, of `*`, a number or name, a range `a-b`, each of the last with `*` also with a
step: `*/n`, `a-b/n`. 0 and 7 are Sunday. If both days are restricted, that is, neither field begins with `*`, a day
matches if one of them does; else it must match both. These are the rules of Vixie's cron.

Times are those of a time zone. A local time that a clock change skips is not due; one that occurs twice is due at its
first occurrence. This module only computes: the caller passes the time in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from seawall.errors import InvalidInputError


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)
_ITEM: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_MONTH_DAYS_MAX: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
#: Days to search: February 29 on a given weekday comes after forty years at the latest, around 2100.
_SEARCH_DAYS: Final = 366 * 41
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A parsed expression. Create one with `parse_cron`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    #: 0 is Sunday.
    weekdays: frozenset[int]
    #: True if a day matches when one of the two day fields does.
    is_either_day: bool
    zone: tzinfo
    text: str

    def matches_day(self, day: date) -> bool:
        """True if a day is due."""
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.is_either_day else in_month and in_week

    def next_after(self, moment: datetime) -> datetime:
        """The first due time after a moment, in UTC."""
        return next(found for found in self._from(_local_day(moment, self.zone) - _DAY, _DAY) if found > moment)

    def last_until(self, moment: datetime) -> datetime | None:
        """The last due time that is not after a moment, in UTC; None if there is none in the last forty years."""
        return next(
            (found for found in self._from(_local_day(moment, self.zone) + _DAY, -_DAY) if found <= moment), None
        )

    def _from(self, day: date, step: timedelta) -> Iterator[datetime]:
        """The due times from a day on, forwards or backwards."""
        is_back = step < timedelta(0)
        hours, minutes = sorted(self.hours, reverse=is_back), sorted(self.minutes, reverse=is_back)
        for number in range(_SEARCH_DAYS):
            each = day + number * step
            if not self.matches_day(each):
                continue
            for hour in hours:
                for minute in minutes:
                    found = self._moment(each, hour, minute)
                    if found is not None:
                        yield found

    def _moment(self, day: date, hour: int, minute: int) -> datetime | None:
        """A local time in UTC; None if a clock change skips it."""
        local = datetime.combine(day, time(hour, minute), self.zone)
        found = local.astimezone(UTC)
        return found if found.astimezone(self.zone).replace(tzinfo=None) == local.replace(tzinfo=None) else None


def parse_cron(text: str, timezone: str = "UTC") -> CronExpression:
    """Parse an expression; `InvalidInputError` says what is wrong with which field."""
    parts = text.split()
    if len(parts) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise InvalidInputError(f"cron expression {text!r} has {len(parts)} fields: give five ({names})")
    try:
        minutes, hours, days, months, weekdays = (
            frozenset(_values(part, field)) for part, field in zip(parts, _FIELDS, strict=True)
        )
    except ValueError as error:
        raise InvalidInputError(f"cron expression {text!r}: {error}") from error
    is_either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not is_either_day and all(min(days) > _MONTH_DAYS_MAX[month - 1] for month in months):
        raise InvalidInputError(f"cron expression {text!r} is never due: none of its months has such a day")
    weekdays = frozenset(day % 7 for day in weekdays)
    return CronExpression(minutes, hours, days, months, weekdays, is_either_day, _zone(timezone), text)


def _values(part: str, field: _Field) -> Iterator[int]:
    for item in part.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(
                f"{item!r} as {field.name}: write *, a number, a range a-b, or one of these with a step /n"
            )
        star, first, last, step = match.groups()
        if step is not None and not star and last is None:
            raise ValueError(f"{item!r} as {field.name}: a step needs * or a range")
        low, high = (field.low, field.high) if star else (_number(first, field), _number(last or first, field))
        if low > high:
            raise ValueError(f"{item!r} as {field.name}: the range ends before it begins")
        if step is not None and int(step) == 0:
            raise ValueError(f"{item!r} as {field.name}: a step is at least 1")
        yield from range(low, high + 1, int(step or 1))


def _number(text: str, field: _Field) -> int:
    if text.lower() in field.words:
        return field.words.index(text.lower()) + field.low
    if not text.isdigit() or not field.low <= int(text) <= field.high:
        named = f", or {field.words[0]} to {field.words[-1]}" if field.words else ""
        raise ValueError(f"{text!r} as {field.name}: give {field.low} to {field.high}{named}")
    return int(text)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInputError(f"time zone {name!r} is not known here: give a name such as Europe/Berlin") from error


def _local_day(moment: datetime, zone: tzinfo) -> date:
    return moment.astimezone(zone).date()
