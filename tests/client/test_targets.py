"""URLs, backoff and refusals: the parts of the client without I/O."""

from __future__ import annotations

import pytest

from seawall.client.connection.refusals import error_of, rejection
from seawall.client.connection.retry import FIRST_PAUSE_NS, LAST_PAUSE_NS, Backoff, deadline_ns, seconds
from seawall.client.connection.targets import parse_target
from seawall.errors import (
    CallerError,
    CorruptionError,
    FatalError,
    FencedError,
    FullError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
    SeawallError,
)
from seawall.wire.format.codes import ErrorClass, ErrorCode
from seawall.wire.lwp2.session import Error


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("seawall://host", ("host:1992",)),
        ("seawall://host:7", ("host:7",)),
        ("seawall://host:7/", ("host:7",)),
        ("seawall://a,b:7", ("a:1992", "b:7")),
        ("seawall://[::1]", ("[::1]:1992",)),
        ("seawall://[::1]:7", ("[::1]:7",)),
    ],
)
def test_urls_name_addresses(url: str, addresses: tuple[str, ...]) -> None:
    target = parse_target(url, token="secret")
    assert target.addresses == addresses
    assert "secret" not in repr(target)
    assert parse_target(str(target)).addresses == addresses


@pytest.mark.parametrize(
    "url",
    [
        *("http://host", "host:1992", "seawall://", "seawall://host:x", "seawall://a,,b"),
        *(f"seawall://{'a' * 64}", "seawall://a..b", f"seawall://{'é' * 300}:7"),
    ],
)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_target(url)


def test_a_timeout_must_be_above_0() -> None:
    with pytest.raises(InvalidInputError, match="above 0"):
        parse_target("seawall://host", timeout_s=0)


def test_pauses_grow_to_a_limit_and_half_of_each_is_random() -> None:
    short, long = Backoff(lambda: 0.0), Backoff(lambda: 1.0)
    pauses = [(short.pause_ns(), long.pause_ns()) for _ in range(40)]
    assert pauses[0] == (FIRST_PAUSE_NS // 2, FIRST_PAUSE_NS)
    assert pauses[1] == (FIRST_PAUSE_NS, 2 * FIRST_PAUSE_NS)
    assert pauses[-1] == (LAST_PAUSE_NS // 2, LAST_PAUSE_NS)
    short.succeeded()
    assert short.pause_ns() == FIRST_PAUSE_NS // 2


def test_deadlines() -> None:
    assert deadline_ns(5, None) is None
    assert deadline_ns(5, 2.0) == 2_000_000_005
    assert seconds(1_500_000_000) == 1.5


@pytest.mark.parametrize(
    ("code", "kind", "error"),
    [
        (ErrorCode.TOPIC_NOT_FOUND, ErrorClass.CALLER, NotFoundError),
        (ErrorCode.FENCED, ErrorClass.CALLER, FencedError),
        (ErrorCode.BACKPRESSURE, ErrorClass.RETRYABLE, FullError),
        (ErrorCode.ACCESS_DENIED, ErrorClass.CALLER, CallerError),
        (0x7777, ErrorClass.RETRYABLE, RetryableError),
        (0x7777, ErrorClass.CORRUPTION, CorruptionError),
        (0x7777, ErrorClass.FATAL, FatalError),
        (0x7777, ErrorClass.OUTCOME_UNKNOWN, OutcomeUnknownError),
    ],
)
def test_refusals_become_typed_errors(code: int, kind: ErrorClass, error: type[SeawallError]) -> None:
    found = error_of(Error(int(code), kind, False, ""))
    assert type(found) is error
    assert f"{int(code):02x}" in str(found)


def test_refused_batches_name_the_reason() -> None:
    assert "does not exist any more" in str(rejection(int(ErrorCode.TOPIC_NOT_FOUND), "events", 4))
    assert type(rejection(int(ErrorCode.INTERNAL), "events", 4)) is FatalError
    assert "does not know" in str(rejection(0x7777, "events", 4))
    assert type(rejection(0x7777, "events", 4)) is CallerError
