"""The sink in a real Spark session: rows are written exactly once, even if tasks, queries or the server fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import seawall

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from seawall.core.transactions import StagedPart, StagedRange
from seawall.errors import InvariantError
from seawall.spark.given_options import ServerOptions
from seawall.spark.sink import SeawallStreamWriter, SeawallWriter, StagedMessage
from seawall.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from real_server import RealServer, ServerProcess

    from seawall.client.remote_log import RemoteLog

pytestmark = pytest.mark.timeout(240)

COUNT = 3_000


def values(log: RemoteLog, topic: str) -> list[bytes]:
    found: list[bytes] = log.read_arrow(topic)["value"].to_pylist()
    return found


def write(frame: DataFrame, server: ServerProcess | RealServer, mode: str = "append", **options: str) -> None:
    frame.write.format("seawall").options(url=server.url, **options).mode(mode).save()


def failing_once(marker: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns rows unchanged, and fails after the first batch of the first task that runs it."""

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                continue
            raise RuntimeError("an injected failure")

    return fail_once


class BatchCopier:
    """A query from one topic to another through a shuffle, run by run from one checkpoint."""

    def __init__(self, spark: SparkSession, url: str, directory: Path, **options: str) -> None:
        self._spark = spark
        self._url = url
        self._directory = directory
        self._options = {"subscribe": "in", "startingOffsets": "earliest", "columns": "value,offset", **options}
        self.name = ""

    def start(self, *, ends: bool = True, topic: str = "out", fails: str = "", **options: str) -> StreamingQuery:
        given = {"url": self._url, "timeout": "60s"}
        frame = self._spark.readStream.format("seawall").options(**given, **(self._options | options)).load()
        shuffled = frame.repartition(3, "offset").select("value")
        if fails:
            shuffled = shuffled.mapInArrow(failing_once(self._directory / fails), shuffled.schema)
        writer = shuffled.writeStream.format("seawall").options(**given, topic=topic)
        trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
        query = writer.option("checkpointLocation", str(self._directory / "at")).trigger(**trigger).start()
        self.name = f"spark-query-{query.id}"
        return query

    def run(self, **options: str) -> None:
        self.start(**options).awaitTermination()

    def forget_last_commit(self) -> None:
        """Simulate a driver that died right after the commit of the sink."""
        commits = sorted((self._directory / "at" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink()


def fill(log: RemoteLog, *outputs: str) -> list[bytes]:
    """Create topic `in` with distinct records, and empty output topics."""
    log.create_topic("in")
    written = [f"record {n}".encode() for n in range(COUNT)]
    log.publish("in", written)
    for name in outputs:
        log.create_topic(name)
    return written


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server on a thread, for one test."""
    from real_server import RealServer

    with RealServer(tmp_path_factory.mktemp("own") / "data") as running:
        yield running


def test_a_batch_write_and_its_refusals(spark: SparkSession, server: ServerProcess, log: RemoteLog) -> None:
    log.create_topic("even")
    log.create_topic("odd")
    frame = spark.range(0, COUNT, 1, 4).selectExpr(
        "if(id % 2 = 0, 'even', 'odd') as topic",
        "cast(id as string) as value",
        "if(id % 3 = 0, 'k', null) as key",
        "timestamp_millis(id) as timestamp",
    )
    # Partitions are ranges of ids: their order is the order in the topics.
    write(frame, server, owner="job", epoch="0")
    assert values(log, "even") == [f"{n}".encode() for n in range(0, COUNT, 2)]
    assert values(log, "odd") == [f"{n}".encode() for n in range(1, COUNT, 2)]
    keys = log.read_arrow("even")["key"].to_pylist()
    assert keys == [b"k" if n % 3 == 0 else None for n in range(0, COUNT, 2)]
    moments = log.read_arrow("even")["timestamp"].to_pylist()
    assert [round(each.timestamp() * 1_000) for each in moments] == list(range(0, COUNT, 2))
    # The same write again changes nothing; a write without a key is a new one; the option overrides the column.
    write(frame, server, owner="job", epoch="0")
    # All partitions but the first are empty.
    few = frame.where("int(value) < 3")
    write(few, server, topic="odd")
    assert len(values(log, "even")) == COUNT // 2
    assert values(log, "odd")[COUNT // 2 :] == [b"0", b"1", b"2"]
    for wrong, mode, options, message in (
        (frame, "overwrite", {}, "cannot be overwritten"),
        (frame.selectExpr("1 as value"), "append", {"topic": "odd"}, "column value is int: it must be binary or"),
        (frame, "append", {"topic": "nowhere"}, "there is no topic 'nowhere' on"),
    ):
        with pytest.raises(PySparkException) as caught:
            write(wrong, server, mode, **options)
        assert message in str(caught.value)
    assert len(values(log, "even")) + len(values(log, "odd")) == COUNT + 3


def test_a_wrong_token_is_refused(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    from real_server import RealServer

    from seawall.server.connection.access import Access, Right

    frame = spark.range(3).selectExpr("cast(id as string) as value")
    closed = RealServer(tmp_path_factory.mktemp("closed") / "data", Access({"right": Right.ALL}))
    with closed, pytest.raises(PySparkException, match="the token of HELLO is not known here"):
        write(frame, closed, topic="out", token="wrong")


@pytest.mark.slow
def test_failed_tasks_leave_nothing(spark: SparkSession, own: RealServer, tmp_path: Path) -> None:
    frame = spark.range(0, COUNT, 1, 3).selectExpr("cast(id as string) as value")
    with seawall.connect(own.url) as log:
        log.create_topic("out")
        broken = frame.selectExpr("if(value = '1500', raise_error('an injected failure'), value) as value")
        with pytest.raises(PySparkException, match="an injected failure"):
            write(broken, own, topic="out")
        assert values(log, "out") == []
        # A task that fails once and is repeated counts once.
        write(frame.mapInArrow(failing_once(tmp_path / "failed"), "value string"), own, topic="out")
        assert (tmp_path / "failed").exists()
        assert values(log, "out") == [f"{n}".encode() for n in range(COUNT)]


@pytest.mark.slow
def test_a_stream_through_failures_and_restarts(spark: SparkSession, own: RealServer, tmp_path: Path) -> None:
    with seawall.connect(own.url) as log:
        written = fill(log)
        log.create_topic("out", durability="ephemeral")
        query = BatchCopier(spark, own.url, tmp_path, maxOffsetsPerTrigger=f"{COUNT // 2}")
        # All rows of a batch are staged, one task is repeated, and the commit is refused.
        with pytest.raises(PySparkException, match="kept in memory alone"):
            query.run(fails="first")
        assert (tmp_path / "first").exists()
        log.delete_topic("out")
        log.create_topic("out")
        # The next run repeats the batch, and does the following one.
        query.run(fails="second")
        assert sorted(values(log, "out")) == sorted(written)
        last = log.transaction_state(query.name)
        assert last is not None
        assert last.epoch == 1
        # The driver dies between the commit of the sink and its own: the repeated batch changes nothing.
        query.forget_last_commit()
        query.run(fails="third")
        assert (tmp_path / "third").exists()
        assert sorted(values(log, "out")) == sorted(written)
        assert log.transaction_state(query.name) == last
        log.publish("in", [b"one more"])
        query.run()
        assert sorted(values(log, "out")) == sorted([*written, b"one more"])


def test_complete_results_of_each_batch_are_appended(spark: SparkSession, own: RealServer, tmp_path: Path) -> None:
    with seawall.connect(own.url) as log:
        log.create_topic("in")
        log.create_topic("out")
        given = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
        frame = spark.readStream.format("seawall").options(url=own.url, **given)
        counts = frame.load().groupBy("value").count().selectExpr("value as key", "string(count) as value")
        writer = counts.writeStream.format("seawall").options(url=own.url, topic="out").outputMode("complete")
        writer = writer.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True)
        log.publish("in", ["a", "b", "b"])
        writer.start().awaitTermination()
        found = [(row["key"], row["value"]) for row in log.read_arrow("out").to_pylist()]
    assert sorted(found[:2]) == [(b"a", b"1"), (b"b", b"1")]
    assert sorted(found[2:]) == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.slow
def test_a_server_that_is_killed_three_times(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from real_server import ServerProcess

    process = ServerProcess(tmp_path_factory.mktemp("killed") / "data")
    try:
        with seawall.connect(process.url, timeout_s=60) as log:
            written = fill(log, "out")
            copying = BatchCopier(spark, process.url, tmp_path, maxOffsetsPerTrigger="400")
            query = copying.start(ends=False)
            for kill in range(3):
                await_records(log, kill * 900 + 1, query)
                process.kill()
                process.start()
            deadline = time.monotonic() + 100
            while len(values(log, "out")) < COUNT and time.monotonic() < deadline:
                if not query.isActive:
                    # Staged records that a crash lost end the query, which continues from its checkpoint.
                    query = copying.start(ends=False)
                time.sleep(0.05)
            query.processAllAvailable()
            query.stop()
            assert sorted(values(log, "out")) == sorted(written)
    finally:
        process.stop()


def await_records(log: RemoteLog, count: int, query: StreamingQuery) -> None:
    deadline = time.monotonic() + 100
    while len(values(log, "out")) < count and query.isActive:
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.02)


def test_writers_without_a_session(
    near_server: RealServer, near_log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    near_log.create_topic("out")
    options = WriteOptions(ServerOptions(near_server.url), "out")
    batch = pa.record_batch({"value": ["a", "b"]})
    writer = SeawallWriter(options, ("value",))
    slow, fast = writer.write(iter([batch])), writer.write(iter([batch]))
    # Of two attempts Spark commits one; None is a failed task.
    writer.commit([None, fast])
    writer.commit([None, fast])
    writer.abort([slow, None])
    assert values(near_log, "out") == [b"a", b"b"]
    SeawallWriter(options, ("value",)).commit([StagedMessage(())])
    stream = SeawallStreamWriter(options, ("value",))
    with pytest.raises(InvariantError, match="streaming query of this task is unknown"):
        stream.write(iter([batch]))

    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": "id"}.get, partitionId=lambda: 5)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)
    stream.commit([StagedMessage((), "id")], 0)
    assert near_log.transaction_state("spark-query-id") is None
    message = stream.write(iter([batch]))
    assert message == StagedMessage((StagedPart("out", StagedRange(*message.parts[0].staged)),), "id")
    stream.commit([StagedMessage((), "id"), message, None], 7)
    stream.abort([message], 7)
    stream.commit([stream.write(iter([batch]))], 7)
    assert values(near_log, "out") == [b"a", b"b"] * 2
