"""The benchmark suites by name, and the function that loads one.

`load` imports a suite's module on demand, so listing the suites loads neither kernels nor numpy.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import cast

from seawall.bench.harness import Suite
from seawall.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """A suite's module, which defines the function `suite`, its one-line summary, and what is not as configured."""

    module: str
    summary: str
    #: True if the suite compares Seawall with other systems, which can be selected, in fewer and longer rounds.
    is_comparison: bool = False


SUITES = {
    "limits": SuiteEntry(
        "seawall.bench.suites.limits", "limits of this machine: memory, loopback, disk, wake-ups, start-up"
    ),
    "kernels": SuiteEntry(
        "seawall.bench.suites.kernels", "compiled kernels against a memory copy; disk rings against system calls"
    ),
    "storage": SuiteEntry(
        "seawall.bench.suites.storage", "the embedded log against bare disk writes and memory copies"
    ),
    "order": SuiteEntry("seawall.bench.suites.order", "ordering in a pod: its kernels, and its processes end to end"),
    "publish": SuiteEntry(
        "seawall.bench.suites.publish", "publishing over the network: bandwidth, record rate, latency"
    ),
    "fetch": SuiteEntry("seawall.bench.suites.fetch", "reading over the network against bare loopback"),
    "queue": SuiteEntry("seawall.bench.suites.queue", "job queues against publishing the same records"),
    "spark": SuiteEntry(
        "seawall.bench.suites.spark", "Spark: reading and writing a topic against Python sources and sinks in memory"
    ),
    "peers": SuiteEntry(
        "seawall.bench.suites.peers",
        "Seawall beside Kafka, Redis, NATS JetStream, RQ, Dramatiq and Celery (fetched by `make peers`)",
        is_comparison=True,
    ),
    "design": SuiteEntry("seawall.bench.suites.design", "the alternatives compared in the decision records"),
}


def load(name: str) -> Suite:
    """Return the `suite` function of a suite. An unknown name raises an error that lists the known ones."""
    return cast(Suite, importlib.import_module(entry_of(name).module).suite)


def entry_of(name: str) -> SuiteEntry:
    """Return the entry of a suite; see `load` for an unknown name."""
    entry = SUITES.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, SUITES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InvalidInputError(f"unknown suite {name!r}{hint} Suites: {', '.join(SUITES)}")
    return entry
