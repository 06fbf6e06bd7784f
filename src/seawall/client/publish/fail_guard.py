"""Turns an unexpected error in a sender into the failure of all its undecided records, so that no wait hangs forever.

    with self._guard:            # in the thread or task that sends and receives
        …

INV-SENDER-ENDS: a delivery whose sender fails is decided with the error of the sender.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from seawall.errors import FatalError, SeawallError

LOG: Final = logging.getLogger(__name__)


class FailAll:
    """A context manager that passes an unexpected error to `fail` and suppresses it. Reusable and reentrant.

    Errors of the types `passing` propagate, because the caller handles them. So does a `BaseException` such as
    `KeyboardInterrupt`.
    """

    __slots__ = ("_fail", "_passing")

    def __init__(self, fail: Callable[[SeawallError], None], *passing: type[Exception]) -> None:
        self._fail = fail
        self._passing = passing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return False
        LOG.error("a publisher failed unexpectedly", exc_info=error)
        self._fail(failure_from(error))
        return True


def failure_from(error: Exception) -> SeawallError:
    """The error of all deliveries of a sender that failed with `error`."""
    if isinstance(error, SeawallError):
        return error
    failure = FatalError(f"the publisher failed unexpectedly ({error!r}): open another one")
    failure.__cause__ = error
    return failure
