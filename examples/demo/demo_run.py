"""One run of the demo: starts all processes, shows progress, kills some of them, and waits for the end.

`History` records what happened; `demo_report` checks whether the result is right.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from demo_children import Child, ChildLine, DemoError, Server
from demo_directory import RunDirectory
from demo_workers import PROCESSES, Workers
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from shop_checks import Ack
from shop_events import BATCH_EVENTS, GROUP_EVENTS, INVOICED_ONE_OF, TOPICS, Batch, all_invoices
from shop_pipeline import QUERIES
from shop_results import committed_ends, forget_last_commit
from shop_tasks import INVOICES, QUEUE

import seawall

#: The fraction of events that are acked when the server is killed, and when Spark is.
KILL_SERVER_AT = 0.35
KILL_SPARK_AT = 0.65
POLL_S = 0.1
#: The topics that Spark writes.
OUTPUTS = ("ledger", "revenue")


@dataclass(slots=True)
class History:
    """The events of a run."""

    writers: int
    groups: int
    begun: float = field(default_factory=time.monotonic)
    acks: list[Ack] = field(default_factory=list)
    #: Batches sent again; those acked as duplicates; and the others, with the seq of their ack, or 0.
    repeated: int = 0
    recognised: int = 0
    unrecognised: list[Ack] = field(default_factory=list)
    #: Acked events when the server was killed, and the seconds until it was back; acked events when Spark was killed.
    server_killed_at: int | None = None
    server_away_s: float = 0.0
    spark_killed_at: int | None = None
    #: Queries whose last micro-batch was complete then and is rolled back; the others were killed within one.
    rolled_back: int = 0
    #: Restarts of failed queries.
    restarts: int = 0

    @property
    def events(self) -> int:
        """The number of events of the whole run."""
        return self.writers * self.groups * GROUP_EVENTS

    @property
    def acked(self) -> int:
        """The number of events acked so far."""
        return len(self.acks) * BATCH_EVENTS

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self.begun


class Run:
    """The processes of a run."""

    def __init__(
        self, paths: RunDirectory, console: Console, events: int, seconds: float, writers: int, limit_s: float
    ) -> None:
        if min(events, writers) < 1 or seconds < 0:
            raise DemoError("give at least one event and one writer")
        self.paths = paths
        self.history = History(writers, -(-events // (writers * GROUP_EVENTS)))
        self.server = Server(paths.data, paths.fabric, paths.output)
        self.workers = Workers(len(all_invoices(writers, self.history.groups)))
        self._writing_s = seconds
        self._limit_s = limit_s
        self._lines: queue.SimpleQueue[ChildLine] = queue.SimpleQueue()
        self._writers: list[Child] = []
        self._spark: Child | None = None
        self._is_spark_ready = self._is_spark_done = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
            console=console,
            expand=True,
        )
        self._bars: dict[str, TaskID] = {}

    def do(self, examine: Callable[[Run], tuple[list[str], list[str]]]) -> tuple[list[str], list[str]]:
        """Run everything and return the result of `examine`. Stops all processes."""
        try:
            with self._progress:
                self._start()
                self._write()
                self._finish()
                self.say("everything is read and written; now every record is checked, without Spark")
                return examine(self)
        finally:
            for child in (*self._writers, *([self._spark] if self._spark else [])):
                child.kill()
            self.workers.end()
            self.server.end()

    def say(self, text: str) -> None:
        """Print a line above the progress bars."""
        line = Table.grid(padding=(0, 2))
        line.add_row(f"[dim]{self.history.seconds:4.0f} s[/dim]", text)
        self._progress.console.print(line)

    def _start(self) -> None:
        self.server.start()
        with seawall.connect(self.server.url) as log:
            for topic, order in TOPICS.items():
                log.create_topic(topic, order=order)
            for topic in (*OUTPUTS, INVOICES, f"{QUEUE}.dead"):
                log.create_topic(topic)
            # Durable leases: the server counts deliveries also across its crash.
            log.create_topic(QUEUE, type="queue", dead_letter=f"{QUEUE}.dead", leases_durable=True)
        orders = ", ".join(f"{topic} (order {order})" for topic, order in TOPICS.items())
        self.say(f"the server listens on {self.server.url.removeprefix('seawall://')}: {orders}")
        self._bars["acked"] = self._progress.add_task("published and acked", total=self.history.events)
        for name, text in zip(
            QUERIES, ("Spark → topic ledger", "Spark → topic revenue", "Spark → Parquet"), strict=True
        ):
            self._bars[name] = self._progress.add_task(text, total=self.history.events)
        self._bars["jobs"] = self._progress.add_task("queue → topic invoices", total=self.workers.jobs)
        self._start_spark()
        while not self._is_spark_ready:
            self._poll()
        self.say("Spark runs three streaming queries and waits for events")

    def _start_spark(self) -> None:
        self._is_spark_ready = False
        arguments = ["shop_pipeline.py", self.server.url, str(self.paths.directory)]
        environ = {"SPARK_LOCAL_IP": "127.0.0.1"}
        self._spark = Child(arguments, self.paths.output, self._lines, environ)

    def _write(self) -> None:
        """Run the writers and the workers, and kill the server and Spark meanwhile."""
        history = self.history
        self.workers.start(self.server.url, self.paths.output, self._lines)
        for writer in range(history.writers):
            arguments = [self.server.url, f"{writer}", f"{history.groups}", f"{self._writing_s}"]
            self._writers.append(Child(["shop_writer.py", *arguments], self.paths.output, self._lines))
        self.say(f"{history.writers} writers, a process each, publish {history.events:,} events; Spark follows them")
        jobs = f"{self.workers.jobs:,} jobs, an invoice for one order in {INVOICED_ONE_OF}"
        self.say(f"{PROCESSES} worker processes execute {jobs}")
        while history.acked < history.events or history.spark_killed_at is None:
            self._poll()
            if history.server_killed_at is None and history.acked >= KILL_SERVER_AT * history.events:
                self._kill_server()
            elif history.spark_killed_at is None and history.acked >= KILL_SPARK_AT * history.events:
                self._kill_spark()

    def _kill_server(self) -> None:
        history = self.history
        killed = time.monotonic()
        self.server.kill()
        history.server_killed_at = history.acked
        self.say(f"[red]kill -9[/red] of the server, with {history.acked:,} events acked")
        self.server.start()
        history.server_away_s = time.monotonic() - killed
        self.say(f"the server is back after {history.server_away_s:.1f} s; writers and Spark reconnect by themselves")

    def _kill_spark(self) -> None:
        """Kill Spark once every query has committed a micro-batch, so that each has one to repeat."""
        history, directory = self.history, self.paths.directory
        if not all(committed_ends(directory / name) for name in QUERIES):
            return
        assert self._spark is not None
        self._spark.kill()
        history.spark_killed_at = history.acked
        history.rolled_back = sum(forget_last_commit(directory / name) for name in QUERIES)
        self.say(f"[red]kill -9[/red] of Spark, with {history.acked:,} events acked; it has micro-batches to repeat")
        self._start_spark()

    def _finish(self) -> None:
        """Wait until Spark has read all topics to their ends, and the queue is empty."""
        with seawall.connect(self.server.url) as log:
            ends = {topic: log.describe(topic).next_seq for topic in TOPICS}
            self.say("all events are acked; Spark reads the rest")
            assert self._spark is not None
            self._spark.send(ends)
            while not (self._is_spark_done and self.workers.is_done):
                self._poll()
                self.workers.stop_if_done(log)
        for bar in self._progress.tasks:
            self._progress.update(bar.id, completed=bar.total)

    def _poll(self) -> None:
        """Process the output of the child processes, and update the progress bars."""
        until = time.monotonic() + POLL_S
        while (left := until - time.monotonic()) > 0:
            try:
                self._handle(*self._lines.get(timeout=left))
            except queue.Empty:
                break
        history = self.history
        if history.seconds > self._limit_s:
            raise DemoError(f"the demo did not finish within {self._limit_s:.0f} s; see {self.paths.output}")
        if not self.server.is_running:
            raise DemoError(f"the server has stopped unexpectedly; see {self.paths.output}")
        self._progress.update(self._bars["acked"], completed=history.acked)
        self._progress.update(self._bars["jobs"], completed=self.workers.finished)
        for name in QUERIES:
            ends = committed_ends(self.paths.directory / name)
            read = sum(ack.first_seq < ends.get(ack.batch.topic, 0) for ack in history.acks) * BATCH_EVENTS
            self._progress.update(self._bars[name], completed=read)

    def _handle(self, child: Child, line: list[Any] | None) -> None:
        history = self.history
        if line is None:
            if self.workers.is_from(child):
                self.workers.exited()
            if child is not self._spark and child not in self._writers:
                return
            if child.process.wait() != 0:
                who = "Spark" if child is self._spark else "a writer"
                raise DemoError(f"{who} has failed; see {self.paths.output}")
            return
        kind, *rest = line
        if kind == "acked":
            topic, writer, client_seq, first_seq, _ = rest
            history.acks.append(Ack(Batch(topic, writer, client_seq), first_seq))
        elif kind == "repeated":
            topic, writer, client_seq, first_seq, is_duplicate = rest
            history.repeated += 1
            history.recognised += is_duplicate
            if not is_duplicate:
                history.unrecognised.append(Ack(Batch(topic, writer, client_seq), first_seq))
        elif kind == "sent":
            order, seq = rest
            self.workers.sent[order] = seq
        elif kind == "begun":
            if self.workers.begun(*rest):
                process, seq = rest
                self.say(f"[red]kill -9[/red] of worker process {process} at job {seq}; another one takes its place")
        elif kind == "ended":
            self.workers.ended(*rest)
        elif kind == "ready":
            self._is_spark_ready = True
        elif kind == "done" and child is self._spark:
            self._is_spark_done = True
            history.restarts = rest[0]
