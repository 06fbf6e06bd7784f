"""The journals of producers and workers of queues, and the jobs that they exchange.

A process writes what it does to a file of its own, a JSON array for each event, by one write for each step. The writes
go to the system at once: a SIGKILL loses nothing that was noted before it. At most it cuts off the last line, whose
event then has not happened yet.

    offer     queue, mark, not_before_ms, is_unique      before a push, for each job
    push      queue, mark, seq                           the push was acked; seq 0 if it is not known
    delivery  queue, seq, lease, and the fields of `Delivery`, before anyone works on the job
    finish    queue, seq, lease, jobs, called_ns         before an ack (jobs is 0), or a transaction of so many jobs
    finished  queue, seq, lease, outcome, returned_ns, returned_ms
    return    queue, seq, lease, called_ns               before the worker gives the job back
    extend    queue, seq, lease, deadline_ms             the lease was extended

Processes compare their times: `…_ns` is the monotonic clock of the machine, `…_ms` the wall clock.

A mark names a job: producer, number, and its task. The value follows from the mark.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

#: Acked by the worker; finished in one transaction with a result; never acked.
PLAIN, ONCE, POISON = "plain", "once", "poison"

#: The topic of the results of tasks ONCE.
RESULTS = "results"


def mark_of(producer: str, number: int, task: str) -> str:
    return f"{producer}.{number}.{task}"


def task_of(mark: str) -> str:
    """The task of a job."""
    return mark.rpartition(".")[2]


def value_of(mark: str) -> bytes:
    """The value of the job with this mark: mostly small, sometimes some kilobytes."""
    digest = zlib.crc32(mark.encode())
    size = digest % 20_000 if digest % 50 == 0 else digest % 100
    return f"{mark} ".encode() + b"x" * size


def mark_in(value: bytes) -> str:
    """The mark of a job; one that nobody offered if the value is not that of its mark."""
    mark = value.split(b" ", 1)[0].decode(errors="replace")
    return mark if value == value_of(mark) else f"damaged:{value[:40]!r}"


def now_ms() -> int:
    """The wall clock in milliseconds, as leases have it."""
    return time.time_ns() // 1_000_000


class Journal:
    """The journal of this process. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *events: tuple[object, ...]) -> None:
        """Append events; they survive a kill of the process when this returns."""
        if not events:
            return
        data = b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)
        written = os.write(self._descriptor, data)
        if written < len(data):
            raise OSError(f"the journal took {written} of {len(data)} bytes")


def open_journal(plan: dict[str, Any]) -> Journal:
    """The journal of a new process; what it prints goes to a file, too."""
    with Path(plan["said"]).open("wb") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    return Journal(Path(plan["journal"]))


def read_journal(path: Path) -> list[list[Any]]:
    """The events of a journal; a line that a kill has cut off is left out."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.split(b"\n") if line]
