"""Seawall for Spark: `format("seawall")`, a session that finds its Java, and decoders for values.

    import seawall.spark

    spark = seawall.spark.session("my query")
    reading = spark.readStream.format("seawall").option("url", "seawall://host:1992")
    events = reading.option("subscribe", "events").load()

Spark discovers the format if this package is installed for its Python (`pyspark_seawall`); `register` adds it to a
session without discovery. Importing this package does not import Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seawall.spark.decoding import from_arrow_ipc, from_avro, from_json, header
from seawall.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["from_arrow_ipc", "from_avro", "from_json", "header", "register", "session"]


def register(spark: SparkSession) -> None:
    """Register `format("seawall")` with a session that does not discover it."""
    from seawall.spark.source import SeawallDataSource

    spark.dataSource.register(SeawallDataSource)
