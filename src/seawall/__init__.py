"""Seawall: an ordered, durable shared log for Python and Spark.

Importing this package is cheap on purpose: numba, pyarrow, pyspark and the network stack are loaded by the
rooms that need them, when they are first used.
"""

__version__ = "0.1.0"
