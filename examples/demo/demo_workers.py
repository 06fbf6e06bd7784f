"""The workers of the demo, which execute the jobs of its queue; some are killed while they work.

`seawall worker` keeps the processes, and starts another one for each that is killed. They report the begin and the end
of each delivery (`shop_tasks`). The jobs of a killed process are delivered again when their leases end.
"""

from __future__ import annotations

import os
import queue
import signal
from contextlib import suppress
from pathlib import Path

from demo_children import HERE, Child, ChildLine, DemoError
from shop_tasks import QUEUE

from seawall.client.remote_log import RemoteLog
from seawall.core.jobs import QueueCounts

PROCESSES = 3
#: Jobs that a process executes at once.
THREADS = 4
#: Seconds that running tasks may take when the workers stop.
GRACE_S = 5
#: The fractions of the jobs that are finished when a worker is killed.
KILL_AT = (0.25, 0.6)
#: The outcomes after which a job is not delivered again.
FINAL = ("done", "dead")


class Workers:
    """The worker processes, and the jobs as far as they were reported."""

    def __init__(self, jobs: int) -> None:
        #: The number of jobs of the whole run, and the seqs of those that were sent, by order.
        self.jobs = jobs
        self.sent: dict[str, int] = {}
        #: The killed processes.
        self.killed: set[int] = set()
        self.is_done = False
        self._child: Child | None = None
        self._is_stopping = False
        #: The jobs that each process has begun and not ended, and those that are finished.
        self._running: dict[int, set[int]] = {}
        self._finished: set[int] = set()

    @property
    def finished(self) -> int:
        """The number of jobs that are done or dead."""
        return len(self._finished)

    @property
    def cut_off(self) -> int:
        """The number of deliveries that ended with a killed process."""
        return sum(len(self._running.get(process, ())) for process in self.killed)

    def start(self, url: str, output: Path, lines: queue.SimpleQueue[ChildLine]) -> None:
        """Start the processes."""
        arguments = ["demo_tether.py", "worker", "shop_tasks:tasks", "--url", url, "--log-level", "WARNING"]
        arguments += ["--processes", f"{PROCESSES}", "--threads", f"{THREADS}", "--grace", f"{GRACE_S}"]
        self._child = Child(arguments, output, lines, directory=HERE)

    def is_from(self, child: Child) -> bool:
        """True if a line comes from the workers."""
        return child is self._child

    def begun(self, process: int, seq: int) -> bool:
        """Note that a process begins a delivery, and kill it if that is due; returns whether it did."""
        self._running.setdefault(process, set()).add(seq)
        kills = len(self.killed)
        if process in self.killed or kills == len(KILL_AT) or self.finished < KILL_AT[kills] * self.jobs:
            return False
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            self.killed.add(process)
        return process in self.killed

    def ended(self, process: int, seq: int, outcome: str) -> None:
        """Note the end of a delivery."""
        self._running.setdefault(process, set()).discard(seq)
        if outcome in FINAL:
            self._finished.add(seq)

    def stop_if_done(self, log: RemoteLog) -> None:
        """Let the processes stop once all jobs were sent and none is left."""
        if self._child is None or self._is_stopping or len(self.sent) < self.jobs or left(log.queue(QUEUE).counts()):
            return
        self._is_stopping = True
        self._child.process.terminate()

    def exited(self) -> None:
        """Note the end of all processes."""
        assert self._child is not None
        if self._child.process.wait() != 0 or not self._is_stopping:
            raise DemoError("the workers have failed")
        self.is_done = True

    def end(self) -> None:
        """Stop all processes, if they run."""
        if self._child is not None:
            self._child.end()


def left(counts: QueueCounts) -> int:
    """The number of jobs in a queue."""
    return counts.ready + counts.leased + counts.delayed
