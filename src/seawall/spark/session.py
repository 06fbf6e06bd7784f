"""A Spark session that finds its Java and its interpreter.

Everything here can be had without it: any session reads `format("seawall")`. What most sessions get wrong at first is
which Python the workers are (PYSPARK_PYTHON) and where Java is; both are set here if nobody has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from seawall.errors import InvalidInputError
from seawall.io.process.java import prepare_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What Seawall's source profits from, unless the caller says something else.
_SETTINGS: Final = {"spark.sql.python.filterPushdown.enabled": "true"}


def session(
    name: str = "seawall",
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A session, on all cores of this machine unless `master` names a cluster or `remote` a Spark Connect server."""
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
