"""Suite `limits`: measure the limits of this machine, to compare all other figures with.

The only Seawall code measured here is the start-up of its command, with the goal that small commands feel instant.

    memory        one large copy
    network       loopback TCP between two processes
    disk          durable writes: latency and bandwidth, in `bench.directory`
    wake-ups      two processes that wake each other by eventfd
    start-up      `seawall` with small commands, against an interpreter that does nothing

Figures that a platform does not support (eventfd, RWF_DSYNC) are left out with a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from seawall.bench.harness import MEMORY_COPY, Baseline, BenchContext, Measurement, memory_copy
from seawall.bench.results import Better, Goal
from seawall.bench.suites import disk, processes
from seawall.limits import KIB, MIB

#: Longest start-up that a user does not notice.
START_SECONDS_GOAL = 0.3

_COMMANDS = (("--version",), ("config", "show"), ("--help",))


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    yield Measurement("memory copy", "B/s", Better.HIGHER, memory_copy, note="64 MiB; each byte counts once")
    yield Measurement(
        "loopback TCP",
        "B/s",
        Better.HIGHER,
        processes.loopback_bandwidth,
        baseline=MEMORY_COPY,
        note="another process sends, this one receives into a buffer of 1 MiB",
    )
    yield from _disk(context)
    yield Measurement(
        "eventfd round trip, p50",
        "s",
        Better.LOWER,
        processes.eventfd_round_trip,
        note="to another process and back: two wake-ups",
    )
    yield from _start_up()


def _disk(context: BenchContext) -> Iterator[Measurement]:
    directory = context.directory
    for label, size in (("4 KiB", 4 * KIB), ("1 MiB", MIB)):
        plain_write = disk.write_latency(directory, size)
        yield Measurement(f"write + sync {label}, p50", "s", Better.LOWER, plain_write)
        yield Measurement(
            f"write with RWF_DSYNC {label}, p50",
            "s",
            Better.LOWER,
            disk.flagged_write_latency(directory, size),
            baseline=Baseline("write + sync", plain_write),
        )
    for label, size in (("1 MiB", MIB), ("64 MiB", 64 * MIB)):
        yield Measurement(
            f"durable bytes, sync every {label}", "B/s", Better.HIGHER, disk.write_bandwidth(directory, size)
        )


def _start_up() -> Iterator[Measurement]:
    nothing = Baseline("python -c pass", processes.command_time("-c", "pass"))
    yield Measurement("python -c pass", "s", Better.LOWER, nothing.subject, note="wall time of a fresh interpreter")
    yield Measurement("import seawall", "s", Better.LOWER, processes.command_time("-c", "import seawall"), nothing)
    for arguments in _COMMANDS:
        yield Measurement(
            f"seawall {' '.join(arguments)}",
            "s",
            Better.LOWER,
            processes.command_time("-m", "seawall", *arguments),
            baseline=nothing,
            goal=Goal.value_at_most(START_SECONDS_GOAL),
        )
