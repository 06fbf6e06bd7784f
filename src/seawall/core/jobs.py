"""Results of the commands of a queue, for every kind of log: the outcome of an ack, and the counts of a queue."""

from __future__ import annotations

from typing import NamedTuple


class JobOutcome(NamedTuple):
    """What an ack, nack or extension did, and the queue after it."""

    #: How many jobs were leased to the caller, and are acked, returned or extended now.
    changed: int
    #: The jobs that were not leased to the caller any more; nothing happened to them.
    skipped: tuple[int, ...]
    #: Jobs that can be claimed now, and jobs that are leased.
    ready: int
    leased: int
    #: Extensions: when the leases end, in milliseconds since the Unix epoch; 0 for the others.
    deadline_ms: int = 0


class QueueCounts(NamedTuple):
    """The jobs of a queue by their state, exact at the time of the call."""

    #: Jobs that can be claimed now.
    ready: int
    #: Jobs that a worker holds.
    leased: int
    #: Jobs whose delay has not elapsed.
    delayed: int
    #: Jobs that were moved to the dead-letter topic since the queue was created.
    dead_lettered: int
    #: When the oldest job that is not done was stored, in milliseconds since the Unix epoch; None without jobs.
    oldest_ms: int | None
