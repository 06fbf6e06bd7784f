"""Suite `storage`: the embedded log against the disk and the memory below it.

Every figure works on logs in `bench.directory`, made for it and removed after it. Writes go to class fsync: what is
counted is durable.
"""

from __future__ import annotations

from collections.abc import Iterator

from seawall.bench.figures.append_figures import append_figures
from seawall.bench.figures.read_figures import read_figures
from seawall.bench.figures.recovery_figures import recovery_figures
from seawall.bench.harness import BenchContext, Measurement


def suite(context: BenchContext) -> Iterator[Measurement]:
    """The figures of this suite."""
    yield from append_figures(context.directory)
    yield from read_figures(context)
    yield from recovery_figures(context.directory)
