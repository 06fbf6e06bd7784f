"""Decodes values into Spark columns: JSON, Avro, Arrow IPC and headers. The source itself decodes envelopes.

    from seawall.spark import from_json, from_arrow_ipc, header

    events.select("offset", from_json("value", "user long, amount double").alias("event"))
    events.select(header("trace-id"))                     # of a query with includeHeaders=true
    from_arrow_ipc(events, "user long, amount double")    # every value is a stream of Arrow batches

JSON and Avro use Spark's own functions, which run in the JVM; this module adapts them to binary columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def from_json(column: Column | str, schema: StructType | str, options: Mapping[str, str] | None = None) -> Column:
    """Decode JSON values into a struct; null for values that are not JSON."""
    from pyspark.sql import functions

    return functions.from_json(_column(column).cast("string"), schema, dict(options or {}))


def from_avro(column: Column | str, schema_json: str, options: Mapping[str, str] | None = None) -> Column:
    """Decode Avro values into a struct. The session needs the package `spark-avro`; Spark reports if it is missing."""
    from pyspark.sql.avro.functions import from_avro as spark_from_avro

    return spark_from_avro(_column(column), schema_json, dict(options or {}))


def from_arrow_ipc(frame: DataFrame, schema: StructType | str, column: str = "value") -> DataFrame:
    """Decode values that are Arrow IPC streams into their rows; nulls and empty values have no rows."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for value in batch.column(0):
                content = value.as_buffer()
                if content is not None and content.size:
                    with pa.ipc.open_stream(content) as stream:
                        yield from stream

    return frame.select(column).mapInArrow(decode, schema)


def header(name: str, column: Column | str = "headers") -> Column:
    """The value of the first header with this name; null if there is none."""
    from pyspark.sql import functions

    named = functions.filter(_column(column), lambda entry: entry["key"] == name)
    return functions.get(named, functions.lit(0))["value"]


def _column(column: Column | str) -> Column:
    from pyspark.sql import functions

    return functions.col(column) if isinstance(column, str) else column
