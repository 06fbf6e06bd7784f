"""Suite `spark`: Spark reads from a topic and writes to one.

All figures share one local Spark session on all cores, which ends with the process. Queries write to Spark's `noop`
sink, which discards every row. The baseline of reading is a Python source whose tasks repeatedly yield one Arrow batch
that they have read from the same topic before; the baseline of writing is a Python sink that discards its rows.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, BenchContext, Measurement, Run, Subject
from seawall.bench.results import Better, Goal
from seawall.bench.subjects.publish_node import TOPIC, running_node
from seawall.engine.api.embedded import EmbeddedLog
from seawall.errors import InvariantError, UnsupportedError
from seawall.limits import GIB, KIB, MIB
from seawall.wire.format.fields import JsonValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Bytes in the topic, which is read repeatedly from the page cache.
STORED_SIZE: Final = 384 * MIB
_SEGMENT_SIZE: Final = 16 * MIB
_CALL_SIZE: Final = MIB

#: Cap of the topic that Spark writes to.
_WRITTEN_SIZE: Final = 512 * MIB

#: Micro-batches of one record. The first ones do not count: they start workers.
_MICRO_BATCHES: Final = 12
_WARM_BATCHES: Final = 4

#: Makes the frame that a query reads, from the URL of a server and a record count.
Frame = Callable[["SparkSession", str, int], "DataFrame"]


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    for size, columns, note in (
        (KIB, "", "all columns"),
        (100, "", "all columns"),
        (100, "offset,value", "columns=offset,value"),
    ):
        name = f"batch read of sealed segments, {_size_text(size)} records, {note}"
        memory = Baseline("the same rows out of memory", reading(context.directory, size, from_memory(columns)))
        yield Measurement(
            name,
            "B/s",
            Better.HIGHER,
            reading(context.directory, size, from_topic(columns)),
            baseline=memory,
            goal=Goal.ratio_at_least(0.8),
            note=f"{STORED_SIZE // MIB} MiB of values; both sides are Spark jobs",
        )
    for size in (KIB, 100):
        yield Measurement(
            f"batch write, {_size_text(size)} records",
            "B/s",
            Better.HIGHER,
            writing(context.directory, size, discards=False),
            baseline=Baseline("a Python sink that discards", writing(context.directory, size, discards=True)),
            goal=Goal.ratio_at_least(0.5),
            note=f"{STORED_SIZE // MIB} MiB of values in one job, staged and committed once",
        )
    yield Measurement(
        "micro-batch of one record, to noop",
        "s",
        Better.LOWER,
        micro_batches(context.directory, from_stream),
        baseline=Baseline("a micro-batch of Spark's own rate source", micro_batches(context.directory, from_rate)),
        note=f"median over {_MICRO_BATCHES - _WARM_BATCHES} triggers of one query",
    )


@cache
def spark_session() -> SparkSession:
    """The Spark session that all figures share."""
    if find_spec("pyspark") is None:
        raise UnsupportedError("PySpark is not installed: pip install 'seawall[spark]'")
    import seawall.spark

    settings = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.log.level": "FATAL",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    return seawall.spark.session("seawall bench", settings=settings)


def reading(directory: Path, record_size: int, frame: Frame) -> Subject:
    """Bytes of record values per second that Spark reads from a frame."""

    @contextmanager
    def opened() -> Iterator[Run]:
        spark = spark_session()
        count = max(1, STORED_SIZE // record_size)
        settings: dict[str, JsonValue] = {
            "cap_bytes": 4 * GIB,
            "segment_max_bytes": _SEGMENT_SIZE,
            "durability": "disk",
        }
        with running_node(directory, _filling(record_size, count), **settings) as address:
            query = frame(spark, f"seawall://{address}", count)
            if query.count() != count:
                raise InvariantError("INV-BENCH-OK", f"read {query.count()} of {count} rows")
            yield _runs(query, count * record_size)

    return opened


def from_topic(columns: str) -> Frame:
    """Read a topic by the Seawall source."""

    def frame(spark: SparkSession, url: str, count: int) -> DataFrame:
        options = {"url": url, "subscribe": TOPIC} | ({"columns": columns} if columns else {})
        return spark.read.format("seawall").options(**options, endingOffsets=_end(count)).load()

    return frame


def from_memory(columns: str) -> Frame:
    """Produce the same number of such rows from memory."""

    def frame(spark: SparkSession, url: str, count: int) -> DataFrame:
        from seawall.bench.subjects.spark_memory import MemoryDataSource

        spark.dataSource.register(MemoryDataSource)
        options = {"url": url, "subscribe": TOPIC} | ({"columns": columns} if columns else {})
        return spark.read.format(MemoryDataSource.name()).options(**options, endingOffsets=_end(count)).load()

    return frame


def writing(directory: Path, record_size: int, *, discards: bool) -> Subject:
    """Bytes of record values per second that Spark writes to a topic, or to a sink that discards them."""

    @contextmanager
    def opened() -> Iterator[Run]:
        spark = spark_session()
        from seawall.bench.figures.spark_sink import into_nothing, into_topic, writes

        with running_node(directory, cap_bytes=_WRITTEN_SIZE) as address:
            writer = into_nothing if discards else into_topic
            yield writes(spark, f"seawall://{address}", record_size, max(1, STORED_SIZE // record_size), writer)

    return opened


def micro_batches(directory: Path, frame: Callable[[SparkSession, str], DataFrame]) -> Subject:
    """Seconds per micro-batch of one record."""

    @contextmanager
    def opened() -> Iterator[Run]:
        spark = spark_session()
        with running_node(directory, _filling(100, _MICRO_BATCHES)) as address:
            yield lambda _seconds: _trigger_time(frame(spark, f"seawall://{address}"), directory)

    return opened


def from_stream(spark: SparkSession, url: str) -> DataFrame:
    """Stream a topic, one record per micro-batch."""
    options = {"url": url, "subscribe": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
    return spark.readStream.format("seawall").options(**options).load()


def from_rate(spark: SparkSession, _url: str) -> DataFrame:
    """Stream rows that Spark generates, one per micro-batch."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()


def _trigger_time(stream: DataFrame, directory: Path) -> float:
    with tempfile.TemporaryDirectory(prefix="seawall-bench-", dir=directory) as checkpoint:
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            while len(found := _triggers(query.recentProgress)) < _MICRO_BATCHES:
                if query.awaitTermination(1):
                    raise InvariantError("INV-BENCH-OK", f"the query ended: {query.exception()}")
        finally:
            query.stop()
    return median(found[_WARM_BATCHES:_MICRO_BATCHES]) / 1e3


def _triggers(progress: Sequence[object]) -> list[int]:
    """Milliseconds of every trigger that had a record."""
    reports = [json.loads(str(getattr(each, "json", each))) for each in progress]
    return [int(each["durationMs"]["triggerExecution"]) for each in reports if each["numInputRows"]]


def _runs(query: DataFrame, size: int) -> Run:
    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        read = 0
        while not read or perf_counter_ns() < deadline:
            query.write.format("noop").mode("overwrite").save()
            read += size
        return read * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run


def _filling(record_size: int, count: int) -> Callable[[EmbeddedLog], None]:
    """A function that publishes `count` records and two more segments, so that the counted records are sealed."""

    def fill(log: EmbeddedLog) -> None:
        per_call = max(1, _CALL_SIZE // record_size)
        records = [os.urandom(record_size) for _ in range(per_call)]
        with log.publisher(TOPIC) as publisher:
            left = count + 2 * _SEGMENT_SIZE // record_size
            while left > 0:
                publisher.publish(records[:left])
                left -= per_call
        log.checkpoint()

    return fill


def _end(count: int) -> str:
    return json.dumps({TOPIC: {"0": count + 1}})


def _size_text(size: int) -> str:
    return f"{size // KIB} KiB" if size % KIB == 0 else f"{size} B"
