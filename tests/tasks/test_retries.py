"""Which delivery is the last one, and how long the next one waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.tasks import Backoff
from seawall.tasks.retries import RetryPolicy


@given(st.integers(0, 50))
def test_there_are_as_many_tries_as_retries_and_one(retries: int) -> None:
    policy = RetryPolicy(retries)
    tries = [each for each in range(1, 100) if not policy.is_exceeded(each)]
    assert tries == list(range(1, retries + 2))
    assert [policy.is_last(each) for each in tries] == [False] * retries + [True]


def test_the_delay_grows_to_its_bound() -> None:
    policy = RetryPolicy(9, Backoff(0.5, 2.0, 3.0))
    assert [policy.delay_s(each) for each in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("numbers", [(-1.0,), (float("nan"),), (1.0, -2.0), (1.0, 2.0, -1.0), (1.0, 2.0, float("inf"))])
def test_other_back_offs_are_refused(numbers: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInputError, match="back-off of"):
        Backoff(*numbers)


@pytest.mark.parametrize("retries", [-1, 1.5, True, None])
def test_other_numbers_of_retries_are_refused(retries: Any) -> None:
    with pytest.raises(InvalidInputError, match="retries"):
        RetryPolicy(retries)
