"""A Python data source that does nothing: the baseline of the suite `spark`.

Its tasks are those of the real source. Each reads the first batch of its range when a worker meets it first, and yields
slices of it from then on until as many rows are out as its range has.
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
    """Takes the options of the real one."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "seawall_bench_memory"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        check_schema(schema, read_options(self.options, is_stream=False))
        return MemoryReader(read_options(self.options, is_stream=False))


class MemoryReader(SeawallReader):
    """Yields what is in memory."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As many rows as the task has."""
        wanted: SeqRange = partition.value
        batch = _batch(wanted.topic_id, self._options)
        left = len(wanted)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


@cache
def _known() -> dict[tuple[int, tuple[str, ...], str], pa.RecordBatch]:
    return {}


def _batch(topic_id: int, options: ReadOptions) -> pa.RecordBatch:
    """A batch of a topic, read once in a worker."""
    from seawall.spark.reading import read_range

    known = _known()
    key = (topic_id, options.columns, options.server.url)
    if key not in known:
        # Topics of figures before are of no use any more.
        known.clear()
        topic = options.subscription.names[0]
        known[key] = next(iter(read_range(SeqRange(topic, topic_id, 1, 1 << 40), options)))
    return known[key]
