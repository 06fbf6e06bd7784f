"""Check the ordering guarantees of a pod against a recorded history.

    history = History(PodShape(goi_entries=1024, pbr_entries=64, copies_needed=2))
    ...                       # run the pod and record its events
    check_all(history)        # raises OrderingViolationError: the property, the reason, the steps

A checker is a pure function that reads the whole history and raises at the first step that violates its property. Some
properties partly imply each other, so several checkers may find one bug; each runs separately, because each names
another cause.

`CHECKERS` has the same names as the table in docs/guarantees.md. A checker knows nothing of roles, files or memory; it
sees only the recorded events, and is only as good as the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, TypeAlias

from seawall.testing.checkers.history import History
from seawall.testing.checkers.order_checks_clients import (
    check_i4,
    check_i7,
    check_i_client,
    check_prop_skip,
    check_property_2,
    check_property_2b,
)
from seawall.testing.checkers.order_checks_log import (
    check_i3,
    check_i5,
    check_i_vis,
    check_property_1,
    check_property_3,
)
from seawall.testing.checkers.order_checks_pod import (
    check_i1,
    check_i2,
    check_i6,
    check_i_collect,
    check_i_wrap,
    check_property_4,
    check_property_5,
)
from seawall.testing.checkers.order_state import OrderingViolationError

__all__ = [
    "CHECKERS",
    "Checker",
    "OrderingViolationError",
    "check_all",
    "check_i1",
    "check_i2",
    "check_i3",
    "check_i4",
    "check_i5",
    "check_i6",
    "check_i7",
    "check_i_client",
    "check_i_collect",
    "check_i_vis",
    "check_i_wrap",
    "check_prop_skip",
    "check_property_1",
    "check_property_2",
    "check_property_2b",
    "check_property_3",
    "check_property_4",
    "check_property_5",
    "violations",
]

Checker: TypeAlias = Callable[[History], None]

CHECKERS: Final = MappingProxyType[str, Checker](
    {
        "Property 1": check_property_1,
        "Property 2": check_property_2,
        "Property 2b": check_property_2b,
        "Property 3": check_property_3,
        "Property 4": check_property_4,
        "Property 5": check_property_5,
        "I1": check_i1,
        "I2": check_i2,
        "I3": check_i3,
        "I4": check_i4,
        "I5": check_i5,
        "I6": check_i6,
        "I7": check_i7,
        "I-VIS": check_i_vis,
        "I-WRAP": check_i_wrap,
        "I-CLIENT": check_i_client,
        "I-COLLECT": check_i_collect,
        "PROP-SKIP": check_prop_skip,
    }
)


def check_all(history: History) -> None:
    """Check a history against all properties; raises `OrderingViolationError` for the first that is violated."""
    for checker in CHECKERS.values():
        checker(history)


def violations(history: History) -> dict[str, OrderingViolationError]:
    """All properties that a history violates, by name, each with the error of its first violation."""
    found: dict[str, OrderingViolationError] = {}
    for name, checker in CHECKERS.items():
        try:
            checker(history)
        except OrderingViolationError as error:
            found[name] = error
    return found
