"""Reads one Spark partition, for the readers of batch queries and of streaming queries.

Spark imports this in processes that only plan, so the modules that read records are imported when a task runs. This
module must not know how records are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from seawall.spark.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Spark adds a partition without a value if there is nothing to read: it has no rows."""
    if partition.value is None:
        return iter(())
    from seawall.spark.reading import read_range

    return read_range(partition.value, options)
