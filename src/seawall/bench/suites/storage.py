"""Suite `storage`: compare the embedded log with bare disk writes and memory copies.

Every figure creates its logs in `bench.directory` and removes them afterwards. Writes use class fsync, so the figures
count durable records.
"""

from __future__ import annotations

from collections.abc import Iterator

from seawall.bench.figures.append_figures import append_figures
from seawall.bench.figures.read_figures import read_figures
from seawall.bench.figures.recovery_figures import recovery_figures
from seawall.bench.harness import BenchContext, Measurement


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    yield from append_figures(context.directory)
    yield from read_figures(context)
    yield from recovery_figures(context.directory)
