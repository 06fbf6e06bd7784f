"""Decisions after failed attempts: the next pause and address, or the error to give up with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seawall.client.connection.attempts import RequestAttempts, SessionAttempts
from seawall.client.connection.retry import FIRST_PAUSE_NS
from seawall.client.connection.targets import parse_target
from seawall.errors import FencedError, OutcomeUnknownError, RetryableError

TARGET = replace(parse_target("seawall://one:1,two:2"), timeout_s=2.0)
S = 1_000_000_000
LOST = ConnectionError("lost")
BUSY = RetryableError("busy")


def request(*, is_repeatable: bool = True) -> RequestAttempts:
    return RequestAttempts(TARGET, 0, is_repeatable=is_repeatable)


def test_a_lost_request_is_repeated_until_the_timeout() -> None:
    attempts = request()
    assert FIRST_PAUSE_NS // 2 <= attempts.pause_ns(LOST, 0, was_sent=True) <= FIRST_PAUSE_NS
    assert attempts.pause_ns(LOST, S, was_sent=False) > 0
    with pytest.raises(RetryableError, match=r"no answer from .*one:1.*: lost") as given_up:
        attempts.pause_ns(LOST, 2 * S, was_sent=False)
    assert given_up.value.__cause__ is LOST


def test_a_refused_request_ends_with_the_refusal() -> None:
    attempts = request(is_repeatable=False)
    assert attempts.pause_ns(BUSY, 0, was_sent=True) > 0
    with pytest.raises(RetryableError) as given_up:
        attempts.pause_ns(BUSY, 2 * S, was_sent=True)
    assert given_up.value is BUSY


def test_a_request_that_must_not_happen_twice_is_not_repeated_once_it_was_sent() -> None:
    attempts = request(is_repeatable=False)
    assert attempts.pause_ns(LOST, 0, was_sent=False) > 0
    with pytest.raises(OutcomeUnknownError, match="lost before the answer"):
        attempts.pause_ns(LOST, 0, was_sent=True)


@pytest.mark.parametrize(("is_repeatable", "kind"), [(True, RetryableError), (False, OutcomeUnknownError)])
def test_a_request_without_an_answer_in_time(is_repeatable: bool, kind: type[Exception]) -> None:
    assert type(request(is_repeatable=is_repeatable).timed_out(TimeoutError())) is kind
    assert "in time" in str(request().timed_out(TimeoutError()))
    assert str(request().timed_out(TimeoutError("after 3 s"))) == "after 3 s"


def test_addresses_are_tried_in_rotation() -> None:
    attempts = SessionAttempts(TARGET, 0)
    assert [attempts.next_address() for _ in range(3)] == ["one:1", "two:2", "one:1"]


def test_a_session_gives_up_after_the_timeout_without_an_answer() -> None:
    attempts = SessionAttempts(TARGET, S)
    assert attempts.failed(LOST, "one:1", 2 * S) is None
    assert attempts.connect_after_ns > 2 * S
    # A connection with records in flight proves nothing before the server answers.
    attempts.connected(is_idle=False)
    assert attempts.connect_after_ns == 0
    error = attempts.lost(LOST, "two:2", 3 * S, others_left=False)
    assert str(error) == "no server at two:2 for 2.0 s: lost"


@pytest.mark.parametrize("reached", [lambda each: each.answered(), lambda each: each.connected(is_idle=True)])
def test_a_reached_server_restarts_the_timeout(reached) -> None:
    attempts = SessionAttempts(TARGET, S)
    reached(attempts)
    assert attempts.lost(LOST, "one:1", 9 * S, others_left=False) is None
    assert attempts.failed(LOST, "one:1", 10 * S) is None
    assert attempts.failed(LOST, "one:1", 11 * S) is not None


def test_a_loss_beside_other_connections_decides_nothing() -> None:
    attempts = SessionAttempts(TARGET, S)
    assert attempts.lost(FencedError("fenced"), "one:1", 9 * S, others_left=True) is None
    assert attempts.connect_after_ns > 9 * S


def test_a_permanent_error_ends_a_session_at_once() -> None:
    fenced = FencedError("another publisher")
    assert SessionAttempts(TARGET, S).failed(fenced, "one:1", S) is fenced


def test_a_session_unknown_to_the_server_is_opened_again_at_once() -> None:
    attempts = SessionAttempts(TARGET, S)
    attempts.failed(LOST, "one:1", S)
    attempts.not_granted()
    assert attempts.connect_after_ns == 0
