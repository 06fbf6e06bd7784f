"""One Spark session for all tests of this folder, and servers to read from and write to.

The environment variable SPARK_TESTS_MASTER sets another master than `local[2,3]`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import seawall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from real_server import RealServer, ServerProcess

    from seawall.client.remote_log import RemoteLog

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "client"))

#: Most queries run once or twice: optimising their code would take longer than it saves, and verifying Spark's classes
#: takes a sixth of its start.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    import seawall.spark

    if "PYTEST_XDIST_WORKER" in os.environ:
        # Workers share the parent directory: a second session finds the file of the first one, and fails.
        (tmp_path_factory.getbasetemp().parent / "has-spark-session").touch(exist_ok=False)
    master = os.environ.get("SPARK_TESTS_MASTER", "local[2,3]")
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        # A slow executor is not a lost one.
        "spark.network.timeout": "300s",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.log.level": "ERROR",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    session = seawall.spark.session("tests", master=master, settings=settings)
    yield session
    session.stop()
    gateway = session.sparkContext._gateway
    if gateway is not None:
        gateway.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in its own process."""
    from real_server import ServerProcess

    # A small checkpoint size, so that segments are sealed early.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEAWALL_STORAGE_CHECKPOINT_SIZE", "65536")
        process = ServerProcess(tmp_path_factory.mktemp("server") / "data")
    yield process
    process.stop()


@pytest.fixture
def log(server: ServerProcess) -> Iterator[RemoteLog]:
    with seawall.connect(server.url) as connected:
        yield connected


@pytest.fixture
def near_server(tmp_path: Path) -> Iterator[RealServer]:
    """A server on a thread of this process."""
    from real_server import RealServer

    with RealServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
def near_log(near_server: RealServer) -> Iterator[RemoteLog]:
    with seawall.connect(near_server.url) as connected:
        yield connected
