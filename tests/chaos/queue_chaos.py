"""One round of job queues under kills: a server, producers and workers as processes, seeded faults, a drain, checks.

Workers are killed and stopped at random moments, and replaced; the server is killed, shut down, stopped and restarted.
Then the faults end, the workers finish every job, and the server shuts down. The journals of all processes
(`queue_journal`) and the data directory are judged by `queue_history`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chaos_node import ChaosNode
from queue_chaos_producer import HEADER, push_until_the_end
from queue_chaos_worker import work_until_the_end
from queue_history import (
    FinalCounts,
    Letter,
    Life,
    QueueHistory,
    QueueKind,
    QueueOutcome,
    Result,
    judge,
    measure,
)
from queue_journal import RESULTS, mark_in, read_journal

import seawall
from seawall.api.received_record import ReceivedRecord
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.errors import SeawallError
from seawall.wire.format.gaps import Gap
from seawall.wire.jobs.dead_letters import DELIVERIES, FROM, REASON, SOURCE_SEQ, unmarked_meta

#: Children are forked off a process that has loaded the log and its clients, and done nothing else.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    ["seawall.engine.api.open_log", "seawall.client.remote_log", "seawall.client.aio_remote_log"]
)

#: How long the drain may take, and processes to end.
SETTLE_S = 120

LEASE_S = 1.5

#: Faults of the shortest round.
FAULTS_MIN = 3

#: The queues: what they promise, and their other settings. Each with a limit of deliveries has a topic of dead letters.
KINDS = {
    "plain": QueueKind(),
    "disk": QueueKind(),
    "durable": QueueKind(leases_durable=True),
    "limited": QueueKind(max_deliveries=3),
    "strict": QueueKind(leases_durable=True, max_deliveries=4),
}
SETTINGS: dict[str, dict[str, object]] = {"disk": {"durability": "disk", "claim_jitter_ms": 20}}


def make_queues(data: Path) -> None:
    """Create the queues, and the topic of results."""
    with open_log(data) as log:
        log.create_topic(RESULTS)
        for name, kind in KINDS.items():
            settings = {"leases_durable": kind.leases_durable, **SETTINGS.get(name, {})}
            if kind.max_deliveries:
                settings |= {"max_deliveries": kind.max_deliveries, "dead_letter": f"{name}-dead"}
            log.create_topic(name, type="queue", lease_ms=round(LEASE_S * 1_000), **settings)


@dataclass(frozen=True)
class Size:
    """How many processes a round has, and how many threads or tasks each worker. Every third worker is asyncio."""

    producers: int = 4
    workers: int = 8
    hands: int = 4


class Child:
    """A producer or a worker as a process, with a journal."""

    def __init__(self, run: Callable[..., None], folder: Path, name: str, plan: dict[str, object]) -> None:
        self.name = name
        self.journal = folder / f"{name}.journal"
        self._said = folder / f"{name}.err"
        plan |= {"name": name, "journal": str(self.journal), "said": str(self._said)}
        outlet, self._lifeline = CHILDREN.Pipe(duplex=False)
        self._process = CHILDREN.Process(target=run, args=(plan, outlet), name=name)
        self._process.start()
        outlet.close()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.exitcode

    def said(self) -> str:
        """The end of what it has printed."""
        return self._said.read_text(encoding="utf-8", errors="replace")[-2_000:] if self._said.exists() else ""

    def tell(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._lifeline.close()

    def stop(self) -> None:
        """Let it end in order."""
        self._lifeline.close()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code; None if it has not ended in time."""
        self._process.join(timeout_s)
        return self.code


class QueueRound:
    """Runs a seed in a directory."""

    def __init__(self, seed: int, folder: Path, seconds: float, size: Size | None = None) -> None:
        self._random = random.Random(f"{seed} queues")
        self._folder = folder
        self._seconds = seconds
        self._size = size or Size()
        self.outcome = QueueOutcome(seed)
        self._history = QueueHistory(KINDS)
        make_queues(folder / "data")
        # Every other round over several loops, which connections are dealt to anew whenever they come back.
        self._node = ChaosNode(folder / "data", "--drain", "60", "--brokers", "3" if seed % 2 else "1")
        self._life_started_ns = 0
        self._producers: list[Child] = []
        #: The present worker of each number, and all that there were.
        self._workers: list[Child] = []
        self._all_workers: list[Child] = []
        #: When to continue workers that are stopped.
        self._stopped: dict[Child, float] = {}

    def run(self) -> QueueOutcome:
        began = time.monotonic()
        with ExitStack() as ends:
            self._life_started_ns = time.monotonic_ns()
            ends.enter_context(self._node)
            ends.callback(self._kill_all)
            log = ends.enter_context(seawall.connect(self._url, timeout_s=SETTLE_S))
            self._start_all()
            self._inject_faults()
            try:
                self._settle(log)
            except SeawallError as error:
                self._complain(f"the server does not answer: {error!r}")
        if not self.outcome.complaints:
            self._judge()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    @property
    def _url(self) -> str:
        return f"seawall://127.0.0.1:{self._node.port}"

    # --- processes -------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        queues = {name: kind.max_deliveries > 0 for name, kind in KINDS.items()}
        for number in range(self._size.producers):
            plan: dict[str, object] = {"seed": self.outcome.seed, "url": self._url, "queues": queues}
            self._producers.append(Child(push_until_the_end, self._folder, f"producer-{number}", plan))
        for number in range(self._size.workers):
            self._workers.append(self._new_worker(number))
        # Faults begin when all work.
        self._until(lambda: all(each.journal.exists() for each in self._workers), "the workers do not start")

    def _new_worker(self, number: int) -> Child:
        # A new process has the name of the one before it, as one that is restarted on a machine.
        plan: dict[str, object] = {
            "seed": self.outcome.seed,
            "url": self._url,
            "queues": list(KINDS),
            "node": f"worker-{number}",
            "hands": self._size.hands,
            "is_async": number % 3 == 2,
            "lease_s": LEASE_S,
        }
        life = sum(each.name.startswith(f"worker-{number}.") for each in self._all_workers)
        self._all_workers.append(Child(work_until_the_end, self._folder, f"worker-{number}.{life}", plan))
        return self._all_workers[-1]

    def _kill_all(self) -> None:
        for child in [*self._producers, *self._workers]:
            if child.code is None:
                child.kill()

    def _check_children(self) -> None:
        """Report processes that have ended by themselves."""
        for child in [*self._producers, *self._workers]:
            if child.code is not None:
                self._complain(f"{child.name} ended with {child.code}: {child.said()}")

    def _complain(self, problem: str) -> None:
        if problem not in self.outcome.complaints:
            self.outcome.complaints.append(problem)

    def _until(self, condition: Callable[[], bool], problem: str) -> None:
        """Wait for something that the processes do; complain if it does not happen."""
        until = time.monotonic() + SETTLE_S
        while not condition() and not self.outcome.complaints:
            if time.monotonic() > until:
                self._complain(problem)
            self._check_children()
            time.sleep(0.05)

    # --- faults ----------------------------------------------------------------------------------------------------

    def _inject_faults(self) -> None:
        acts: dict[str, tuple[int, Callable[[], None]]] = {
            "worker kill": (12, self._kill_worker),
            "worker stop": (4, self._stop_worker),
            "server kill": (3, self._kill_server),
            "server end": (2, self._end_server),
            "server stop": (2, self._stop_server),
        }
        faults, until = self.outcome.faults, time.monotonic() + self._seconds
        while (time.monotonic() < until or faults.total() < FAULTS_MIN) and not self.outcome.complaints:
            (name,) = self._random.choices(list(acts), [weight for weight, _ in acts.values()])
            acts[name][1]()
            faults[name] += 1
            time.sleep(self._random.uniform(0.2, 2.0))
            self._continue_workers(time.monotonic())
            self._check_children()
        self._continue_workers(float("inf"))

    def _kill_worker(self) -> None:
        number = self._random.randrange(len(self._workers))
        worker = self._workers[number]
        self._stopped.pop(worker, None)
        self._history.killed_ns[worker.name] = time.monotonic_ns()
        worker.kill()
        self._workers[number] = self._new_worker(number)

    def _stop_worker(self) -> None:
        worker = self._random.choice(self._workers)
        worker.tell(signal.SIGSTOP)
        self._stopped[worker] = time.monotonic() + self._random.uniform(0.1, 2 * LEASE_S)

    def _continue_workers(self, now: float) -> None:
        for worker in [worker for worker, until in self._stopped.items() if until <= now]:
            del self._stopped[worker]
            worker.tell(signal.SIGCONT)

    def _kill_server(self) -> None:
        ending_ns = time.monotonic_ns()
        self._node.kill()
        self._restart_server(ending_ns)

    def _end_server(self) -> None:
        ending_ns = time.monotonic_ns()
        code = self._node.terminate()
        if code:
            self._complain(f"SIGTERM ended with {code}: {self._node.said()[-2_000:]}")
        self._restart_server(ending_ns)

    def _restart_server(self, ending_ns: int) -> None:
        self._history.lives.append(Life(self._life_started_ns, ending_ns, time.monotonic_ns()))
        time.sleep(self._random.choice((0.0, 0.0, 0.5, LEASE_S)))
        self._life_started_ns = time.monotonic_ns()
        self._node.start()

    def _stop_server(self) -> None:
        self._node.tell(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.1, 1.5 * LEASE_S))
        self._node.tell(signal.SIGCONT)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _settle(self, log: RemoteLog) -> None:
        """Let the producers end, the workers finish all jobs, and the server shut down."""
        self._end_children(self._producers)
        self._producers = []
        # Jobs that move to the dead letters are in no count.
        self._until(lambda: not any(log.describe(name).record_count for name in KINDS), "the queues are not drained")
        for worker in self._workers:
            self._history.killed_ns[worker.name] = time.monotonic_ns()
        self._end_children(self._workers)
        self._workers = []
        for name in KINDS:
            counts = log.queue(name).counts()
            self._history.counts[name] = FinalCounts(*counts[:4], log.describe(name).record_count)
        ending_ns = time.monotonic_ns()
        code = self._node.terminate()
        self._history.lives.append(Life(self._life_started_ns, ending_ns, time.monotonic_ns()))
        if code:
            self._complain(f"the last SIGTERM ended with {code}: {self._node.said()[-2_000:]}")

    def _end_children(self, children: list[Child]) -> None:
        for child in children:
            child.stop()
        until = time.monotonic() + SETTLE_S
        for child in children:
            code = child.wait(max(0.0, until - time.monotonic()))
            if code is None:
                child.kill()
            if code != 0:
                self._complain(f"{child.name} ended with {code}: {child.said()}")

    def _judge(self) -> None:
        history = self._history
        for journal in sorted(self._folder.glob("*.journal")):
            history.read(journal.stem, read_journal(journal))
        with open_log(self._folder / "data", create=False) as log:
            history.findings = [str(finding) for finding in log.verify().findings]
            history.results = [Result(*json.loads(record.value)) for record in records_of(log, RESULTS)]
            for topic in log.topics():
                if topic.endswith("-dead"):
                    history.letters += [letter_of(topic, record) for record in records_of(log, topic)]
        self.outcome.complaints += judge(history)
        self.outcome.figures = measure(history)


def records_of(log: EmbeddedLog, topic: str) -> list[ReceivedRecord]:
    """All records of a topic."""
    return [record for item in log.follow(topic) if not isinstance(item, Gap) and not item.is_skip for record in item]


def letter_of(topic: str, record: ReceivedRecord) -> Letter:
    """A dead letter, and whether it has everything of its job."""
    mark = mark_in(record.value)
    meta = json.loads(record.meta or b"{}")
    is_complete = (
        record.key == mark.encode()
        and (HEADER.encode(), mark.encode()) in record.headers
        and json.loads(unmarked_meta(meta) or b"{}") == {"mark": mark}
    )
    return Letter(
        str(meta.get(FROM)),
        int(meta.get(SOURCE_SEQ, 0)),
        mark,
        meta.get(DELIVERIES),
        meta.get(REASON),
        is_complete,
        topic,
    )
