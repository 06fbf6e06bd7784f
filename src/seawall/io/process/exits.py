"""The end of the interpreter: what is still under way is delivered within a bound, and the rest is reported.

    finish_at_exit(sender)                # from now on, for as long as it lives
    report_undelivered(3)                 # for who finds records that nobody will deliver any more

Handlers of `atexit` run after the main program, also after `sys.exit` and an exception, while daemon threads still run.
They do not run after a signal that ends the process, nor after `os._exit`, by which children of `multiprocessing` end.
What was not delivered is a `RuntimeWarning`, which Python prints to standard error unless the program filters it.

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
    """What may have records under way when the interpreter ends."""

    def finish(self, timeout_s: float) -> int:
        """Deliver what is under way, for so long at the most; how many records were not delivered."""
        ...


_unfinished: weakref.WeakSet[Unfinished] = weakref.WeakSet()


def finish_at_exit(held: Unfinished) -> None:
    """Have `finish` called when the interpreter ends, for as long as the object lives."""
    _unfinished.add(held)


def report_undelivered(count: int) -> None:
    """Warn about records that were handed in and are not stored."""
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
            # Whoever is impatient is still told what is lost.
            deadline = 0.0
            undelivered += held.finish(0.0)
    report_undelivered(undelivered)
