"""The claims that wait for the jobs of one queue, and how ready jobs are shared among them.

    waiting   first come, first served
    cohort    with `claim_jitter_ms` claims are gathered for that time, and then share the ready jobs evenly, in
              proportion to how many each of them wants
    watcher   one of the waiting threads watches for new jobs, and serves all claims of the queue

A claim is served at most once, and none is withdrawn while claims are served: leased jobs always have an owner. This
module must not know how jobs are leased.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from seawall.wire.jobs.rows import ClaimedJobs


class Claim:
    """One call that wants jobs: a worker, how many, and for how long."""

    __slots__ = ("_wake", "count_max", "error", "is_done", "lease_ms", "may_watch", "node", "result")

    def __init__(self, node: str, count_max: int, lease_ms: int, wake: Callable[[], None], *, may_watch: bool) -> None:
        """`wake` is called on any thread when the claim is decided, or, if it `may_watch`, when it is the watcher."""
        self.node = node
        self.count_max = count_max
        self.lease_ms = lease_ms
        self._wake = wake
        self.may_watch = may_watch
        self.result: ClaimedJobs | None = None
        self.error: BaseException | None = None
        self.is_done = False

    def wake(self) -> None:
        """Wake the caller."""
        self._wake()

    def decide(self, result: ClaimedJobs | None, error: BaseException | None = None) -> None:
        """Set the outcome and wake the caller."""
        self.result, self.error, self.is_done = result, error, True
        self._wake()


class ClaimLine:
    """The claims that wait for jobs of one queue. Threads may share it."""

    def __init__(self) -> None:
        self.mutex = Lock()
        #: Held by the thread that serves the claims: none of them is withdrawn meanwhile.
        self.serving = Lock()
        self._waiting: list[Claim] = []
        #: When the cohort that is being gathered is served, in milliseconds of the clock; 0 without one.
        self.cohort_at_ms = 0
        #: The claim whose thread watches for new jobs.
        self.watcher: Claim | None = None

    def __len__(self) -> int:
        """How many claims wait."""
        return len(self._waiting)

    def add(self, claim: Claim, now_ms: int, jitter_ms: int) -> None:
        """Let a claim wait; with `jitter_ms` the first one begins a cohort."""
        with self.mutex:
            self._waiting.append(claim)
            if jitter_ms and not self.cohort_at_ms:
                self.cohort_at_ms = now_ms + jitter_ms

    def remove(self, claim: Claim) -> None:
        """Withdraw a claim, unless it is decided. Waits while claims are served."""
        with self.serving, self.mutex:
            if claim in self._waiting:
                self._waiting.remove(claim)

    def due(self, now_ms: int) -> list[Claim]:
        """The claims to serve now, first come first; none while a cohort is gathered. The caller holds `serving`."""
        with self.mutex:
            if self.cohort_at_ms > now_ms:
                return []
            self.cohort_at_ms = 0
            return list(self._waiting)

    def decided(self, claim: Claim) -> None:
        """A claim has its outcome. The caller holds `serving`."""
        with self.mutex:
            self._waiting.remove(claim)

    def fail(self, error: BaseException) -> None:
        """No claim that waits can be served any more."""
        with self.serving, self.mutex:
            failed, self._waiting = self._waiting, []
        for claim in failed:
            claim.decide(None, error)

    def watches(self, claim: Claim) -> bool:
        """True if the thread of a claim is to watch for new jobs."""
        with self.mutex:
            if self.watcher is None and claim in self._waiting:
                self.watcher = claim
            return self.watcher is claim

    def stop_watching(self, claim: Claim) -> None:
        """Let the thread of another claim watch, if this one did."""
        with self.mutex:
            if self.watcher is not claim:
                return
            following = self.watcher = next((each for each in self._waiting if each.may_watch), None)
        if following is not None:
            following.wake()


def shares(wanted: Sequence[int], ready: int) -> list[int]:
    """Share ready jobs among claims, in proportion to how many each wants; never more than that."""
    total = sum(wanted)
    if total <= ready:
        return list(wanted)
    found = [ready * count // total for count in wanted]
    left = ready - sum(found)
    for number, count in enumerate(wanted):
        if left and found[number] < count:
            found[number] += 1
            left -= 1
    return found
