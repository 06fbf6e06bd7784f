"""`format("seawall")`: what Spark is told of the source and the sink, and how a batch query is read.

    spark.read.format("seawall").option("url", "seawall://host:1992").option("subscribe", "events").load()

A batch query asks the server where its topics begin and end when it is planned, once: what is published later is not
read. Readers go to executors as copies, so they hold options and numbers, never a connection.

Spark imports this in processes that only ask for a schema: what speaks with a server is loaded when it is needed.

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
    """The data source; Spark makes one for each query."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "seawall"

    def schema(self) -> str:
        """The columns of a query that reads."""
        return spark_schema(named_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        options = read_options(self.options, is_stream=False)
        check_schema(schema, options)
        # Spark refuses a reader that takes filters unless its own setting allows it, so that is asked for.
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

        # What output mode complete says: every batch is the whole result, and is appended as such.
        del overwrite

        options = write_options(self.options, is_stream=True)
        return SeawallStreamWriter(options, written_columns(_types(schema), options))


class SeawallReader(DataSourceReader):
    """Reads what the topics of a batch query hold."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query."""
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
        """What filters leave of a range of seqs."""
        from seawall.spark.driver import range_of

        bounds = self._bounds
        if bounds.moments.has_first:
            first = max(first, driver.seq_at_us(topic, bounds.moments.first))
        if bounds.moments.has_end:
            end = min(end, driver.seq_at_us(topic, bounds.moments.end))
        return range_of(topic, max(first, bounds.seqs.first), min(end, bounds.seqs.end))


class SeawallFilteringReader(SeawallReader):
    """The same, for a session that hands filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read only what may fit; Spark looks at all of it again."""
        self._bounds.take(filters, has_log_time=self._options.clock is Clock.LOG)
        return filters


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one task; none of the one that Spark makes up where there is nothing to read."""
    if partition.value is None:
        return iter(())
    from seawall.spark.reading import read_range

    return read_range(partition.value, options)


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Refuse a schema that the query was given and that is not the source's own."""
    wanted = named_types(options.columns)
    given = _types(schema)
    if list(given.items()) != list(wanted.items()):
        said, right = (", ".join(f"{name} {kind}" for name, kind in each.items()) for each in (given, wanted))
        raise ConfigError(
            f"the schema of a query is made by its options: {right}; not {said}. Leave it out, and choose columns by "
            "option columns; what is inside of values is decoded by seawall.spark.from_json and its like"
        )


def _types(schema: StructType) -> dict[str, str]:
    """The columns of a frame with their types, as Spark writes types."""
    return {each.name: each.dataType.simpleString() for each in schema}
