"""Distributions of times: percentiles are at most a sixteenth too long, whatever was measured."""

from hypothesis import given
from hypothesis import strategies as st

from seawall.core.latency import LatencyHistogram, LatencySummary


def test_nothing_was_measured() -> None:
    assert LatencyHistogram().summary() == LatencySummary(0, 0, 0, 0, 0)


@given(st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=200))
def test_percentiles_are_close_and_never_too_short(times: list[int]) -> None:
    histogram = LatencyHistogram()
    for time in times:
        histogram.add(time)
    found = histogram.summary()
    times.sort()
    assert (found.count, found.max_ns) == (len(times), times[-1])
    for per_mille, told in ((500, found.p50_ns), (990, found.p99_ns), (999, found.p999_ns)):
        exact = times[-(-len(times) * per_mille // 1_000) - 1]
        assert exact <= told <= exact + exact // 16


def test_what_takes_for_ever_counts_and_clocks_that_step_back_do_not_harm() -> None:
    histogram = LatencyHistogram()
    for time in (-5, 1 << 63, 1 << 100):
        histogram.add(time)
    assert histogram.summary().count == 3
    assert histogram.summary().max_ns == 1 << 100
    assert histogram.summary().p50_ns >= 1 << 47
