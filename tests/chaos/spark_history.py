"""The records that Spark read and wrote under faults, and their checker: pure, so that tests can plant faults.

A row is the seq of a record in the input and a digest of its value. Every copy must contain each record of the input
once, unchanged, and nothing else. `compare` returns complaints; none if that holds.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

#: Seq in the input, digest of the value.
Row: TypeAlias = tuple[int, str]

#: Errors that no query may fail with: no record was lost, and no two runs were active at once.
BROKEN = ("DataLossError", "FencedError", "InvariantError", "CorruptionError")


def digest(value: bytes) -> str:
    """What Spark's function `md5` makes of a value."""
    return hashlib.md5(value, usedforsecurity=False).hexdigest()


def compare(name: str, given: Iterable[Row], found: Iterable[Row]) -> list[str]:
    """Records that are lost, duplicated, changed or unknown in a copy."""
    due = dict(given)
    complaints = []
    counts: Counter[int] = Counter()
    for seq, value in found:
        if seq not in due:
            complaints.append(f"{name}: record {seq} was never in the input")
            continue
        counts[seq] += 1
        if due[seq] != value:
            complaints.append(f"{name}: record {seq} has another value than in the input")
    complaints += [f"{name}: record {seq} is lost" for seq in due if not counts[seq]]
    complaints += [f"{name}: record {seq} is there {count} times" for seq, count in counts.items() if count > 1]
    return complaints


def judge_failures(failures: Iterable[str]) -> list[str]:
    """Queries may fail during kills, but not with an error that a guarantee excludes."""
    return [f"a query failed: {each[:600]}" for each in failures if any(cause in each for cause in BROKEN)]


@dataclass
class Attempts:
    """Counts of task attempts, from their journal and from Spark's event logs."""

    #: Tasks of the query to a topic that passed all their rows to the sink.
    whole: int = 0
    #: Those of them whose rows were replaced by another attempt.
    thrown: int = 0
    #: Tasks of both queries that failed, or were slow, by injection.
    failed: int = 0
    slow: int = 0
    #: Speculative attempts that Spark started besides a slow one.
    speculative: int = 0

    def read_journal(self, text: str) -> None:
        """Count lines `query batch partition attempt what rows` of tasks."""
        done: Counter[tuple[str, str]] = Counter()
        for line in text.splitlines():
            query, batch, partition, _, what, rows = line.split()
            self.failed += what == "failed"
            self.slow += what == "slow"
            if (query, what) == ("topic", "whole") and int(rows):
                done[batch, partition] += 1
        self.whole += done.total()
        self.thrown += done.total() - len(done)

    def read_events(self, lines: Iterable[str]) -> None:
        """Count the events of a Spark event log; the log of a killed driver may end within a line."""
        for line in lines:
            if line.startswith('{"Event":"SparkListenerTaskStart"') and line.endswith("}\n"):
                self.speculative += bool(json.loads(line)["Task Info"]["Speculative"])


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    kills: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    records: int = 0
    #: Micro-batches of the query to a topic, and of the one to files.
    batches: tuple[int, int] = (0, 0)
    attempts: Attempts = field(default_factory=Attempts)
    #: How often a query failed and went on from its checkpoint, and a driver ended by itself.
    query_failures: int = 0
    driver_failures: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        said = (
            "no guarantee broken" if not self.complaints else "\n  ".join(["GUARANTEES BROKEN", *self.complaints[:20]])
        )
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(self.kills).items()))
        tasks = self.attempts
        return (
            f"seed {self.seed}: {len(self.kills)} kills ({kinds}) in {self.seconds:.0f} s: {' '.join(self.kills)}\n"
            f"  {self.records} records in {self.batches[0]} batches to a topic, {self.batches[1]} to Parquet; queries "
            f"failed and went on {self.query_failures} times, drivers {self.driver_failures}\n"
            f"  {tasks.whole} attempts handed all their rows to the sink, {tasks.thrown} of them were thrown away; "
            f"{tasks.failed} failed by design, {tasks.slow} were slow, {tasks.speculative} speculative\n  {said}"
        )


def read_event_logs(folder: Path, attempts: Attempts) -> None:
    """Count in all event logs of a folder."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            with path.open(encoding="utf-8", errors="replace") as lines:
                attempts.read_events(lines)
