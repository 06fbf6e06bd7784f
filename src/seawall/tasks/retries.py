"""Decides how often a failed job is tried, and how long it waits in between.

    delivery 1 … retries      an exception returns the job, to be delivered again after the back-off
    delivery retries + 1      an exception makes the job a dead letter
    later deliveries          no attempt: the deliveries before were not all reported, because a worker was killed or
                              lost its lease, and the job may be what kills workers; it becomes a dead letter

The queue counts deliveries, and counts from 1 again after a crash of the server unless the topic has `leases_durable`.
A limit of the topic itself (`max_deliveries`) also holds: the smaller one ends the job. This module only decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seawall.api.queues.jobs import Backoff
from seawall.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a job is tried again after a failure."""

    retries: int = 3
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidInputError(f"{self.retries!r} retries of a task: give a whole number, 0 for none")

    def is_last(self, deliveries: int) -> bool:
        """True if a failure of this delivery is final."""
        return deliveries > self.retries

    def is_exceeded(self, deliveries: int) -> bool:
        """True if the job must not be tried in this delivery."""
        return deliveries > self.retries + 1

    def delay_s(self, deliveries: int) -> float:
        """How long to wait after a failure of this delivery."""
        return self.backoff.delay_s(deliveries)
