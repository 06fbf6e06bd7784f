"""What a sender does with an error that nobody expected: it fails everything undecided, so that no wait is for ever.

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
    """A context that hands an unexpected error to `fail` and ends it there. May be entered again, and within itself.

    Errors in `passing` are expected by whoever is around, and pass; so does what is no `Exception`.
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
        self._fail(broken_by(error))
        return True


def broken_by(error: Exception) -> SeawallError:
    """The error that deliveries of a broken sender are told."""
    if isinstance(error, SeawallError):
        return error
    broken = FatalError(f"the publisher failed unexpectedly ({error!r}): open another one")
    broken.__cause__ = error
    return broken
