"""Streaming queries of a real Spark session: the size of each batch, and where a query continues after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import seawall

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from real_server import ServerProcess

    from seawall.client.remote_log import RemoteLog

pytestmark = pytest.mark.timeout(240)


class Query:
    """A query that writes what it reads into files, run by run from one checkpoint."""

    def __init__(self, spark: SparkSession, url: str, directory: Path, **options: str) -> None:
        self._spark = spark
        self._url = url
        self._directory = directory
        self._options = {"startingOffsets": "earliest", "columns": "topic,offset,value", **options}
        self.progress: list[dict[str, Any]] = []

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Read everything available, then stop: the progress of each batch."""
        query = self.start(ends=True, **options)
        query.awaitTermination()
        self.progress = [json.loads(each.json) for each in query.recentProgress]
        return [each for each in self.progress if each["numInputRows"]]

    def start(self, ends: bool = False, **options: str) -> StreamingQuery:
        frame = self._spark.readStream.format("seawall").options(url=self._url, **(self._options | options)).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self._directory / "checkpoint"))
        trigger = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
        return writer.trigger(**trigger).start(str(self._directory / "out"))

    def rows(self) -> list[tuple[str, int, bytes]]:
        """All written rows, sorted."""
        return sorted(map(tuple, self._spark.read.parquet(str(self._directory / "out")).collect()))


@pytest.fixture
def topic(log: RemoteLog, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("test_", "").replace("_", "-")[:40]
    log.create_topic(name)
    return name


def publish(log: RemoteLog, topic: str, count: int) -> None:
    log.publish(topic, [f"{n}" for n in range(count)])


def test_batches_restarts_and_other_limits(
    spark: SparkSession, server: ServerProcess, log: RemoteLog, topic: str, tmp_path: Path
) -> None:
    """INV-STREAM-REPLAY."""
    query = Query(spark, server.url, tmp_path, subscribe=topic)
    publish(log, topic, 100)
    batches = query.run(maxOffsetsPerTrigger="40")
    assert [each["numInputRows"] for each in batches] == [40, 40, 20]
    end = json.loads(json.dumps(batches[-1]["sources"][0]["endOffset"]))
    assert end[topic]["0"] == 101
    # Lag: what the topic has beyond the end of a batch.
    assert [
        each["sources"][0]["latestOffset"][topic]["0"] - each["sources"][0]["endOffset"][topic]["0"] for each in batches
    ] == [60, 20, 0]
    assert query.run() == []
    publish(log, topic, 30)
    assert [each["numInputRows"] for each in query.run(maxOffsetsPerTrigger="25", minPartitions="3")] == [25, 5]
    assert [row[1] for row in query.rows()] == list(range(1, 131))


def test_limits_are_shared_by_topics_and_new_topics_are_found(
    spark: SparkSession, server: ServerProcess, log: RemoteLog, tmp_path: Path
) -> None:
    log.create_topic("shared-a")
    log.create_topic("shared-b")
    publish(log, "shared-a", 90)
    publish(log, "shared-b", 30)
    query = Query(spark, server.url, tmp_path, subscribePattern="shared-.*")
    batches = query.run(maxOffsetsPerTrigger="40")
    ends = [each["sources"][0]["endOffset"] for each in batches]
    assert [(end["shared-a"]["0"], end["shared-b"]["0"]) for end in ends] == [(31, 11), (61, 21), (91, 31)]
    log.create_topic("shared-c")
    publish(log, "shared-c", 40)
    few = query.run(maxBytesPerTrigger="100")
    assert len(few) > 1
    assert sum(each["numInputRows"] for each in few) == 40
    assert [(topic, offset) for topic, offset, _ in query.rows()][-40:] == [("shared-c", n) for n in range(1, 41)]


def test_a_topic_that_is_created_again_is_a_loss(
    spark: SparkSession, server: ServerProcess, log: RemoteLog, topic: str, tmp_path: Path
) -> None:
    """INV-STREAM-LIFE."""
    query = Query(spark, server.url, tmp_path, subscribe=topic)
    publish(log, topic, 8)
    query.run()
    log.delete_topic(topic)
    log.create_topic(topic)
    publish(log, topic, 3)
    with pytest.raises(PySparkException, match="was deleted and created again"):
        query.run()
    assert [each["numInputRows"] for each in query.run(failOnDataLoss="false")] == [3]
    assert [row[1] for row in query.rows()] == sorted([*range(1, 9), 1, 2, 3])


def test_data_that_expires_between_runs_is_a_loss(
    spark: SparkSession, server: ServerProcess, log: RemoteLog, tmp_path: Path
) -> None:
    log.create_topic("expiring", segment_max_records=10)
    publish(log, "expiring", 20)
    query = Query(spark, server.url, tmp_path, subscribe="expiring")
    query.run()
    publish(log, "expiring", 100)
    log.configure_topic("expiring", cap_records=30)
    publish(log, "expiring", 1)
    floor = log.describe("expiring").floor
    assert floor > 21
    with pytest.raises(PySparkException, match=f"seqs from 21 to {floor - 1} are lost"):
        query.run()
    query.run(failOnDataLoss="false")
    assert [row[1] for row in query.rows()] == [*range(1, 21), *range(floor, 122)]


def test_a_running_query_waits_for_large_enough_batches(
    spark: SparkSession, server: ServerProcess, log: RemoteLog, topic: str, tmp_path: Path
) -> None:
    query = Query(spark, server.url, tmp_path, subscribe=topic)
    publish(log, topic, 5)
    # The first batch of a run does not wait: the time of the last one is unknown.
    running = query.start(minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    try:
        running.processAllAvailable()
        publish(log, topic, 9)
        running.processAllAvailable()
        assert len(query.rows()) == 5
        publish(log, topic, 1)
        running.processAllAvailable()
        assert len(query.rows()) == 15
    finally:
        running.stop()
    publish(log, topic, 1)
    # An available-now run leaves nothing for a later batch.
    query.run(minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    assert len(query.rows()) == 16


@pytest.mark.slow
def test_a_stream_continues_after_its_server_was_killed(
    spark: SparkSession, log: RemoteLog, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from real_server import ServerProcess

    process = ServerProcess(tmp_path_factory.mktemp("killed") / "data")
    try:
        with seawall.connect(process.url) as own:
            own.create_topic("t")
            publish(own, "t", 20)
            query = Query(spark, process.url, tmp_path, subscribe="t")
            running = query.start(maxOffsetsPerTrigger="7")
            running.processAllAvailable()
            process.kill()
            process.start()
            publish(own, "t", 20)
            running.processAllAvailable()
            running.stop()
        values = [row[2] for row in query.rows()]
        # The seqs that the crash skipped are no records: in class fsync the query continues.
        assert values == [f"{n}".encode() for n in range(20)] * 2
    finally:
        process.stop()
