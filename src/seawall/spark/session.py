"""Creates a Spark session with a Java runtime and the right Python for its workers.

It is a convenience: any session reads `format("seawall")`. The usual mistakes in a new setup are the Python of the
workers (PYSPARK_PYTHON) and the location of Java; this module sets both if they are not set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from seawall.errors import InvalidInputError
from seawall.io.process.java import prepare_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Defaults that help Seawall's source; the caller's settings override them.
_SETTINGS: Final = {"spark.sql.python.filterPushdown.enabled": "true"}


def session(
    name: str = "seawall",
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Create a Spark session, or return the active one.

    It runs on all cores of this machine, unless `master` names a cluster or `remote` a Spark Connect server. It finds a
    Java runtime and sets the Python of the workers, unless both are set. `settings` are Spark configuration entries.
    """
    if master is not None and remote is not None:
        raise InvalidInputError(f"a session has a master or is remote: {master!r} and {remote!r} were both given")
    if remote is None:
        prepare_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    builder = builder.master(master or "local[*]") if remote is None else builder.remote(remote)
    for key, value in (_SETTINGS | (settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
