"""Figures of the suite `spark` that are about writing, and the Python sink they are compared with, which discards.

Rows are made by Spark itself, all of them the same: nothing that makes them is measured much. Every run is a batch
write, with its staging and its commit, which is durable.
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

#: Makes the writer of a frame, for a server.
Writer = Callable[["DataFrame", str], "DataFrameWriter"]


class DiscardDataSource(DataSource):
    """Takes all rows and keeps none."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "seawall_bench_discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a batch query."""
        del schema, overwrite
        return DiscardWriter()


class DiscardWriter(DataSourceArrowWriter):
    """Looks at no row."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take the rows of one task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


def into_topic(frame: DataFrame, url: str) -> DataFrameWriter:
    """The sink."""
    return frame.write.format("seawall").options(url=url, topic=TOPIC)


def into_nothing(frame: DataFrame, _url: str) -> DataFrameWriter:
    """What it is compared with."""
    frame.sparkSession.dataSource.register(DiscardDataSource)
    return frame.write.format(DiscardDataSource.name())


def writes(spark: SparkSession, url: str, record_size: int, count: int, writer: Writer) -> Run:
    """Writes so many records over and over; bytes of values in a second."""
    frame = spark.range(count).select(functions.lit(bytes(record_size)).alias("value"))
    made = writer(frame, url).mode("append")
    made.save()
    if writer is into_topic:
        _check(url, count)
    return _runs(made, count * record_size)


def _check(url: str, count: int) -> None:
    with RemoteLog(parse_target(url)) as log:
        written = log.describe(TOPIC).next_seq - 1
    if written != count:
        raise InvariantError("INV-BENCH-OK", f"{written} records were written of {count}")


def _runs(made: DataFrameWriter, size: int) -> Run:
    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        written = 0
        while not written or perf_counter_ns() < deadline:
            made.save()
            written += size
        return written * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run
