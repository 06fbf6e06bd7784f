"""Batch queries of a real Spark session on a real server."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from spark_reading import await_sealed

import seawall.spark

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from real_server import ServerProcess

    from seawall.client.remote_log import RemoteLog

pytestmark = pytest.mark.timeout(240)

COUNT = 3_000


@pytest.fixture(scope="module")
def topics(server: ServerProcess) -> None:
    """Topics that tests read and do not change."""
    with seawall.connect(server.url) as log:
        log.create_topic("numbers", segment_max_records=500)
        for first in range(0, COUNT, 100):
            log.publish("numbers", [json.dumps({"n": n, "square": n * n}) for n in range(first, first + 100)])
        log.create_topic("numbers-too")
        log.publish_arrow(
            "numbers-too",
            pa.table(
                {
                    "value": ["one", "two"],
                    "key": ["a", None],
                    "tag": ["x", "y"],
                    "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}], None],
                }
            ),
        )
        await_sealed(log, "numbers", COUNT - 500)


def query(spark: SparkSession, server: ServerProcess, **options: str) -> DataFrame:
    return spark.read.format("seawall").options(url=server.url, **options).load()


def message_of(error: pytest.ExceptionInfo[PySparkException]) -> str:
    return str(error.value)


@pytest.mark.parametrize("source", ["files", "network"])
def test_every_record_is_read_once(spark: SparkSession, server: ServerProcess, topics: None, source: str) -> None:
    frame = query(spark, server, subscribe="numbers", read=source, minPartitions="5", columns="offset,value")
    assert frame.rdd.getNumPartitions() == 5
    rows = frame.collect()
    assert [row.offset for row in rows] == list(range(1, COUNT + 1))
    assert [json.loads(row.value)["n"] for row in rows] == list(range(COUNT))


def test_all_columns(spark: SparkSession, server: ServerProcess, topics: None) -> None:
    frame = query(spark, server, subscribe="numbers-too", includeHeaders="true", virtualPartitions="1000000")
    first, second = frame.orderBy("offset").collect()
    assert (first.key, first.value, first.topic, first.offset, first.tag) == (b"a", b"one", "numbers-too", 1, "x")
    assert (first.partition, second.partition) == (0xC1D04330 % 1_000_000, 0)
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1"), ("h", b"2")]
    assert (second.key, second.headers, second.tag, second.timestampType) == (None, None, "y", 1)
    assert abs(first.timestamp.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(hours=1)
    assert frame.select(seawall.spark.header("h"), seawall.spark.header("none")).collect()[0][:] == (b"1", None)


def test_patterns_and_several_topics(spark: SparkSession, server: ServerProcess, topics: None) -> None:
    counts = query(spark, server, subscribePattern="numbers.*", columns="topic").groupBy("topic").count().collect()
    assert dict(map(tuple, counts)) == {"numbers": COUNT, "numbers-too": 2}
    assert query(spark, server, assign='{"numbers-too": [0]}').count() == 2
    assert query(spark, server, subscribePattern="nothing").count() == 0


def test_starting_and_ending_offsets_and_times(spark: SparkSession, server: ServerProcess, topics: None) -> None:
    part = query(
        spark,
        server,
        subscribe="numbers",
        startingOffsets='{"numbers": {"0": 11}}',
        endingOffsets='{"numbers": {"0": 21}}',
    )
    assert [row.offset for row in part.select("offset").collect()] == list(range(11, 21))
    stored = part.select(functions.min("timestamp")).collect()[0][0].replace(tzinfo=UTC)
    later = query(spark, server, subscribe="numbers", startingTimestamp=str(int(stored.timestamp() * 1000)))
    assert later.select(functions.min("offset")).collect()[0][0] <= 11
    assert query(spark, server, subscribe="numbers", endingTimestamp="1000").count() == 0


def test_filters_are_pushed_down(spark: SparkSession, server: ServerProcess, topics: None) -> None:
    def frame(**options: str) -> DataFrame:
        # A new frame for each query: Spark reuses the planned tasks of a frame, as a filter has left them.
        return query(spark, server, subscribe="numbers,numbers-too", columns="topic,offset,timestamp", **options)

    pushed = {"filterPushdown": "true", "maxRecordsPerPartition": "5"}
    some = frame(**pushed).where("topic = 'numbers' and offset > 100 and offset <= 110")
    assert [row.offset for row in some.collect()] == list(range(101, 111))
    assert some.rdd.getNumPartitions() == 2
    rows = frame().collect()
    moment = next(row.timestamp for row in rows if (row.topic, row.offset) == ("numbers", 1_500))
    for condition, is_wanted in (
        (functions.col("timestamp") >= moment, lambda row: row.timestamp >= moment),
        (
            functions.expr("topic in ('numbers-too', 'x') or offset < 3"),
            lambda row: row.topic == "numbers-too" or row.offset < 3,
        ),
    ):
        wanted = sorted(row for row in rows if is_wanted(row))
        assert wanted
        assert sorted(frame(filterPushdown="true").where(condition).collect()) == wanted
    # A session that does not allow it raises an error with the remedy.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        with pytest.raises(PySparkException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
            frame(filterPushdown="true").where("offset > 2").count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_values_are_decoded(spark: SparkSession, server: ServerProcess, topics: None, log: RemoteLog) -> None:
    numbers = query(spark, server, subscribe="numbers", columns="value")
    decoded = numbers.select(seawall.spark.from_json("value", "n long, square long").alias("v"))
    assert decoded.select(functions.sum("v.square")).collect()[0][0] == sum(n * n for n in range(COUNT))
    sink = pa.BufferOutputStream()
    table = pa.table({"a": pa.array([1, 2], pa.int64()), "b": ["x", "y"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    log.create_topic("arrow")
    log.publish("arrow", [sink.getvalue().to_pybytes(), b"", sink.getvalue().to_pybytes()])
    rows = seawall.spark.from_arrow_ipc(query(spark, server, subscribe="arrow"), "a long, b string").collect()
    assert sorted(map(tuple, rows)) == [(1, "x"), (1, "x"), (2, "y"), (2, "y")]
    with pytest.raises(PySparkException, match="spark-avro"):
        numbers.select(seawall.spark.from_avro("value", '{"type": "long"}')).collect()


def test_a_registered_source_checks_its_options(spark: SparkSession) -> None:
    seawall.spark.register(spark)
    with pytest.raises(PySparkException, match="option url is missing"):
        spark.read.format("seawall").option("subscribe", "a").load().count()


def test_wrong_options_and_schemas_are_refused(spark: SparkSession, server: ServerProcess, topics: None) -> None:
    with pytest.raises(PySparkException) as caught:
        query(spark, server, subscribe="numbers", colums="value")
    assert "no option of seawall is called 'colums'; did you mean columns?" in message_of(caught)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("seawall").schema("n long").options(url=server.url, subscribe="numbers").load().count()
    assert "the schema of a query follows from its options: key binary, value binary" in message_of(caught)
    with pytest.raises(PySparkException) as caught:
        query(spark, server, subscribe="numbers", startingOffsets='{"numbers": {"0": 5000}}').count()
    assert f"topic 'numbers' ends at seq {COUNT + 1}, before seq 5000" in message_of(caught)


def test_a_wrong_token_is_refused_and_no_token_is_shown(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from real_server import RealServer

    from seawall.server.connection.access import Access, Right

    with RealServer(tmp_path_factory.mktemp("closed") / "data", Access({"right": Right.ALL})) as closed:
        reader = spark.read.format("seawall").options(url=closed.url, subscribe="a")
        with pytest.raises(PySparkException) as caught:
            reader.option("token", "wrong").load().count()
        assert "the token of HELLO is not known here" in message_of(caught)
        assert "right" not in re.sub("copyright", "", message_of(caught))


def test_data_that_expires_during_a_query_is_a_loss(spark: SparkSession, server: ServerProcess, log: RemoteLog) -> None:
    log.create_topic("capped", segment_max_records=10)
    log.publish("capped", [f"{n}" for n in range(100)])
    options = {"subscribe": "capped", "startingOffsets": '{"capped": {"0": 1}}'}
    frame = query(spark, server, **options)
    assert frame.count() == 100
    log.configure_topic("capped", cap_records=30)
    log.publish("capped", ["one more"])
    floor = log.describe("capped").floor
    with pytest.raises(PySparkException) as caught:
        frame.count()
    assert f"seqs from 1 to {floor - 1} are lost, evicted by the cap of the topic" in message_of(caught)
