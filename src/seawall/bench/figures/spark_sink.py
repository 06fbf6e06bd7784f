"""Writing figures of suite `spark`, and the discarding Python sink that is their baseline.

Spark generates the rows, all of them equal, so generating them costs little. Every run is a batch write with staging
and one durable commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from seawall.bench.harness import NANOSECONDS_PER_SECOND, Run
from seawall.bench.subjects.publish_node import TOPIC
from seawall.client.connection.targets import parse_target
from seawall.client.remote_log import RemoteLog
from seawall.errors import InvariantError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

#: Makes the writer of a frame, from the URL of a server.
Writer = Callable[["DataFrame", str], "DataFrameWriter"]


class DiscardDataSource(DataSource):
    """A sink that discards all rows."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "seawall_bench_discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a batch query."""
        del schema, overwrite
        return DiscardWriter()


class DiscardWriter(DataSourceArrowWriter):
    """Consumes rows without looking at them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Consume the rows of one task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


def into_topic(frame: DataFrame, url: str) -> DataFrameWriter:
    """Write to a topic."""
    return frame.write.format("seawall").options(url=url, topic=TOPIC)


def into_nothing(frame: DataFrame, _url: str) -> DataFrameWriter:
    """Write to the discarding sink."""
    frame.sparkSession.dataSource.register(DiscardDataSource)
    return frame.write.format(DiscardDataSource.name())


def writes(spark: SparkSession, url: str, record_size: int, count: int, writer: Writer) -> Run:
    """A run that repeatedly writes `count` records; reports bytes of record values per second."""
    frame = spark.range(count).select(functions.lit(bytes(record_size)).alias("value"))
    frame_writer = writer(frame, url).mode("append")
    frame_writer.save()
    if writer is into_topic:
        _check(url, count)
    return _runs(frame_writer, count * record_size)


def _check(url: str, count: int) -> None:
    with RemoteLog(parse_target(url)) as log:
        written = log.describe(TOPIC).next_seq - 1
    if written != count:
        raise InvariantError("INV-BENCH-OK", f"wrote {written} of {count} records")


def _runs(frame_writer: DataFrameWriter, size: int) -> Run:
    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        written = 0
        while not written or perf_counter_ns() < deadline:
            frame_writer.save()
            written += size
        return written * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run
