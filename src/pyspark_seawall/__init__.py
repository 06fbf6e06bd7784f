"""The entry point for discovery: Spark imports top-level modules named `pyspark_…` and looks for `DefaultSource`."""

from seawall.spark.source import SeawallDataSource as DefaultSource

__all__ = ["DefaultSource"]
