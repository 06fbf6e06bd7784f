"""What runs around each job, and the log lines of jobs.

    class Timing(Middleware):
        def after_job(self, job: RunningJob, outcome: Outcome, duration_s: float) -> None:
            histogram.observe(duration_s)

    tasks = TaskQueue(url, topic="mails", middleware=[Timing()])

`before_execute` runs in the order of the list, the others in reverse. If `before_execute` raises, the attempt has
failed and the task does not run. What the others raise is logged and changes nothing. `job.publish` in `after_success`
and in a final `after_failure` adds records to the transaction that ends the job; if that fails, the attempt has failed.
"""

from __future__ import annotations

import logging
from typing import Final

from seawall.tasks.running_job import Outcome, RunningJob

LOG: Final = logging.getLogger("seawall.tasks")

_LEVELS: Final = {
    Outcome.DONE: logging.INFO,
    Outcome.RETRY: logging.WARNING,
    Outcome.DEAD: logging.ERROR,
    Outcome.RETURNED: logging.INFO,
    Outcome.LOST: logging.WARNING,
}


class Middleware:
    """Override what you need; each method does nothing."""

    def before_execute(self, job: RunningJob) -> None:
        """Called before the task runs, on its thread."""

    def after_success(self, job: RunningJob, result: object) -> None:
        """Called when the task has returned, before the job is acked."""

    def after_failure(self, job: RunningJob, error: BaseException, *, is_final: bool) -> None:
        """Called when an attempt has failed; if that `is_final`, the job becomes a dead letter."""

    def after_job(self, job: RunningJob, outcome: Outcome, duration_s: float) -> None:
        """Called at the end of each delivery, when its outcome is in effect."""


class JobLog(Middleware):
    """Writes one line for each delivery, and the traceback of each failure, to the logger `seawall.tasks`.

    The line has the attributes `task`, `seq`, `delivery`, `outcome` and `duration_ms`, for formatters.
    """

    def after_failure(self, job: RunningJob, error: BaseException, *, is_final: bool) -> None:
        """Log why an attempt has failed."""
        LOG.warning(
            "%s, job %d, delivery %d: %s%s",
            *(job.name, job.seq, job.deliveries, "gives up, " if is_final else "", error_text(error)),
            exc_info=(type(error), error, error.__traceback__),
        )

    def after_job(self, job: RunningJob, outcome: Outcome, duration_s: float) -> None:
        """Log the outcome."""
        duration_ms = round(duration_s * 1_000, 3)
        LOG.log(
            _LEVELS[outcome],
            "%s, job %d, delivery %d: %s in %.1f ms",
            *(job.name, job.seq, job.deliveries, outcome.value, duration_ms),
            extra={
                "task": job.name,
                "seq": job.seq,
                "delivery": job.deliveries,
                "outcome": outcome.value,
                "duration_ms": duration_ms,
            },
        )


def error_text(error: BaseException) -> str:
    """An error in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
