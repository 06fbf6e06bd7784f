"""Cron expressions against a scan of every minute, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.tasks.cron import parse_cron

MINUTE = timedelta(minutes=1)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def item(low: int, high: int, words: tuple[str, ...]) -> st.SearchStrategy[str]:
    """One item of a list: a star, a number, a name, a range, with or without a step."""
    number = st.integers(low, high)
    steps = st.integers(1, 20).map(lambda step: f"/{step}")
    spans = st.tuples(number, number).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    ranges = st.just("*") | spans
    return (
        st.just("*")
        | number.map(str)
        | (st.sampled_from(words) if words else st.nothing())
        | ranges
        | st.tuples(ranges, steps).map("".join)
    )


def field(low: int, high: int, words: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    return st.lists(item(low, high, words), min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12, MONTHS), field(0, 7, WEEKDAYS))


@cache
def allowed(text: str, low: int, high: int, words: tuple[str, ...] = ()) -> frozenset[int]:
    """The values of a field, by trying each value against each item."""
    found = set()
    for value in range(low, high + 1):
        for each in text.split(","):
            span, _, step = each.partition("/")
            first, _, last = span.partition("-")
            if first in words:
                first = str(words.index(first) + low)
            start, end = (low, high) if span == "*" else (int(first), int(last or first))
            if start <= value <= end and (value - start) % int(step or 1) == 0:
                found.add(value)
    return frozenset(found)


def is_due(parts: tuple[str, ...], moment: datetime) -> bool:
    """Whether a minute is due."""
    minute, hour, day, month, weekday = parts
    if moment.minute not in allowed(minute, 0, 59) or moment.hour not in allowed(hour, 0, 23):
        return False
    if moment.month not in allowed(month, 1, 12, MONTHS):
        return False
    in_month = moment.day in allowed(day, 1, 31)
    in_week = (moment.weekday() + 1) % 7 in {each % 7 for each in allowed(weekday, 0, 7, WEEKDAYS)}
    if day[0] != "*" and weekday[0] != "*":
        return in_month or in_week
    return in_month and in_week


@given(EXPRESSIONS, st.integers(0, 400 * 24 * 60))
def test_neighbouring_ticks_are_those_of_a_scan_of_every_minute(parts: tuple[str, ...], minutes: int) -> None:
    moment = datetime(2023, 12, 1, 0, 0, 30, tzinfo=UTC) + minutes * MINUTE
    cron = parse_cron(" ".join(parts))
    due = cron.next_after(moment)
    last = cron.last_until(moment)
    assert last is not None
    assert last <= moment < due
    assert is_due(parts, due)
    assert is_due(parts, last)
    first = moment.replace(second=0, microsecond=0)
    # Days without a tick may follow for years: scan the two days beside the ticks and the moment.
    scanned = [first + number * MINUTE for number in range(1, 500)] + [
        due - number * MINUTE for number in range(1, 500)
    ]
    assert not [each for each in scanned if moment < each < due and is_due(parts, each)]
    scanned = [first - number * MINUTE for number in range(500)] + [last + number * MINUTE for number in range(1, 500)]
    assert not [each for each in scanned if last < each <= moment and is_due(parts, each)]


def ticks(text: str, start: datetime, count: int, timezone: str = "UTC") -> list[str]:
    cron, found = parse_cron(text, timezone), []
    for _ in range(count):
        start = cron.next_after(start)
        found.append(start.astimezone(cron.zone).strftime("%m-%d %H:%M %Z"))
    return found


def test_known_ticks() -> None:
    start = datetime(2024, 2, 28, 12, 0, tzinfo=UTC)
    assert ticks("*/20 9-10 * * *", start, 4) == [
        *("02-29 09:00 UTC", "02-29 09:20 UTC", "02-29 09:40 UTC", "02-29 10:00 UTC"),
    ]
    assert ticks("0 0 1,15 * mon", start, 4) == [
        "03-01 00:00 UTC",
        "03-04 00:00 UTC",
        "03-11 00:00 UTC",
        "03-15 00:00 UTC",
    ]
    assert ticks("0 0 * MAR-apr 7", start, 2) == ["03-03 00:00 UTC", "03-10 00:00 UTC"]


def test_february_29_is_found_across_a_century() -> None:
    cron = parse_cron("0 0 29 2 *")
    assert cron.next_after(datetime(2096, 3, 1, tzinfo=UTC)) == datetime(2104, 2, 29, tzinfo=UTC)
    assert cron.last_until(datetime(2104, 2, 28, tzinfo=UTC)) == datetime(2096, 2, 29, tzinfo=UTC)
    on_sundays = parse_cron("0 0 29 2 */7")
    assert on_sundays.next_after(datetime(2088, 3, 1, tzinfo=UTC)) == datetime(2128, 2, 29, tzinfo=UTC)


def test_a_tick_that_is_now_is_the_last_one_and_not_the_next() -> None:
    now = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
    cron = parse_cron("* * * * *")
    assert cron.last_until(now) == now
    assert cron.next_after(now) == now + MINUTE


def test_a_local_time_that_is_skipped_is_not_due_and_one_that_repeats_is_due_once() -> None:
    spring = datetime(2024, 3, 30, 12, 0, tzinfo=UTC)
    assert ticks("30 2 * * *", spring, 2, "Europe/Berlin") == ["04-01 02:30 CEST", "04-02 02:30 CEST"]
    autumn = datetime(2024, 10, 26, 12, 0, tzinfo=UTC)
    assert ticks("30 2 * * *", autumn, 2, "Europe/Berlin") == ["10-27 02:30 CEST", "10-28 02:30 CET"]


@given(st.sampled_from(["*/7 * * * *", "0 2 * * *", "30 1-3 * * *"]), st.booleans(), st.integers(3, 8))
def test_local_ticks_are_those_of_a_scan_of_every_minute(text: str, is_spring: bool, hours: int) -> None:
    zone = ZoneInfo("America/New_York")
    cron = parse_cron(text, "America/New_York")
    # The clocks change at 7 and at 6 o'clock UTC.
    moment = datetime(2024, 3, 10, hours, tzinfo=UTC) if is_spring else datetime(2024, 11, 3, hours, tzinfo=UTC)
    parts = tuple(text.split())
    expected = []
    seen = {(moment - number * MINUTE).astimezone(zone).replace(tzinfo=None) for number in range(120)}
    for number in range(1, 400):
        local = (moment + number * MINUTE).astimezone(zone).replace(tzinfo=None)
        if local not in seen and is_due(parts, local):
            expected.append(moment + number * MINUTE)
        seen.add(local)
    found, at = [], moment
    for _ in expected:
        at = cron.next_after(at)
        found.append(at)
    assert found == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("* * * *", "has 4 fields"),
        ("", "has 0 fields"),
        ("60 * * * *", "'60' as minute: give 0 to 59"),
        ("* 24 * * *", "'24' as hour"),
        ("* * 0 * *", "'0' as day of month"),
        ("* * * 13 *", "'13' as month: give 1 to 12, or jan to dec"),
        ("* * * * 8", "'8' as day of week: give 0 to 7, or sun to sat"),
        ("* * * mon *", "'mon' as month"),
        ("5/15 * * * *", "a step needs * or a range"),
        ("*/0 * * * *", "a step is at least 1"),
        ("30-10 * * * *", "the range ends before it begins"),
        ("1,,2 * * * *", "'' as minute"),
        ("-5 * * * *", "'-5' as minute"),
        ("1-2-3 * * * *", "'1-2-3' as minute"),
        ("@daily", "has 1 fields"),
        ("0 0 30 2 *", "never due"),
        ("0 0 31 2,4,jun *", "never due"),
    ],
)
def test_other_expressions_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_cron(text)
    assert complaint in str(caught.value)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="Mars/Base"):
        parse_cron("* * * * *", "Mars/Base")
