"""Shared test setup: deterministic property tests, so that a failure on one machine is a failure on all.

Fabrics are created in a directory of their own, which is removed at the end, because killed processes leave theirs
behind. All tests of Spark run in one worker, and its processes start faster.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("explore", parent=settings.get_profile("fixed"), derandomize=False, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

#: Bytes that a worker may grow by before it collects garbage: closed logs refer to themselves in cycles, and each may
#: hold a fabric. A collection looks at every object of the process, so it must not follow every test.
_GROWTH = 512 << 20


#: Tests that share one Spark session, or start others.
_SPARK = ("tests/spark/test_spark_", "tests/chaos/test_spark_")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Give the next test to a free worker, and all tests of Spark to one worker.

    It selects by name: group marks have no effect with the locked versions of pytest and xdist.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SparkTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(_SPARK) else nodeid

        def remove_node(self, node: Any) -> str | None:
            """Hand on what a worker that ended has not run, and return the test that it ended in.

            The inherited method hands on tests that have run, too. A worker that gets only those waits forever.
            """
            units = self.assigned_work.pop(node)
            crashed = next((test for unit in units.values() for test, has_run in unit.items() if not has_run), None)
            for scope, unit in units.items():
                if crashed in unit:
                    unit[crashed] = True
                if not all(unit.values()):
                    self.workqueue[scope] = unit
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

        def _reschedule(self, node: Any) -> None:
            """Keep more than one test at a worker, or tell it that there are no more.

            A worker starts a test when it knows the next one, and asks for more when a test has ended. The inherited
            method gives one test to a worker that replaces another, which waits then until the others are done.
            """
            if node.shutting_down or node not in self.registered_collections:
                return
            while self.workqueue and self._pending_of(self.assigned_work[node]) < 3:
                self._assign_work_unit(node)
            if not self.workqueue:
                node.shutdown()

    return SparkTogether(config, log)


@pytest.fixture(scope="session", autouse=True)
def fabrics() -> Iterator[None]:
    """Set the directory of fabrics, for this process and its children."""
    shared = Path("/dev/shm")
    directory = tempfile.mkdtemp(prefix="seawall-tests-", dir=shared if shared.is_dir() else None)
    before = os.environ.get("SEAWALL_FABRIC_DIRECTORY")
    os.environ["SEAWALL_FABRIC_DIRECTORY"] = directory
    yield
    if before is None:
        del os.environ["SEAWALL_FABRIC_DIRECTORY"]
    else:
        os.environ["SEAWALL_FABRIC_DIRECTORY"] = before
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Spark home without the archive of Python modules, which Spark puts before the installed ones on the path.

    The modules are the same, but every process compiles those of the archive again.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None or "SPARK_HOME" in os.environ:
        yield
        return
    home = tmp_path_factory.mktemp("spark-home")
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(found.origin).parent / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield


class _Memory:
    """The memory of this worker after the last collection, which the next growth is measured from."""

    def __init__(self) -> None:
        self.size = 0

    def collect_if_grown(self) -> None:
        if _resident_size() > self.size + _GROWTH:
            gc.collect()
            self.size = _resident_size()


def _resident_size() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
    return 0


_memory = _Memory()


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Collect garbage between tests if the worker has grown."""
    yield
    _memory.collect_if_grown()


@pytest.fixture(params=["asyncio", "uvloop"])
def each_event_loop(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test twice: with the event loop of the standard library, and with that of uvloop."""
    before = asyncio.get_event_loop_policy()
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield request.param
    asyncio.set_event_loop_policy(before)
