"""Latency histograms: reported percentiles are at most one sixteenth too large."""

from hypothesis import given
from hypothesis import strategies as st

from seawall.core.latency import LatencyHistogram, LatencySummary


def test_an_empty_histogram_has_a_zero_summary() -> None:
    assert LatencyHistogram().summary() == LatencySummary(0, 0, 0, 0, 0)


@given(st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=200))
def test_percentiles_are_close_and_never_too_small(times: list[int]) -> None:
    histogram = LatencyHistogram()
    for time in times:
        histogram.add(time)
    found = histogram.summary()
    times.sort()
    assert (found.count, found.max_ns) == (len(times), times[-1])
    for per_mille, reported in ((500, found.p50_ns), (990, found.p99_ns), (999, found.p999_ns)):
        exact = times[-(-len(times) * per_mille // 1_000) - 1]
        assert exact <= reported <= exact + exact // 16


def test_negative_and_huge_times_are_counted() -> None:
    histogram = LatencyHistogram()
    for time in (-5, 1 << 63, 1 << 100):
        histogram.add(time)
    assert histogram.summary().count == 3
    assert histogram.summary().max_ns == 1 << 100
    assert histogram.summary().p50_ns >= 1 << 47
