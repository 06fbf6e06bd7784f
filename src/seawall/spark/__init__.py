"""Seawall for Spark: `format("seawall")`, a session that finds its Java, and decoders for values.

    import seawall.spark

    spark = seawall.spark.session("my query")
    reading = spark.readStream.format("seawall").option("url", "seawall://host:1992")
    events = reading.option("subscribe", "events").load()

Spark finds the format by itself where this package is installed for its Python (`pyspark_seawall`); `register` makes
it known to a session that does not look. Importing this loads no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seawall.spark.decoding import from_arrow_ipc, from_avro, from_json, header
from seawall.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["from_arrow_ipc", "from_avro", "from_json", "header", "register", "session"]


def register(spark: SparkSession) -> None:
    """Make `format("seawall")` known to a session."""
    from seawall.spark.source import SeawallDataSource

    spark.dataSource.register(SeawallDataSource)
