"""Pressure of a ring: two watermarks, and a delay before it counts as sustained."""

from __future__ import annotations

import pytest

from seawall.broker.watermarks import Pressure, Watermarks
from seawall.errors import InvalidInputError

MS = 1_000_000


def test_between_the_watermarks_nothing_changes() -> None:
    marks = Watermarks(80, 50, 1_000)
    steps = [(79, Pressure.CALM), (80, Pressure.HIGH), (51, Pressure.HIGH), (50, Pressure.HIGH), (49, Pressure.CALM)]
    steps += [(79, Pressure.CALM), (100, Pressure.HIGH)]
    assert [marks.observe(used, 100, 0) for used, _ in steps] == [pressure for _, pressure in steps]


def test_pressure_that_lasts_is_sustained_until_it_ends() -> None:
    marks = Watermarks(80, 50, 1_000)
    assert marks.observe(90, 100, 5 * MS) is Pressure.HIGH
    assert marks.observe(60, 100, 1_005 * MS - 1) is Pressure.HIGH
    assert marks.observe(60, 100, 1_005 * MS) is Pressure.SUSTAINED
    assert marks.observe(60, 100, 4 * MS) is Pressure.HIGH  # a clock that runs back takes nothing else back
    assert marks.observe(60, 100, 1_005 * MS) is Pressure.SUSTAINED
    assert marks.observe(10, 100, 1_006 * MS) is Pressure.CALM
    assert marks.observe(80, 100, 1_007 * MS) is Pressure.HIGH


@pytest.mark.parametrize(("high", "low"), [(50, 50), (40, 50), (101, 50), (80, 0), (80, -1)])
def test_invalid_watermarks_are_refused(high: int, low: int) -> None:
    with pytest.raises(InvalidInputError, match="low one above 0"):
        Watermarks(high, low)
