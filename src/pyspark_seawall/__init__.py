"""Where Spark looks for `format("seawall")` by itself: top-level modules called `pyspark_…`, and in them this name."""

from seawall.spark.source import SeawallDataSource as DefaultSource

__all__ = ["DefaultSource"]
