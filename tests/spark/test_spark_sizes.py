"""The largest records through a real Spark session: all are written; with one byte more, none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from seawall.limits import EXTENDED_VALUE_SIZE_MAX, RECORD_VALUE_SIZE_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from real_server import ServerProcess

    from seawall.client.remote_log import RemoteLog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: The size of an envelope with a key of one byte, without its data: flags, length of the key, the key.
ENVELOPE_EXTRA = 2 + 4 + 1


@pytest.mark.parametrize(
    ("topic", "bound", "columns"),
    [
        ("sizes-plain", RECORD_VALUE_SIZE_MAX, ()),
        ("sizes-keyed", EXTENDED_VALUE_SIZE_MAX - ENVELOPE_EXTRA, ("'k' as key",)),
    ],
)
def test_the_sink_at_the_size_limit_of_a_value(
    spark: SparkSession, server: ServerProcess, log: RemoteLog, topic: str, bound: int, columns: tuple[str, ...]
) -> None:
    log.create_topic(topic)

    def write(size: int) -> None:
        frame = spark.range(1, numPartitions=1).selectExpr(f"repeat('x', {size}) as value", *columns)
        frame.write.format("seawall").options(url=server.url, topic=topic).mode("append").save()

    for size in (bound - 1, bound):
        write(size)
    before = log.describe(topic)
    assert [len(value) for value in log.read_arrow(topic)["value"].to_pylist()] == [bound - 1, bound]
    with pytest.raises(PySparkException, match="split it"):
        write(bound + 1)
    assert log.describe(topic) == before
    write(10)
    assert log.describe(topic).next_seq == before.next_seq + 1
