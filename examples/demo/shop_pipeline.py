"""The Spark process of the demo: three streaming queries over all topics of the shop, until the demo stops them.

    python shop_pipeline.py URL DIRECTORY

    ledger    one row for each event, written to topic `ledger`
    revenue   sums by country, written to topic `revenue`: all of them with every micro-batch
    parquet   the rows of the ledger, as Parquet files

Each query has its checkpoint in the directory, and resumes from it if the query fails or the process is killed. A line
on standard input is the command to finish: a JSON object with the ends of the topics. The process writes one JSON array
per line to standard output, for the demo; the output of Spark goes to standard error.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from demo_tether import end_with_parent
from shop_events import TOPICS
from shop_results import committed_ends

import seawall.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

QUERIES = ("ledger", "revenue", "parquet")
TIMEOUT = "120s"
POLL_S = 0.2
#: A query that fails because the server was killed is restarted, but not one that always fails.
RESTARTS_MAX = 10

EVENT = "id string, country string, amount decimal(12,2)"


def start_session(directory: Path) -> SparkSession:
    """A session with two cores that writes only into the directory."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory}",
        "spark.local.dir": str(directory),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # The checks need the end of every micro-batch.
        "spark.sql.streaming.minBatchesToRetain": "100000",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return seawall.spark.session("seawall demo", master="local[2,4]", settings=settings)


def ledger_of(events: DataFrame) -> DataFrame:
    """A row for each event: its topic and offset, its id and country, and its amount of money."""
    parsed = events.select("topic", "offset", seawall.spark.from_json("value", EVENT).alias("event"))
    return parsed.selectExpr("topic", "offset", "event.id", "event.country", "coalesce(event.amount, 0) as amount")


def revenue_of(ledger: DataFrame) -> DataFrame:
    """Counts and sums by country."""

    def count(topic: str) -> str:
        return f"count_if(topic = '{topic}') as {topic}"

    def total(topic: str, name: str) -> str:
        return f"sum(if(topic = '{topic}', amount, 0)) as {name}"

    from pyspark.sql import functions

    sums = (count("orders"), total("orders", "ordered"), count("payments"), total("payments", "paid"), count("clicks"))
    return ledger.groupBy("country").agg(*map(functions.expr, sums))


class Pipeline:
    """The queries, with restarts of failed ones."""

    def __init__(self, spark: SparkSession, url: str, directory: Path) -> None:
        self._spark = spark
        self._server = {"url": url, "timeout": TIMEOUT}
        self._directory = directory
        self._running = {name: self._start(name) for name in QUERIES}
        self.restarts = 0

    def restart_failed(self) -> None:
        """Restart the queries that have failed."""
        for name, query in self._running.items():
            if not query.isActive:
                self.restarts += 1
                if self.restarts > RESTARTS_MAX:
                    raise RuntimeError(f"query {name} has failed too often: {query.exception()}")
                sys.stderr.write(f"restarting query {name}: {query.exception()}\n")
                self._running[name] = self._start(name)

    def has_reached(self, ends: dict[str, int]) -> bool:
        """True if all queries have committed everything below these seqs."""
        return all(committed_ends(self._directory / name) == ends for name in QUERIES)

    def stop(self) -> None:
        """Stop all queries."""
        for query in self._running.values():
            query.stop()

    def _start(self, name: str) -> StreamingQuery:
        options = self._server | {"subscribe": ",".join(TOPICS), "startingOffsets": "earliest"}
        events = self._spark.readStream.format("seawall").options(**options, columns="topic,offset,value").load()
        writer = self._writer(name, ledger_of(events))
        writer = writer.option("checkpointLocation", str(self._directory / name)).queryName(name)
        return writer.trigger(processingTime="1 second").start()

    def _writer(self, name: str, ledger: DataFrame) -> DataStreamWriter:
        if name == "parquet":
            return ledger.writeStream.format("parquet").option("path", str(self._directory / "files"))
        if name == "ledger":
            rows = ledger.selectExpr("id as key", "to_json(struct(*)) as value").writeStream
        else:
            sums = revenue_of(ledger).selectExpr("country as key", "to_json(struct(*)) as value")
            rows = sums.writeStream.outputMode("complete")
        return rows.format("seawall").options(**self._server, topic=name)


def main() -> int:
    """Run the queries until they have reached the ends that the demo sends."""
    url, directory = sys.argv[1], Path(sys.argv[2])
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    end_with_parent(commands.put)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = start_session(directory / "spark")
    pipeline = Pipeline(spark, url, directory)
    report(channel, ["ready"])
    ends: dict[str, int] | None = None
    while ends is None or not pipeline.has_reached(ends):
        time.sleep(POLL_S)
        pipeline.restart_failed()
        if not commands.empty():
            ends = json.loads(commands.get())
    pipeline.stop()
    report(channel, ["done", pipeline.restarts])
    spark.stop()
    return 0


def report(channel: TextIO, line: list[object]) -> None:
    """Send a line to the demo."""
    channel.write(json.dumps(line) + "\n")
    channel.flush()


if __name__ == "__main__":
    sys.exit(main())
