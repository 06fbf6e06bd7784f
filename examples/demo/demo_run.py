"""One run: starts everything, shows how far it is, kills the server and Spark on the way, and waits for the end.

What happened is kept in a `History`; whether the result is right is somebody else's matter (`demo_verdict`).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from demo_children import Child, DemoError, Said, Server
from demo_place import Place
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from shop_checks import Ack
from shop_events import BATCH_EVENTS, GROUP_EVENTS, TOPICS, Batch
from shop_pipeline import QUERIES
from shop_results import committed_ends, forget_last_commit

import seawall

#: Shares of the events that are acked when the server is killed, and when Spark is.
KILL_SERVER_AT = 0.35
KILL_SPARK_AT = 0.65
LOOK_S = 0.1
#: Everything for topics whose rows Spark writes.
OUTPUTS = ("ledger", "revenue")


@dataclass(slots=True)
class History:
    """What happened in a run."""

    writers: int
    groups: int
    begun: float = field(default_factory=time.monotonic)
    acks: list[Ack] = field(default_factory=list)
    #: Repetitions, of which some were told to be that; the others, with the seq that was told, 0 where none was.
    repeated: int = 0
    recognised: int = 0
    unrecognised: list[Ack] = field(default_factory=list)
    #: Acked events when the server was killed, and the seconds until it was back; the same of Spark.
    server_killed_at: int | None = None
    server_away_s: float = 0.0
    spark_killed_at: int | None = None
    #: Queries whose last micro-batch was done then and has to be done again; the others were killed within one.
    taken_back: int = 0
    #: Queries that had failed and were started again by themselves.
    restarts: int = 0

    @property
    def events(self) -> int:
        """Events of the whole run."""
        return self.writers * self.groups * GROUP_EVENTS

    @property
    def acked(self) -> int:
        """Events that are acked by now."""
        return len(self.acks) * BATCH_EVENTS

    @property
    def seconds(self) -> float:
        """How long it takes by now."""
        return time.monotonic() - self.begun


class Run:
    """Everything that runs."""

    def __init__(
        self, place: Place, console: Console, events: int, seconds: float, writers: int, limit_s: float
    ) -> None:
        if min(events, writers) < 1 or seconds < 0:
            raise DemoError("give at least one event and one writer")
        self.place = place
        self.history = History(writers, -(-events // (writers * GROUP_EVENTS)))
        self.server = Server(place.data, place.fabric, place.output)
        self._writing_s = seconds
        self._limit_s = limit_s
        self._said: queue.SimpleQueue[Said] = queue.SimpleQueue()
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
        """Run it all; what `examine` says of it in the end. Nothing is left running."""
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
            self.server.end()

    def say(self, text: str) -> None:
        """A line above the bars."""
        line = Table.grid(padding=(0, 2))
        line.add_row(f"[dim]{self.history.seconds:4.0f} s[/dim]", text)
        self._progress.console.print(line)

    def _start(self) -> None:
        self.server.start()
        with seawall.connect(self.server.url) as log:
            for topic, order in TOPICS.items():
                log.create_topic(topic, order=order)
            for topic in OUTPUTS:
                log.create_topic(topic)
        orders = ", ".join(f"{topic} (order {order})" for topic, order in TOPICS.items())
        self.say(f"a server listens on {self.server.url.removeprefix('seawall://')}: {orders}")
        self._bars["acked"] = self._progress.add_task("published and acked", total=self.history.events)
        for name, text in zip(
            QUERIES, ("Spark → topic ledger", "Spark → topic revenue", "Spark → Parquet"), strict=True
        ):
            self._bars[name] = self._progress.add_task(text, total=self.history.events)
        self._start_spark()
        while not self._is_spark_ready:
            self._look()
        self.say("Spark runs three streaming queries, and waits for events")

    def _start_spark(self) -> None:
        self._is_spark_ready = False
        arguments = ["shop_pipeline.py", self.server.url, str(self.place.directory)]
        environ = {"SPARK_LOCAL_IP": "127.0.0.1"}
        self._spark = Child(arguments, self.place.output, self._said, environ)

    def _write(self) -> None:
        """Let the writers write, and kill on the way."""
        history = self.history
        for writer in range(history.writers):
            arguments = [self.server.url, f"{writer}", f"{history.groups}", f"{self._writing_s}"]
            self._writers.append(Child(["shop_writer.py", *arguments], self.place.output, self._said))
        self.say(f"{history.writers} writers, a process each, publish {history.events:,} events; Spark follows them")
        while history.acked < history.events or history.spark_killed_at is None:
            self._look()
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
        self.say(f"it is back after {history.server_away_s:.1f} s; writers and Spark go on by themselves")

    def _kill_spark(self) -> None:
        """Once every query has done something: then each has a batch to do again."""
        history, directory = self.history, self.place.directory
        if not all(committed_ends(directory / name) for name in QUERIES):
            return
        assert self._spark is not None
        self._spark.kill()
        history.spark_killed_at = history.acked
        history.taken_back = sum(forget_last_commit(directory / name) for name in QUERIES)
        self.say(f"[red]kill -9[/red] of Spark, with {history.acked:,} events acked; it has batches to do again")
        self._start_spark()

    def _finish(self) -> None:
        """Have Spark come to the end of the topics, and wait for it."""
        with seawall.connect(self.server.url) as log:
            ends = {topic: log.describe(topic).next_seq for topic in TOPICS}
        self.say("all events are acked; Spark reads the rest")
        assert self._spark is not None
        self._spark.tell(ends)
        while not self._is_spark_done:
            self._look()
        for name in self._bars:
            self._progress.update(self._bars[name], completed=self.history.events)

    def _look(self) -> None:
        """Take what children have said, and show how far everything is."""
        until = time.monotonic() + LOOK_S
        while (left := until - time.monotonic()) > 0:
            try:
                self._take(*self._said.get(timeout=left))
            except queue.Empty:
                break
        history = self.history
        if history.seconds > self._limit_s:
            raise DemoError(f"it has not come to its end in {self._limit_s:.0f} s; {self.place.output} may say why")
        if not self.server.is_running:
            raise DemoError(f"the server has ended by itself; {self.place.output} may say why")
        self._progress.update(self._bars["acked"], completed=history.acked)
        for name in QUERIES:
            ends = committed_ends(self.place.directory / name)
            read = sum(ack.first_seq < ends.get(ack.batch.topic, 0) for ack in history.acks) * BATCH_EVENTS
            self._progress.update(self._bars[name], completed=read)

    def _take(self, child: Child, line: list[Any] | None) -> None:
        history = self.history
        if line is None:
            if child is not self._spark and child not in self._writers:
                return
            if child.process.wait() != 0:
                who = "Spark" if child is self._spark else "a writer"
                raise DemoError(f"{who} has failed; {self.place.output} says why")
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
        elif kind == "ready":
            self._is_spark_ready = True
        elif kind == "done" and child is self._spark:
            self._is_spark_done = True
            history.restarts = rest[0]
