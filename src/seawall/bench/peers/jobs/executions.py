"""The job that is measured: it writes down when it was sent and when it started, in a file that all workers append to.

    executions.open_file(path)      in a worker process, before it forks others
    executed(sent_ns)               the task
    executions.read(path)           what was executed, in the measuring process

The file has 16 bytes for each execution: the time when the job was sent and when it started, both little-endian
nanoseconds of the monotonic clock, which all processes of a machine share. An append of so few bytes is atomic. The
time when a job was sent also identifies it, since one producer sends all jobs.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from time import monotonic_ns
from typing import Final, NamedTuple

_RECORD: Final = Struct("<qq")
#: The file of this process and the processes that it forks.
_opened: Final[list[int]] = []


class Execution(NamedTuple):
    """When a job was sent and when it started, in nanoseconds of the monotonic clock."""

    sent_ns: int
    started_ns: int


def open_file(path: str) -> None:
    """Append the executions of this process, and of those that it forks, to a file."""
    _opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))


def executed(sent_ns: int) -> int:
    """The task of all libraries: writes one execution, and returns its argument."""
    os.write(_opened[0], _RECORD.pack(sent_ns, monotonic_ns()))
    return sent_ns


def count(path: Path) -> int:
    """How many jobs were executed until now."""
    return path.stat().st_size // _RECORD.size if path.exists() else 0


def read(path: Path) -> list[Execution]:
    """All executions in the order of their starts."""
    found = [Execution(*fields) for fields in _RECORD.iter_unpack(path.read_bytes())]
    return sorted(found, key=lambda each: each.started_ns)
