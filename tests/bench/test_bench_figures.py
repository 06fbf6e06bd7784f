"""Every figure of every suite opens, runs once with its baseline, and returns a number.

The comparisons of the suite `peers` have more than two sides: `test_peers.py` runs them.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from seawall.bench import registry as suites
from seawall.bench.harness import BenchContext, Measurement
from seawall.errors import UnsupportedError
from seawall.limits import MIB

SHORT = 0.0

#: Sizes that take long at their real value, and the smaller ones of these tests.
SMALLER = {
    "figures.append_figures.COUNTED_SIZE": 8 * MIB,
    "suites.fetch.STORED_SIZE": 4 * MIB,
    "suites.publish.IDLE_CONNECTIONS": 20,
    "suites.publish.WARM_SIZE": MIB,
    "figures.read_figures.LARGE_RECORDS": 30_000,
    "figures.read_figures.READ_SIZE": 4 * MIB,
    "figures.recovery_figures.LOG_SIZES": {1: MIB, 16: 4 * MIB, 60: 4 * MIB},
}
SMALLER_IN_SPARK = {
    "suites.spark.STORED_SIZE": 4 * MIB,
    "suites.spark._SEGMENT_SIZE": MIB,
    "suites.spark._MICRO_BATCHES": 3,
    "suites.spark._WARM_BATCHES": 1,
}

#: In a short process, optimising code and verifying Spark's classes takes longer than it saves.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def measurements(suite: str, directory: Path) -> list[Measurement]:
    return list(suites.load(suite)(BenchContext(seconds=0.1, rounds=5, directory=directory)))


@pytest.mark.slow
@pytest.mark.timeout(400)  # Spark's own take a minute and a half where nothing else runs
@pytest.mark.parametrize("suite", [suite for suite in suites.SUITES if suite != "peers"])
def test_every_figure_runs_on_both_sides(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for name, size in (SMALLER | (SMALLER_IN_SPARK if suite == "spark" else {})).items():
        monkeypatch.setattr(f"seawall.bench.{name}", size)
    if suite == "spark":
        request.addfinalizer(_session_ender())
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    for figure in measurements(suite, tmp_path):
        sides = [figure.subject] + ([figure.baseline.subject] if figure.baseline else [])
        for side in sides:
            # A figure that this machine cannot measure raises UnsupportedError, and nothing else.
            with suppress(UnsupportedError), side() as run:
                assert run(SHORT) > 0, figure.name
    assert list(tmp_path.iterdir()) == []


def _session_ender() -> Callable[[], None]:
    """Returns a function that stops the Spark session unless it existed before."""
    sql = pytest.importorskip("pyspark.sql")
    before = sql.SparkSession.getActiveSession()

    def end() -> None:
        session = sql.SparkSession.getActiveSession()
        if before is None and session is not None:
            session.stop()

    return end


def test_a_busy_thread_ends_with_the_run(tmp_path: Path) -> None:
    import threading

    from seawall.bench.figures.ring_figures import beside_busy_thread

    before = threading.active_count()
    with beside_busy_thread(lambda: _CountingThreads(before))() as run:
        assert run(SHORT) == 1.0
    assert threading.active_count() == before


class _CountingThreads:
    """A subject that reports how many threads more than before are alive while it runs."""

    def __init__(self, before: int) -> None:
        self.before = before

    def __enter__(self):
        import threading

        return lambda _seconds: float(threading.active_count() - self.before)

    def __exit__(self, *details: object) -> None:
        return None
