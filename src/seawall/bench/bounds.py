"""The bounds of measurements, each with its reason."""

from __future__ import annotations

from seawall.limits import MIB

#: Fewest rounds of a figure: below five, one disturbed round would move the median or its quartiles.
BENCH_ROUNDS_MIN = 5

#: Latencies kept for one median. More samples would cost memory and not change it.
BENCH_SAMPLES_MAX = 1_000_000

#: Buffer of the memory copy every suite compares itself with: larger than the caches of most machines.
BENCH_COPY_SIZE = 64 * MIB
