"""The Spark driver of a chaos run: a separate process that may be killed at any moment and started again.

    python spark_driver.py PLAN    a JSON file: seed, life, master, url, folder, and how much goes wrong

Two queries continue from their checkpoints until a file `drain` exists: topic `in` through an unsorted shuffle to topic
`out`, and topic `in` to Parquet. Tasks fail or are slow at random, determined by the seed, the life of the driver and
the attempt. A failed query is recorded and started again. After `drain` both read all available records and end; then
the rows of the Parquet table, as Spark sees them, are stored for the checks.

The starting process reads `journal` (results of tasks) and `failures` (errors of queries).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import feather
from pyspark.errors import PySparkException
from spark_cluster import QUICK_JAVA

import seawall.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: How often a query may fail while it drains, after the last kill.
DRAIN_ATTEMPTS = 20

#: How often a query may fail without a batch in between before the driver ends, as an operator would decide.
#: What two queries share in the JVM has been seen to be broken from the start (a collection of Spark's own that could
#: not be serialized, "Illegal size 5 of collection, expected 6"), and then no query of that driver ever works.
FAILURES_IN_A_ROW = 10

SCHEMA = "value binary, offset long"

#: Many concurrent attempts, failed attempts that stop no query, and timeouts that tolerate a stalled process.
SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.eventLog.compress": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.executor.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.network.timeout": "300s",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.sql.execution.sortBeforeRepartition": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "120s",
    "spark.stage.maxConsecutiveAttempts": "50",
    "spark.task.maxFailures": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

Passing = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def troubled(plan: dict[str, Any], query: str) -> Passing:
    """Pass rows on, and fail or sleep after some of them, at random for each attempt."""
    journal = str(Path(plan["folder"]) / "journal")

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        who = f"{query} {context.getLocalProperty('streaming.sql.batchId')} {context.partitionId()}"
        who += f" {context.attemptNumber()}"
        dice = random.Random(f"{plan['seed']} {plan['life']} {who}")
        fate, due = dice.random(), dice.randrange(6)
        rows = 0

        def note(what: str) -> None:
            with open(journal, "a", encoding="ascii") as lines:
                lines.write(f"{who} {what} {rows}\n")

        def meet_fate() -> None:
            if fate < plan["fails"]:
                note("failed")
                raise RuntimeError("an injected failure")
            if fate < plan["fails"] + plan["slows"] and context.attemptNumber() == 0:
                note("slow")
                time.sleep(plan["slow_s"])

        for batch in batches:
            rows += batch.num_rows
            yield batch
            if due == 0:
                meet_fate()
            due -= 1
        if due >= 0:
            meet_fate()
        note("whole")

    return passing


class Queries:
    """Both queries of a session, each from its checkpoint."""

    def __init__(self, spark: SparkSession, plan: dict[str, Any]) -> None:
        self._spark = spark
        self._plan = plan
        self._folder = Path(plan["folder"])
        self._makers = {"topic": self._to_topic, "parquet": self._to_parquet}
        self._running: dict[str, StreamingQuery] = {}
        self._failed: dict[str, int] = {}

    def follow(self) -> None:
        """Run both queries until it is time to drain."""
        drain = self._folder / "drain"
        while not drain.exists():
            for name in self._makers:
                query = self._running.get(name)
                if query is not None and not query.isActive:
                    self._note_failure(name, query.exception())
                    self._count_failure(name, query)
                if query is None or not query.isActive:
                    self._running[name] = self._makers[name](False)
            time.sleep(0.1)
        for query in self._running.values():
            query.stop()

    def _count_failure(self, name: str, query: StreamingQuery) -> None:
        self._failed[name] = 1 if query.recentProgress else self._failed.get(name, 0) + 1
        if self._failed[name] == FAILURES_IN_A_ROW:
            raise RuntimeError(f"query {name} has failed {FAILURES_IN_A_ROW} times without a batch in between")

    def drain(self) -> None:
        """Read all available records, and end."""
        left = dict(self._makers)
        for _ in range(DRAIN_ATTEMPTS):
            running = {name: make(True) for name, make in left.items()}
            for name, query in running.items():
                try:
                    query.awaitTermination()
                    del left[name]
                except PySparkException as error:
                    self._note_failure(name, error)
            if not left:
                return
        raise RuntimeError(f"queries do not end: {', '.join(left)}")

    def store_rows(self) -> None:
        """Store the rows of the Parquet table, as listed by Spark."""
        rows = self._spark.read.parquet(str(self._folder / "parquet")).selectExpr("offset", "md5(value) as digest")
        made = self._folder / "rows.part"
        feather.write_feather(rows.toArrow(), made)
        made.rename(self._folder / "rows.arrow")

    def _rows(self, query: str, ends: bool) -> DataFrame:
        reader = self._spark.readStream.format("seawall").options(url=self._plan["url"], timeout="90s")
        reader = reader.options(subscribe="in", startingOffsets="earliest", columns="value,offset", minPartitions="3")
        frame = reader.option("maxOffsetsPerTrigger", "20000" if ends else "3000").load()
        if query == "topic":
            frame = frame.repartition(3)
        return frame.mapInArrow(troubled(self._plan, query), SCHEMA)

    def _to_topic(self, ends: bool) -> StreamingQuery:
        rows = self._rows("topic", ends).selectExpr("value", "string(offset) as key")
        writer = rows.writeStream.format("seawall").options(url=self._plan["url"], topic="out", timeout="90s")
        return self._start(writer, "topic", ends)

    def _to_parquet(self, ends: bool) -> StreamingQuery:
        writer = self._rows("parquet", ends).writeStream.format("parquet")
        return self._start(writer.option("path", str(self._folder / "parquet")), "parquet", ends)

    def _start(self, writer: Any, name: str, ends: bool) -> StreamingQuery:
        trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
        writer = writer.option("checkpointLocation", str(self._folder / f"checkpoint-{name}"))
        query: StreamingQuery = writer.trigger(**trigger).start()
        return query

    def _note_failure(self, name: str, error: Exception | None) -> None:
        with (self._folder / "failures").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(f"life {self._plan['life']}, query {name}: {error}") + "\n")


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(plan["folder"])
    settings = SETTINGS | {
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = seawall.spark.session("under-fire", master=plan["master"], settings=settings)
    queries = Queries(spark, plan)
    queries.follow()
    queries.drain()
    queries.store_rows()
    spark.stop()


if __name__ == "__main__":
    main()
