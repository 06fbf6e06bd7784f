"""Builds the requests of queues, joins those of several callers into one, and splits its answer. No I/O.

    claims     one request claims the jobs of all callers; the first callers get theirs first
    changes    one request acks, nacks or extends the jobs of all callers

Callers may share a request if everything but their jobs is the same: topic, worker, lease and delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from seawall.api.queues.jobs import JobKeys, rising
from seawall.core.jobs import JobOutcome
from seawall.core.types import TopicId
from seawall.errors import InvalidInputError
from seawall.kernels.codec.blocks import RECORDS_VERSION_2, scan_block
from seawall.limits import CLAIM_WAIT_MS_MAX, JOBS_MAX
from seawall.wire.jobs.rows import ClaimedJobs
from seawall.wire.lwp2.jobs import JobAck, JobExtend, JobNack

_NS_PER_MS: Final = 1_000_000

#: Makes the request that changes jobs of a worker, from its topic, its name, and the seqs and leases.
MakeChange: TypeAlias = Callable[[TopicId, str, tuple[int, ...], tuple[int, ...]], JobAck | JobNack | JobExtend]


class Claim(NamedTuple):
    """A caller that wants jobs, and until when it waits for them."""

    wanted: int
    deadline_ns: int


def check_count(count: int) -> None:
    """Refuse to claim or to look at no jobs, before others share the request."""
    if count < 1:
        raise InvalidInputError(f"{count} jobs: claim at least 1")


def wait_ms(claims: Sequence[Claim], now_ns: int, timeout_s: float) -> int:
    """How long one request for these claims waits: no caller waits longer than it wants.

    Half of the timeout is left to find a server again if the connection is lost while the claim waits.
    """
    left_ms = -((now_ns - min(claim.deadline_ns for claim in claims)) // _NS_PER_MS)
    return max(0, min(left_ms, CLAIM_WAIT_MS_MAX, int(timeout_s * 500)))


def joined_claims(queued: Sequence[Claim]) -> int:
    """How many of the queued claims share the next request."""
    total = 0
    for number, claim in enumerate(queued):
        total += claim.wanted
        if total > JOBS_MAX:
            return max(1, number)
    return len(queued)


def split_claimed(claimed: ClaimedJobs, claims: Sequence[Claim]) -> list[ClaimedJobs]:
    """The jobs of each claim, for the jobs of one request."""
    if len(claims) == 1:
        return [claimed]
    rows, block = claimed.rows, claimed.block
    offsets = np.zeros(rows.size + 1, np.int64)
    if rows.size:
        scan_block(np.frombuffer(block, np.uint8), 0, len(block), RECORDS_VERSION_2, rows.size, offsets)
    found, first = [], 0
    for claim in claims:
        last = min(first + claim.wanted, rows.size)
        found.append(claimed._replace(rows=rows[first:last], block=block[int(offsets[first]) : int(offsets[last])]))
        first = last
    return found


def joined_jobs(queued: Sequence[JobKeys]) -> int:
    """How many of the queued changes share the next request: their jobs differ."""
    seqs: set[int] = set()
    for number, jobs in enumerate(queued):
        if number and (len(seqs) + len(jobs.seqs) > JOBS_MAX or not seqs.isdisjoint(jobs.seqs)):
            return number
        seqs.update(jobs.seqs)
    return len(queued)


def join_jobs(changes: Sequence[JobKeys]) -> JobKeys:
    """The jobs of all changes, which differ, by rising seq."""
    if len(changes) == 1:
        return changes[0]
    seqs = [seq for jobs in changes for seq in jobs.seqs]
    return rising(JobKeys(seqs, [lease_id for jobs in changes for lease_id in jobs.lease_ids]))


def split_outcome(outcome: JobOutcome, changes: Sequence[JobKeys]) -> list[JobOutcome]:
    """The outcome of each change, for the outcome of one request."""
    skipped = set(outcome.skipped)
    found = []
    for jobs in changes:
        own = tuple(seq for seq in jobs.seqs if seq in skipped)
        found.append(outcome._replace(changed=len(jobs.seqs) - len(own), skipped=own))
    return found


def keys_of_rows(claimed: ClaimedJobs) -> JobKeys:
    """How to name claimed jobs to the queue."""
    return rising(JobKeys(claimed.rows["seq"].tolist(), claimed.rows["lease_id"].tolist()))
