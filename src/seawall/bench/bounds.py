"""Limits of the benchmark harness, each with its reason."""

from __future__ import annotations

from seawall.limits import MIB

#: Minimum rounds per figure: with fewer than five, one disturbed round would move the median or its quartiles.
BENCH_ROUNDS_MIN = 5

#: Minimum rounds of a comparison with other systems, and their number if none is given: a round takes minutes.
COMPARISON_ROUNDS_MIN = 3

#: Seconds that a comparison spends on a figure and side if none are given, over all rounds.
COMPARISON_SECONDS = 6.0

#: Latency samples kept for one median. More would cost memory without changing it.
BENCH_SAMPLES_MAX = 1_000_000

#: Buffer size of the memory-copy baseline: larger than the caches of most machines.
BENCH_COPY_SIZE = 64 * MIB
