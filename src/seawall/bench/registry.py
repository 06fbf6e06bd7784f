"""The suites by name, each with the module that holds its `suite` function.

A module is imported when its suite is asked for: listing the suites loads no kernel and no numpy.
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
    """Where a suite is and what it tells."""

    module: str
    summary: str


SUITES = {
    "limits": SuiteEntry(
        "seawall.bench.suites.limits", "what this machine can do: memory, loopback, disk, wake-ups, start-up"
    ),
    "kernels": SuiteEntry("seawall.bench.suites.kernels", "the compiled kernels against a memory copy, disk rings"),
    "storage": SuiteEntry("seawall.bench.suites.storage", "the embedded log against the disk and the memory below it"),
    "order": SuiteEntry(
        "seawall.bench.suites.order", "the total order of a pod: its kernels, and its processes end to end"
    ),
    "publish": SuiteEntry("seawall.bench.suites.publish", "publishing over the network: bandwidth, records, latency"),
    "fetch": SuiteEntry("seawall.bench.suites.fetch", "reading over the network against bare loopback"),
    "spark": SuiteEntry(
        "seawall.bench.suites.spark", "Spark: rows of sealed segments against the same rows out of memory"
    ),
    "design": SuiteEntry("seawall.bench.suites.design", "the alternatives that the decision records weigh"),
}


def load(name: str) -> Suite:
    """The function that names a suite's measurements; a wrong name is answered with the right ones."""
    entry = SUITES.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, SUITES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InvalidInputError(f"no suite is called {name!r}{hint} Suites: {', '.join(SUITES)}")
    return cast(Suite, importlib.import_module(entry.module).suite)
