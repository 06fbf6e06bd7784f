"""A Spark data source that yields rows from memory: the reading baseline of suite `spark`.

Its tasks are those of the real source. A worker reads one batch of the topic once and keeps it; every task then yields
slices of that batch until it has as many rows as its range.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seawall.spark.options import ReadOptions, read_options
from seawall.spark.planning import SeqRange
from seawall.spark.source import SeawallDataSource, SeawallReader, check_schema

if TYPE_CHECKING:
    import pyarrow as pa


class MemoryDataSource(SeawallDataSource):
    """A source with the options of the real one."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "seawall_bench_memory"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        check_schema(schema, read_options(self.options, is_stream=False))
        return MemoryReader(read_options(self.options, is_stream=False))


class MemoryReader(SeawallReader):
    """Yields rows from memory."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield as many rows as the task has."""
        wanted: SeqRange = partition.value
        batch = _batch(wanted.topic_id, self._options)
        left = len(wanted)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


@cache
def _cached_batches() -> dict[tuple[int, tuple[str, ...], str], pa.RecordBatch]:
    return {}


def _batch(topic_id: int, options: ReadOptions) -> pa.RecordBatch:
    """A batch of a topic, read once per worker."""
    from seawall.spark.reading import read_range

    cached = _cached_batches()
    key = (topic_id, options.columns, options.server.url)
    if key not in cached:
        # Drop the batches of earlier figures.
        cached.clear()
        topic = options.subscription.names[0]
        cached[key] = next(iter(read_range(SeqRange(topic, topic_id, 1, 1 << 40), options)))
    return cached[key]
