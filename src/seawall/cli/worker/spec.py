"""What a worker process is told to do: the one argument that the supervisor gives it, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker process."""

    #: The queue of tasks, as MODULE:ATTR.
    target: str
    #: How many processes there are, and the number of this one, from 1.
    processes: int
    number: int
    threads: int
    grace_s: float
    #: A log to use instead of the one that the module names: a URL or a directory.
    location: str | None
    json_logs: bool
    log_level: str
    #: Descriptors: this one is closed when the supervisor ends, and this one gets a line once the module is imported.
    lifeline: int = -1
    imported: int = -1

    def for_process(self, number: int, lifeline: int, imported: int) -> Self:
        """The same for one of the processes."""
        return replace(self, number=number, lifeline=lifeline, imported=imported)

    def to_text(self) -> str:
        """Encode it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Decode it."""
        return cls(**json.loads(text))
