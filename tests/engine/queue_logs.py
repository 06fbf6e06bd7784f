"""An embedded log with queues whose time a test controls, and threads that a test waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from simulated_log import SMALL, simulated_machine

from seawall.api.queues.jobs import JobKeys
from seawall.api.queues.queue import Job, Queue
from seawall.api.received_record import ReceivedRecord
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.commit.appends import Append
from seawall.engine.queues.claims import ClaimLine
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.errors import SeawallError
from seawall.testing import SimClock, SimDisk
from seawall.topics.gaps import Gap
from seawall.wire.format.records import Record, encode_record
from seawall.wire.jobs.rows import ClaimedJobs

NS_PER_MS = 1_000_000
WAIT_S = 30
#: A wait that no test reaches: it ends by what the test does.
LONG_S = 20.0


class QueueLog:
    """A log on a simulated disk; its clock only moves when the test moves it."""

    def __init__(self, settings: StoreSettings = SMALL, **config: Any) -> None:
        self.settings = settings
        self.disk = SimDisk(seed=1)
        self.machine: Machine = simulated_machine(self.disk)
        assert isinstance(self.machine.clock, SimClock)
        self.clock = self.machine.clock
        self.log = self._open()
        self.log.create_topic("jobs", type="queue", **config)

    def _open(self) -> EmbeddedLog:
        return EmbeddedLog(open_store(self.machine, "/data", self.settings))

    def queue(self, node: str = "w", topic: str = "jobs") -> Queue:
        return self.log.queue(topic, node=node)

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and let those who wait look at the clock."""
        self.clock.advance(ms * NS_PER_MS)
        self.log.commits.notify()

    def reopen(self) -> None:
        self.log.close()
        self.log = self._open()

    def crash(self, keep: str = "none") -> None:
        self.disk.crash(keep=keep)
        self.log = self._open()

    def line(self, topic: str = "jobs") -> ClaimLine:
        """The claims that wait for jobs of a queue."""
        return self.log.queues._lines[topic]

    def live_bytes(self, topic: str = "jobs") -> int:
        with self.log.inspecting() as store:
            named = store.catalog.named(topic)
            named.check_invariants()
            return named.live_bytes


class Call:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except (SeawallError, OSError, ValueError, AssertionError) as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        return self.thread.is_alive()

    def result(self) -> Any:
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "the call does not end"
        if self._error is not None:
            raise self._error
        return self._result


def until(condition: Callable[[], bool]) -> None:
    """Wait until other threads have made something true."""
    tick = threading.Event()
    for _ in range(WAIT_S * 1_000):
        if condition():
            return
        tick.wait(0.001)
    raise AssertionError("it does not become true")


def waiting(log: QueueLog, count: int, topic: str = "jobs") -> None:
    """Wait until so many claims wait for jobs, one of them watching."""

    def are_there() -> bool:
        line = log.log.queues._lines.get(topic)
        return line is not None and len(line) == count and log.log._readers_waiting > 0

    until(are_there)


def values(jobs: Iterable[Job]) -> list[bytes]:
    return [job.value for job in jobs]


def seqs(jobs: Iterable[Job]) -> list[int]:
    return [job.seq for job in jobs]


def keys(jobs: Iterable[Job], *, lease_id: int | None = None) -> JobKeys:
    found = list(jobs)
    return JobKeys([job.seq for job in found], [job.lease_id if lease_id is None else lease_id for job in found])


def records(log: QueueLog, topic: str) -> list[ReceivedRecord]:
    return [record for item in log.log.follow(topic) if not isinstance(item, Gap) for record in item]


def counts(log: QueueLog, topic: str = "jobs") -> tuple[int, int, int]:
    """Ready, leased and delayed jobs, which must agree with the live records of the topic."""
    found = log.queue(topic=topic).counts()
    assert found.ready + found.leased + found.delayed == log.log.describe(topic).record_count
    return found.ready, found.leased, found.delayed


def append(log: QueueLog, *given: Record) -> None:
    """Append records as they are, as one batch."""
    block = b"".join(map(encode_record, given))
    with log.log.changing() as store:
        store.append([Append(store.catalog.named("jobs").topic_id, block, len(given))])


def rows(claimed: ClaimedJobs) -> list[tuple[int, ...]]:
    names = ["seq", "lease_id", "deliveries", "deadline_ms"]
    return [tuple(int(row[name]) for name in names) for row in claimed.rows]
