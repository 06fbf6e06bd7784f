"""Flushes undelivered records when the interpreter exits, within a time limit, and warns about the rest.

    finish_at_exit(sender)                # flush this object at exit, for as long as it lives
    report_undelivered(3)                 # warn about records that will never be delivered

`atexit` handlers run after the main program, also after `sys.exit` and an exception, while daemon threads still run.
They do not run after a signal that ends the process, nor after `os._exit`, which ends children of `multiprocessing`.
Undelivered records are a `RuntimeWarning`, which Python prints to standard error unless the program filters it.

This module must not know what a record is.
"""

from __future__ import annotations

import atexit
import time
import warnings
import weakref
from typing import Protocol

from seawall.limits import EXIT_FLUSH_S

__all__ = ["Unfinished", "finish_at_exit", "report_undelivered"]


class Unfinished(Protocol):
    """An object that may have records in flight when the interpreter exits."""

    def finish(self, timeout_s: float) -> int:
        """Deliver the records in flight within `timeout_s`; returns how many were not delivered."""
        ...


_unfinished: weakref.WeakSet[Unfinished] = weakref.WeakSet()


def finish_at_exit(held: Unfinished) -> None:
    """Call `finish` of this object when the interpreter exits, if the object still lives then."""
    _unfinished.add(held)


def report_undelivered(count: int) -> None:
    """Warn about published records that were not delivered."""
    if count:
        warnings.warn(
            f"{count} records were handed in and not delivered before their log was given up: close publishers and "
            "logs, or wait for the deliveries",
            RuntimeWarning,
            stacklevel=2,
        )


@atexit.register
def _finish_all() -> None:
    deadline = time.monotonic() + EXIT_FLUSH_S
    undelivered = 0
    for held in list(_unfinished):
        try:
            undelivered += held.finish(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            # Stop waiting, and still report what is lost.
            deadline = 0.0
            undelivered += held.finish(0.0)
    report_undelivered(undelivered)
