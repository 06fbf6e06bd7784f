"""Claimed jobs and the decisions about them that queues for threads and for asyncio share.

A job is a record of a topic of type queue. A claim leases it to a worker; if the worker does not ack it in time,
another one gets it: a job is delivered at least once. `queue` and `aio_queue` have the public API. This module must not
know where a log is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, cast, overload

from seawall.api.publishable import Message, OneRecord, Publishable
from seawall.api.received_record import FEW_RECORDS, ReceivedRecord, received_record, received_records
from seawall.core.jobs import JobOutcome
from seawall.core.transactions import JobAck
from seawall.core.types import Seq
from seawall.errors import InvalidInputError, WrongStateError
from seawall.limits import JOB_NODE_SIZE_MAX, JOBS_MAX
from seawall.wire.format.record_fields import RecordFields
from seawall.wire.format.records import iter_records
from seawall.wire.jobs.options import JobOptions
from seawall.wire.jobs.rows import ClaimedJobs

_MS: Final = 1_000
#: Far above every bound of a time, and far below what a number of 8 bytes holds in milliseconds.
_SECONDS_MAX: Final = 1e12
#: Dead letters that one request can name.
_COUNT_MAX: Final = (1 << 32) - 1


class JobKeys(NamedTuple):
    """Claimed jobs: their seqs, rising, and the lease of each."""

    seqs: Sequence[int]
    lease_ids: Sequence[int]


class PushedJob(NamedTuple):
    """A job pushed under a unique key: its seq, and whether it is new. If not, the seq is that of the job that has
    the key already."""

    seq: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed job waits before it is delivered again: longer after each delivery."""

    first_s: float = 1.0
    factor: float = 2.0
    max_s: float = 300.0

    def __post_init__(self) -> None:
        if not (0 <= self.first_s <= _SECONDS_MAX and 0 <= self.max_s <= _SECONDS_MAX and self.factor >= 0):
            raise InvalidInputError(
                f"a back-off of {self.first_s} s, {self.factor} times longer each time, up to {self.max_s} s: give "
                f"numbers that are not negative, and times up to {_SECONDS_MAX:.0e} s"
            )

    def delay_s(self, deliveries: int) -> float:
        """The delay after a failed delivery; `deliveries` counts from 1."""
        try:
            return min(self.max_s, self.first_s * self.factor ** (deliveries - 1))
        except OverflowError:
            return self.max_s


class ClaimedJob:
    """A job that is leased to this worker: its record, and how to name it to the queue."""

    __slots__ = ("_is_decided", "deadline_ms", "deliveries", "lease_id", "node", "record", "topic")

    def __init__(
        self, topic: str, node: str, record: ReceivedRecord, lease_id: int, deadline_ms: int, deliveries: int
    ) -> None:
        #: The queue, and the worker that has the job.
        self.topic = topic
        self.node = node
        self.record = record
        self.lease_id = lease_id
        #: When the lease ends, in milliseconds since the Unix epoch.
        self.deadline_ms = deadline_ms
        #: How often the job was delivered, this time included.
        self.deliveries = deliveries
        self._is_decided = False

    @property
    def seq(self) -> Seq:
        """The seq of the record."""
        return self.record.seq

    @property
    def value(self) -> bytes:
        """The value of the record."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """The key of the record."""
        return self.record.key

    @property
    def is_decided(self) -> bool:
        """True after an ack or a nack of this job."""
        return self._is_decided

    def json(self) -> Any:
        """The value parsed as JSON; `ValueError` if it is none."""
        return self.record.json()

    def decided(self) -> None:
        """Note that the job was acked or nacked."""
        self._is_decided = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.seq}, delivery {self.deliveries}>"


J_co = TypeVar("J_co", bound=ClaimedJob, covariant=True)


class Jobs(Sequence[J_co]):
    """The jobs of one claim, by rising seq: a sequence that is equal to a list of the same jobs.

    The jobs are made when one of them is first looked at. `ack` and `nack` of all of them do not need them.
    """

    __slots__ = ("_claimed", "_is_decided", "_made", "_make", "_making")

    def __init__(self, claimed: ClaimedJobs, make: Callable[[ReceivedRecord, int, int, int], J_co]) -> None:
        """`make` makes one job of its record, lease, deadline and deliveries."""
        self._claimed = claimed
        self._make = make
        #: All threads that look at a job see the same object: they are made once, under this lock.
        self._making = Lock()
        self._made: list[J_co] | None = None
        self._is_decided = False

    def __len__(self) -> int:
        return len(self._claimed.rows)

    @overload
    def __getitem__(self, index: int) -> J_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[J_co]: ...
    def __getitem__(self, index: int | slice) -> J_co | list[J_co]:
        return self._jobs()[index]

    def __iter__(self) -> Iterator[J_co]:
        return iter(self._jobs())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, Jobs)) and len(self) == len(other) and self._jobs() == [*other]

    def __hash__(self) -> int:
        raise TypeError(f"unhashable type: {type(self).__name__!r}, which equals a list of the same jobs")

    def __repr__(self) -> str:
        return repr(self._jobs())

    @property
    def keys(self) -> JobKeys:
        """How to name the jobs to the queue."""
        rows = self._claimed.rows
        return JobKeys(rows["seq"].tolist(), rows["lease_id"].tolist())

    def decided(self) -> None:
        """Note that all jobs were acked or nacked."""
        with self._making:
            self._is_decided = True
            for job in self._made or ():
                job.decided()

    def _jobs(self) -> list[J_co]:
        if self._made is None:
            with self._making:
                if self._made is None:
                    self._made = self._make_all()
        return self._made

    def _make_all(self) -> list[J_co]:
        rows = self._claimed.rows
        leases = (rows[name].tolist() for name in ("lease_id", "deadline_ms", "deliveries"))
        made = [*map(self._make, _records(self._claimed), *leases)]
        if self._is_decided:
            for job in made:
                job.decided()
        # The records have copies of their bytes: the block, a part of a larger one, may be freed.
        self._claimed = self._claimed._replace(block=memoryview(b""))
        return made


#: What `ack`, `nack` and `extend` of a queue accept.
Selection: TypeAlias = "ClaimedJob | Iterable[ClaimedJob]"


def selected(jobs: Selection) -> Sequence[ClaimedJob]:
    """The jobs of a selection, by rising seq; raises if there are none, or too many for one call."""
    if isinstance(jobs, Jobs):
        found: Sequence[ClaimedJob] = jobs
    else:
        found = [jobs] if isinstance(jobs, ClaimedJob) else sorted(jobs, key=lambda job: job.seq)
    if not 1 <= len(found) <= JOBS_MAX:
        raise InvalidInputError(f"{len(found)} jobs in one call: give 1 to {JOBS_MAX}")
    return found


def keys_of(jobs: Sequence[ClaimedJob]) -> JobKeys:
    """How to name jobs to the queue."""
    return jobs.keys if isinstance(jobs, Jobs) else JobKeys([job.seq for job in jobs], [job.lease_id for job in jobs])


def rising(jobs: JobKeys) -> JobKeys:
    """The jobs by rising seq, each once, under its latest lease."""
    leases = dict(sorted(zip(*jobs, strict=True)))
    return JobKeys(tuple(leases), tuple(leases.values()))


def job_acks(jobs: Sequence[ClaimedJob]) -> list[JobAck]:
    """The acks of jobs, each of one queue and worker."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for job in jobs:
        found.setdefault((job.topic, job.node), {})[job.seq] = job.lease_id
    acks = []
    for owner, held in found.items():
        leases = sorted(held.items())
        for first in range(0, len(leases), JOBS_MAX):
            seqs, lease_ids = zip(*leases[first : first + JOBS_MAX], strict=True)
            acks.append(JobAck(*owner, seqs, lease_ids))
    return acks


def milliseconds(seconds: float, what: str) -> int:
    """Convert a duration that a user gave."""
    if not 0 <= seconds <= _SECONDS_MAX:
        raise InvalidInputError(f"{what} of {seconds} s: give a number of seconds from 0 to {_SECONDS_MAX:.0e}")
    return round(seconds * _MS)


def _records(claimed: ClaimedJobs) -> Iterator[ReceivedRecord]:
    """The record of each claimed job."""
    seqs, timestamps_ns = claimed.rows["seq"], claimed.rows["timestamp_ns"].tolist()
    if len(seqs) > FEW_RECORDS:
        fields = RecordFields(claimed.block)
        # Readers skip records that were published as deleted, which are jobs like any other.
        if len(fields) == len(seqs):
            return received_records(fields, seqs, timestamps_ns)
    return map(received_record, iter_records(claimed.block), seqs.tolist(), timestamps_ns)


def with_options(records: Publishable, options: JobOptions) -> Publishable:
    """Records that carry options; the records themselves if there are none."""
    headers = options.headers()
    if not headers:
        return records
    if isinstance(records, (bytes, bytearray, memoryview, str, Mapping, Message)):
        return _with_headers(records, headers)
    if hasattr(records, "schema") or hasattr(records, "iloc"):
        raise InvalidInputError(f"a {type(records).__name__} cannot have a delay or a priority: push a list of records")
    return [_with_headers(record, headers) for record in cast(Iterable[OneRecord], records)]


def _with_headers(record: OneRecord, added: list[tuple[bytes, bytes]]) -> Message:
    texts: list[tuple[str, bytes | str]] = [(name.decode(), value) for name, value in added]
    if not isinstance(record, Message):
        return Message(bytes(record) if isinstance(record, (bytearray, memoryview)) else record, headers=texts)
    own = record.headers.items() if isinstance(record.headers, Mapping) else record.headers or ()
    # The first header of a name counts.
    return replace(record, headers=[*texts, *own])


def lease_of(lease_s: float | None) -> int:
    """The lease that a worker asked for in milliseconds; 0 for that of the topic."""
    return 0 if lease_s is None else max(1, milliseconds(lease_s, "a lease"))


def not_before(now_ms: int, delay_s: float) -> int:
    """When a job with a delay may be claimed first; 0 for at once."""
    delay_ms = milliseconds(delay_s, "a delay")
    return now_ms + delay_ms if delay_ms else 0


def unique_message(record: OneRecord, key: str | bytes, not_before_ms: int, priority: int) -> tuple[Message, bytes]:
    """The record that is pushed under a unique key, and the key as bytes."""
    name = key.encode() if isinstance(key, str) else key
    return _with_headers(record, JobOptions(not_before_ms, priority, name).headers()), name


def redrive_count(count: int | None) -> int:
    """How many dead letters to move back, as backends get it; 0 for all."""
    if count is None:
        return 0
    if count < 1:
        raise InvalidInputError(f"{count} dead letters: move at least 1, or give None for all")
    return min(count, _COUNT_MAX)


def check_node(node: str) -> None:
    """Refuse an invalid name of a worker."""
    size = len(node.encode())
    if not 1 <= size <= JOB_NODE_SIZE_MAX:
        raise InvalidInputError(f"a worker name of {size} bytes: 1 to {JOB_NODE_SIZE_MAX} are allowed")


def not_a_queue(topic: str) -> WrongStateError:
    """The error for a queue command on a log topic."""
    return WrongStateError(f"topic {topic!r} is not a queue; create it with type='queue'")


def decide(jobs: Sequence[ClaimedJob], outcome: JobOutcome) -> JobOutcome:
    """Mark jobs as decided, after the queue has acked or nacked them; returns the outcome."""
    if isinstance(jobs, Jobs):
        jobs.decided()
    else:
        for job in jobs:
            job.decided()
    return outcome


def extended(jobs: Sequence[ClaimedJob], outcome: JobOutcome) -> JobOutcome:
    """Set the deadlines of extended jobs; returns the outcome."""
    skipped = set(outcome.skipped)
    for job in jobs:
        if job.seq not in skipped:
            job.deadline_ms = outcome.deadline_ms
    return outcome


class HeldJobs:
    """The claimed jobs of a work loop, and the one that the loop works on. Threads may share it."""

    #: How long one claim of a work loop waits for jobs.
    WAIT_S: ClassVar = 20.0

    def __init__(self, backoff: Backoff | None) -> None:
        self._backoff = backoff or Backoff()
        self._jobs: Sequence[ClaimedJob] = ()
        self._current: ClaimedJob | None = None
        #: How long a lease lasts, in milliseconds; 0 before the first claim.
        self.lease_ms = 0

    def hold(self, jobs: Sequence[ClaimedJob], lease_ms: int) -> None:
        """Hold newly claimed jobs; those before them are decided."""
        self._jobs, self.lease_ms = jobs, lease_ms

    def begin(self, job: ClaimedJob) -> None:
        """The loop works on this job now."""
        self._current = job

    def end(self) -> None:
        """The loop is done with its job."""
        self._current = None

    @property
    def pause_s(self) -> float:
        """How long to wait before the leases are extended again: a late extension still finds them alive."""
        return self.lease_ms / 3 / _MS

    @property
    def undecided(self) -> list[ClaimedJob]:
        """The jobs whose leases must be kept."""
        return [job for job in self._jobs if not job.is_decided]

    def returns(self) -> Iterator[tuple[list[ClaimedJob], float]]:
        """The jobs to return after the loop has ended, with their delays: the current one has failed."""
        failed = [job for job in self.undecided if job is self._current]
        rest = [job for job in self.undecided if job is not self._current]
        if failed:
            yield failed, self._backoff.delay_s(failed[0].deliveries)
        if rest:
            yield rest, 0.0
