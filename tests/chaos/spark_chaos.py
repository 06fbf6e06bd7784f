"""Exactly-once under kills: a server, a feeder, a Spark cluster and a driver, which are killed one after another.

The feeder publishes numbered records to topic `in` all the time. The driver (`spark_driver.py`) copies them to topic
`out` and to Parquet. A seed determines the order of the kills and the pauses between them; after each kill both copies
must grow again. At the end all records are copied, and input and copies are compared record by record.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from chaos_clients import SyncPublisher
from chaos_history import History, ReadItem, judge, mark_of, value_of
from chaos_node import ChaosNode
from spark_cluster import SparkCluster, kill_tree
from spark_history import Outcome, compare, digest, judge_failures, read_event_logs

import seawall
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.open_log import open_log
from seawall.wire.format.gaps import Gap

HERE = Path(__file__).parent
KINDS = ("driver", "executor", "server")

#: How long the feeder and the progress check try to connect: machines may stall for a while.
CLIENT_S = 300.0
#: Batches that both copies must grow by after a kill: the first may have been in flight before it.
BATCHES = 2
#: How often drivers may end by themselves before that is a complaint: a stalled one may be given up by Spark.
DRIVER_FAILURES_MAX = 5


@dataclass(frozen=True)
class Patience:
    """Bounds in seconds: until both copies grow again and for the drain, while this runs; by the wall for all of it."""

    progress_s: float = 300
    drain_s: float = 600
    whole_s: float = 7_200


class AwakeClock:
    """A clock of the seconds in which this process ran, so that a stall of the machine is no failure."""

    _STEP_S = 2.0

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._seconds = 0.0

    def now(self) -> float:
        """The time now; a long interval between two calls counts as a short one."""
        before, self._looked = self._looked, time.monotonic()
        self._seconds += min(self._looked - before, self._STEP_S)
        return self._seconds


class StuckError(Exception):
    """The run cannot continue; the message is the complaint."""


def counted(last: tuple[int, int]) -> tuple[int, int]:
    """The numbers of batches, from the numbers of the last ones."""
    return last[0] + 1, last[1] + 1


class Feeder(SyncPublisher):
    """Publishes a few records at a time, large enough that a task stages some before its end."""

    timeout_s = CLIENT_S

    def next_values(self) -> list[bytes]:
        values = []
        for _ in range(self.random.randrange(1, 20)):
            values.append(value_of(self.name, 0, self._number, self.random.randrange(3_000)))
            self._number += 1
        return values

    def pause_s(self) -> float:
        return self.random.uniform(0.02, 0.1)


class SparkChaos:
    """Runs a seed in a directory."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        kills: int,
        patience: Patience | None = None,
        *,
        cores: int = 2,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._random = random.Random(f"{seed} spark")
        self._folder = folder
        self._kills = kills
        self._patience = patience or Patience()
        self._clock = AwakeClock()
        self._until = time.monotonic() + self._patience.whole_s
        self._node = ChaosNode(folder / "data", "--drain", "60")
        self._cluster = SparkCluster(folder / "cluster", cores)
        self._driver: subprocess.Popen[bytes] | None = None
        self._life = 0
        self.outcome = Outcome(seed)

    def run(self) -> Outcome:
        began = time.monotonic()
        (self._folder / "events").mkdir()
        try:
            with self._node, self._cluster, ExitStack() as ends:
                ends.callback(self._kill_driver)
                self._run(ends)
        except StuckError as problem:
            self.outcome.complaints.append(str(problem))
        else:
            self._judge()
        self._count()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _run(self, ends: ExitStack) -> None:
        url = f"seawall://127.0.0.1:{self._node.port}"
        log = ends.enter_context(seawall.connect(url, timeout_s=CLIENT_S))
        log.create_topic("in")
        log.create_topic("out")
        self._feeder = Feeder("feeder", url, self.outcome.seed, "in", 11)
        self._feeder.start()
        # While there is a server: without one, the feeder would try to reconnect for minutes.
        ends.callback(self._feeder.end, CLIENT_S)
        ends.callback(self._feeder.is_ending.set)
        self._start_driver()
        self._await_progress(log, "the start")
        acts = {"driver": self._replace_driver, "executor": self._kill_executor, "server": self._kill_server}
        for kind in self._order():
            # At any moment of a batch.
            time.sleep(self._random.uniform(0, 3))
            acts[kind]()
            self.outcome.kills.append(kind)
            self._await_progress(log, f"kill {len(self.outcome.kills)}, {kind}")
        self._drain()
        self.outcome.batches = counted(self._progress(log))
        code = self._node.terminate()
        if code:
            raise StuckError(f"the last SIGTERM ended with {code}: {self._node.said()[-2000:]}")

    def _order(self) -> list[str]:
        """The kinds to kill: equally often, in random order."""
        kinds = [KINDS[number % len(KINDS)] for number in range(self._kills)]
        self._random.shuffle(kinds)
        return kinds

    # --- kills -----------------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        self._life += 1
        plan = {
            "seed": self.outcome.seed,
            "life": self._life,
            "master": self._cluster.url,
            "url": f"seawall://127.0.0.1:{self._node.port}",
            "folder": str(self._folder),
            "fails": 0.08,
            "slows": 0.08,
            "slow_s": 1.5,
        }
        path = self._folder / f"plan-{self._life}.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        with (self._folder / "driver.log").open("ab") as said:
            command = [sys.executable, str(HERE / "spark_driver.py"), str(path)]
            environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
            self._driver = subprocess.Popen(
                command, env=environ, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _kill_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            kill_tree(self._driver)

    def _replace_driver(self) -> None:
        self._kill_driver()
        self._start_driver()

    def _kill_executor(self) -> None:
        deadline = self._clock.now() + self._patience.progress_s
        while True:
            # It may have ended by itself in the meantime.
            with suppress(ProcessLookupError, IndexError):
                os.kill(self._random.choice(self._cluster.executors()), signal.SIGKILL)
                return
            if self._is_over(deadline):
                raise StuckError(f"no executor is there to be killed: {self._driver_said()}")
            time.sleep(0.1)

    def _kill_server(self) -> None:
        self._node.kill()
        time.sleep(self._random.choice((0.0, 0.0, 0.5, 2.0)))
        self._node.start()

    # --- progress --------------------------------------------------------------------------------------------------

    def _progress(self, log: RemoteLog) -> tuple[int, int]:
        """The last batch in the topic, and the last one in the Parquet table; -1 for none."""
        in_topic = -1
        begun = self._folder / "checkpoint-topic" / "metadata"
        if begun.exists():
            query = json.loads(begun.read_text(encoding="utf-8"))["id"]
            last = log.transaction_state(f"spark-query-{query}")
            in_topic = -1 if last is None else last.epoch
        listed = (self._folder / "parquet" / "_spark_metadata").glob("[0-9]*")
        return in_topic, max((int(path.name.removesuffix(".compact")) for path in listed), default=-1)

    def _await_progress(self, log: RemoteLog, after: str) -> None:
        began, before = time.monotonic(), self._progress(log)
        deadline = self._clock.now() + self._patience.progress_s
        while True:
            now = self._progress(log)
            if min(now[0] - before[0], now[1] - before[1]) >= BATCHES:
                self._tell(f"{after}: {time.monotonic() - began:.0f} s until both had grown, to {counted(now)}")
                return
            self._watch()
            if self._is_over(deadline):
                raise StuckError(
                    f"no progress after {after} in {self._patience.progress_s:.0f} s, or the time for all is over: "
                    f"batches {before} before, {now} now; queries failed with {self._failures()[-3:]}; driver: "
                    f"{self._driver_said()}"
                )
            time.sleep(0.1)

    def _watch(self) -> None:
        """Check the feeder, and restart a driver that has ended by itself."""
        if self._feeder.problem is not None:
            raise StuckError(f"the feeder failed: {self._feeder.problem!r}")
        assert self._driver is not None
        if self._driver.poll() is not None:
            self.outcome.driver_failures += 1
            if self.outcome.driver_failures > DRIVER_FAILURES_MAX:
                raise StuckError(f"drivers end by themselves: {self._driver_said()}")
            self._start_driver()

    def _is_over(self, deadline: float) -> bool:
        return self._clock.now() > deadline or time.monotonic() > self._until

    def _driver_said(self) -> str:
        return (self._folder / "driver.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _failures(self) -> list[str]:
        """Why queries failed, so far."""
        path = self._folder / "failures"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = []
        for line in lines:
            # A driver may have been killed while it wrote the last one.
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    # --- the end ---------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        deadline = self._clock.now() + self._patience.drain_s
        self._feeder.is_ending.set()
        if not self._feeder.end(min(self._patience.drain_s, max(0.0, self._until - time.monotonic()))):
            raise StuckError("the feeder does not end")
        (self._folder / "drain").touch()
        self._tell("the feeder has ended; the queries drain")
        assert self._driver is not None
        while self._driver.poll() != 0:
            self._watch()
            if self._is_over(deadline):
                raise StuckError(f"the queries do not end: {self._failures()[-3:]}; {self._driver_said()}")
            time.sleep(0.1)

    def _judge(self) -> None:
        """Compare input and copies."""
        from pyarrow import feather

        items = []
        given = []
        with open_log(self._node.data, create=False) as log:
            self.outcome.complaints += [f"verify: {finding}" for finding in log.verify().findings]
            for item in log.follow("in"):
                if isinstance(item, Gap):
                    items.append(ReadItem(item.first_seq, None, item.last_seq))
                elif not item.is_skip:
                    items += [ReadItem(each.seq, mark_of(each.value)) for each in item]
                    given += [(each.seq, digest(each.value)) for each in item]
            out = log.read_arrow("out", columns=("key", "value"))
        self.outcome.records = len(given)
        in_topic = [(int(row["key"]), digest(row["value"])) for row in out.to_pylist()]
        table = feather.read_table(self._folder / "rows.arrow", memory_map=False)
        in_files = zip(table["offset"].to_pylist(), table["digest"].to_pylist(), strict=True)
        self.outcome.complaints += judge(History([self._feeder.written], [], {"in": items}))
        self.outcome.complaints += compare("topic", given, in_topic)
        self.outcome.complaints += compare("Parquet", given, in_files)

    def _count(self) -> None:
        failures = self._failures()
        self.outcome.query_failures = len(failures)
        self.outcome.complaints += judge_failures(failures)
        journal = self._folder / "journal"
        if journal.exists():
            self.outcome.attempts.read_journal(journal.read_text(encoding="ascii"))
        read_event_logs(self._folder / "events", self.outcome.attempts)
