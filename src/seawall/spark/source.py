"""The data source `format("seawall")`: creates the readers and writers of a query, and reads batch queries.

    spark.read.format("seawall").option("url", "seawall://host:1992").option("subscribe", "events").load()

A batch query asks the server once, when it is planned, where its topics start and end: it does not read records that
are published later. Spark pickles readers and sends them to executors, so they hold options and numbers, never a
connection.

Spark imports this module in processes that only need a schema, so modules that talk to a server are imported lazily.

`docs/spark.md` explains the options. This module must not know how records are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from seawall.errors import ConfigError
from seawall.spark.filters import Bounds
from seawall.spark.options import Clock, ReadOptions, named_columns, read_options
from seawall.spark.partitions import read_partition
from seawall.spark.planning import SeqRange, split
from seawall.spark.schema import named_types, spark_schema
from seawall.spark.write_options import write_options, written_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from seawall.api.topic_info import TopicInfo
    from seawall.spark.driver import Driver
    from seawall.spark.sink import SeawallStreamWriter, SeawallWriter
    from seawall.spark.stream import SeawallStreamReader


class SeawallDataSource(DataSource):
    """The data source; Spark creates one for each query."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "seawall"

    def schema(self) -> str:
        """The columns of a query that reads, as DDL."""
        return spark_schema(named_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        options = read_options(self.options, is_stream=False)
        check_schema(schema, options)
        # Spark refuses a reader with `pushFilters` unless its own setting allows it, so an option turns it on.
        return SeawallFilteringReader(options) if options.pushes_filters else SeawallReader(options)

    def streamReader(self, schema: StructType) -> SeawallStreamReader:
        """The reader of a streaming query."""
        from seawall.spark.stream import SeawallStreamReader

        options = read_options(self.options, is_stream=True)
        check_schema(schema, options)
        return SeawallStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> SeawallWriter:
        """The writer of a batch query."""
        from seawall.spark.sink import SeawallWriter, check_mode, check_topic

        options = write_options(self.options, is_stream=False)
        columns = written_columns(_types(schema), options)
        check_mode(overwrite)
        check_topic(options)
        return SeawallWriter(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SeawallStreamWriter:
        """The writer of a streaming query."""
        from seawall.spark.sink import SeawallStreamWriter

        # True in output mode "complete": each micro-batch is the whole result, and is appended as a whole.
        del overwrite

        options = write_options(self.options, is_stream=True)
        return SeawallStreamWriter(options, written_columns(_types(schema), options))


class SeawallReader(DataSourceReader):
    """Reads the topics of a batch query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query, each with a range of seqs."""
        from seawall.spark.driver import Driver

        with closing(Driver(self._options)) as driver:
            topics = driver.existing_topics()
            starts, ends = driver.start_offsets(topics), driver.end_offsets(topics)
            ranges = [
                self._bounded(driver, topic, starts[name].seq, ends[name].seq)
                for name, topic in topics.items()
                if self._bounds.topics is None or name in self._bounds.topics
            ]
        return [InputPartition(part) for part in split(ranges, self._options.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_partition(partition, self._options)

    def _bounded(self, driver: Driver, topic: TopicInfo, first: int, end: int) -> SeqRange:
        """A range of seqs, narrowed by the filters."""
        from seawall.spark.driver import range_of

        bounds = self._bounds
        if bounds.moments.has_first:
            first = max(first, driver.seq_at_us(topic, bounds.moments.first))
        if bounds.moments.has_end:
            end = min(end, driver.seq_at_us(topic, bounds.moments.end))
        return range_of(topic, max(first, bounds.seqs.first), min(end, bounds.seqs.end))


class SeawallFilteringReader(SeawallReader):
    """A `SeawallReader` for a session that pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow what is read; returns all filters, so that Spark still evaluates them on each row."""
        self._bounds.take(filters, has_log_time=self._options.clock is Clock.LOG)
        return filters


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise `ConfigError` if the query specifies a schema that differs from the source's own."""
    expected = named_types(options.columns)
    given = _types(schema)
    if list(given.items()) != list(expected.items()):
        wrong, right = (", ".join(f"{name} {kind}" for name, kind in each.items()) for each in (given, expected))
        raise ConfigError(
            f"the schema of a query follows from its options: {right}; not {wrong}. Leave it out, and choose columns "
            "with option columns; decode values with functions such as seawall.spark.from_json"
        )


def _types(schema: StructType) -> dict[str, str]:
    """The columns of a frame and their types in Spark's notation."""
    return {each.name: each.dataType.simpleString() for each in schema}
