"""One chaos round: a node, clients of all kinds behind proxies, seeded faults, an orderly shutdown, checks."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from chaos_clients import (
    AsyncPublisher,
    AsyncReader,
    HeavyPublisher,
    PollingReader,
    ReadingWorker,
    SyncPublisher,
    WaitingPublisher,
    Worker,
)
from chaos_history import History, ReadItem, judge, mark_of
from chaos_node import TOPICS, ChaosNode, make_topics
from chaos_proxy import CALM, Faults, Proxy
from chaos_v1 import V1Publisher, V1Reader

import seawall
from seawall.engine.api.open_log import open_log
from seawall.wire.format.gaps import Gap

#: How long clients may take to end after the last fault.
SETTLE_S = 120

ROUGH = Faults(life_bytes=1_000_000, split=0.2, delay=0.3, stall=0.005)
#: Also duplicated and swapped frames, as a retrying client may send them.
MIXED = Faults(life_bytes=2_000_000, split=0.1, delay=0.1, duplicate=0.2, swap=0.2)
SLOW = Faults(split=1.0, delay=1.0, delay_s=0.1)


@dataclass
class Outcome:
    """The result of a round."""

    seed: int
    events: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    records: int = 0
    acked: int = 0
    resets: int = 0
    gaps: int = 0

    def __str__(self) -> str:
        said = (
            "no guarantee broken" if not self.complaints else "\n  ".join(["GUARANTEES BROKEN", *self.complaints[:20]])
        )
        counts = f"{self.records} records, {self.acked} acked, {self.resets} resets, {self.gaps} gaps"
        return f"seed {self.seed}: {' '.join(self.events)}\n  {counts}: {said}"


class Round:
    """Runs a seed in a directory."""

    def __init__(self, seed: int, folder: Path, seconds: float) -> None:
        self._random = random.Random(seed)
        self._seconds = seconds
        self.outcome = Outcome(seed)
        data = folder / "data"
        make_topics(data)
        # Every other round over several loops, which connections are dealt to anew whenever they come back.
        self.node = ChaosNode(data, "--drain", "60", "--brokers", "3" if seed % 2 else "1")
        #: One for those whose order per connection is promised, one that may change the order of frames.
        self.plain = Proxy(lambda: self.node.port, f"{seed} plain")
        self.mixing = Proxy(lambda: self.node.port, f"{seed} mixing")
        self._writers: list[SyncPublisher | WaitingPublisher | AsyncPublisher | V1Publisher] = []
        self._readers: list[ReadingWorker] = []

    def run(self) -> Outcome:
        with self.node, self.plain, self.mixing, ExitStack() as ends:
            self._make_clients()
            ends.callback(self._stop_all)
            for worker in self._workers():
                worker.start()
            began = time.monotonic()
            self._inject_faults()
            self.outcome.events.append(f"[{time.monotonic() - began:.1f} s,")
            self._settle()
            self.outcome.events.append(f"then {time.monotonic() - began:.1f} s]")
        if not self.outcome.complaints:
            self._judge()
        self.outcome.resets = self.plain.resets + self.mixing.resets
        return self.outcome

    # --- clients ---------------------------------------------------------------------------------------------------

    def _workers(self) -> list[Worker]:
        return [*self._writers, *self._readers]

    def _make_clients(self) -> None:
        seed, plain, mixing = self.outcome.seed, self.plain.url, self.mixing.url
        old_id = list(TOPICS).index("old") + 1
        self._writers = [
            SyncPublisher("sync-total", plain, seed, "total", 11, max_in_flight=300_000),
            AsyncPublisher("async-total", plain, seed, "total", 12, linger_s=0.002),
            WaitingPublisher("waiting-total", plain, seed, "total", 0),
            SyncPublisher("sync-client", mixing, seed, "client", 13, connections=3),
            HeavyPublisher("heavy-client", mixing, seed, "client", 16, connections=3, batch_size=100),
            AsyncPublisher("async-client", mixing, seed, "client", 14, compression="lz4", batch_size=2_000),
            SyncPublisher("sync-quick", mixing, seed, "quick", 15, batch_size=500),
            WaitingPublisher("waiting-quick", mixing, seed, "quick", 0),
            V1Publisher("v1-a", plain, seed, "old", old_id),
            V1Publisher("v1-b", plain, seed, "old", old_id),
        ]
        slow = PollingReader("slow-total", plain, seed, "total")
        slow.pause_s = 0.1
        self._readers = [
            slow,
            AsyncReader("push-client", plain, seed, "client"),
            PollingReader("poll-quick", mixing, seed, "quick"),
            AsyncReader("push-old", mixing, seed, "old"),
            V1Reader("v1-old", plain, seed, "old", old_id),
        ]

    def _stop_all(self) -> None:
        for worker in self._workers():
            worker.is_ending.set()

    # --- faults ----------------------------------------------------------------------------------------------------

    def _inject_faults(self) -> None:
        events: list[tuple[str, int, Callable[[], None]]] = [
            ("kill", 3, self._kill),
            ("end", 2, self._end),
            ("stop", 2, self._stop),
            ("cut", 3, self._cut),
            ("rough", 3, lambda: self._weather(ROUGH, ROUGH)),
            ("mixed", 3, lambda: self._weather(CALM, MIXED)),
            ("slow", 1, lambda: self._weather(SLOW, SLOW)),
            ("calm", 1, lambda: self._weather(CALM, CALM)),
        ]
        until = time.monotonic() + self._seconds
        while time.monotonic() < until and not self.outcome.complaints:
            name, _, act = self._random.choices(events, [weight for _, weight, _ in events])[0]
            self.outcome.events.append(name)
            act()
            time.sleep(self._random.uniform(0.2, 2.0))

    def _weather(self, plain: Faults, mixing: Faults) -> None:
        self.plain.faults, self.mixing.faults = plain, mixing
        # Existing connections drew their lifetime from the previous faults.
        self._cut()

    def _cut(self) -> None:
        for proxy in (self.plain, self.mixing):
            proxy.cut_all()

    def _kill(self) -> None:
        self.node.kill()
        self._away()
        self.node.start()

    def _end(self) -> None:
        code = self.node.terminate()
        if code:
            self.outcome.complaints.append(f"SIGTERM ended with {code}: {self.node.said()[-2000:]}")
        self._away()
        self.node.start()

    def _away(self) -> None:
        time.sleep(self._random.choice((0.0, 0.0, 0.5, 2.0)))

    def _stop(self) -> None:
        self.node.tell(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.2, 3.0))
        self.node.tell(signal.SIGCONT)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Stop the faults, let all clients end, and shut the node down."""
        self.plain.faults = self.mixing.faults = CALM
        for writer in self._writers:
            writer.is_ending.set()
        self._wait_for(self._writers)
        self._stop_readers()
        self._wait_for(self._readers)
        code = self.node.terminate()
        if code:
            self.outcome.complaints.append(f"the last SIGTERM ended with {code}: {self.node.said()[-2000:]}")

    def _stop_readers(self) -> None:
        with seawall.connect(f"seawall://127.0.0.1:{self.node.port}") as log:
            lasts = {topic: log.describe(topic) for topic in TOPICS}
            for reader in self._readers:
                reader.last_seq = lasts[reader.read.topic].next_seq - 1
                if isinstance(reader, V1Reader):
                    items = log.follow(reader.read.topic)
                    reader.count = sum(len(item) for item in items if not isinstance(item, Gap) and not item.is_skip)
                reader.is_ending.set()

    def _wait_for(self, workers: list[Worker]) -> None:
        until = time.monotonic() + SETTLE_S
        for worker in workers:
            if not worker.end(max(0.0, until - time.monotonic())):
                self.outcome.complaints.append(f"{worker.name} does not end")
            if worker.problem is not None:
                self.outcome.complaints.append(f"{worker.name}: {worker.problem!r}")

    def _judge(self) -> None:
        history = History([each.written for each in self._writers], [each.read for each in self._readers])
        with open_log(self.node.data, create=False) as log:
            findings = log.verify().findings
            self.outcome.complaints += [f"verify: {finding}" for finding in findings]
            for topic in TOPICS:
                history.final[topic] = items = []
                for item in log.follow(topic):
                    if isinstance(item, Gap):
                        items.append(ReadItem(item.first_seq, None, item.last_seq))
                    elif not item.is_skip:
                        items += [ReadItem(each.seq, mark_of(each.value)) for each in item]
        self.outcome.complaints += judge(history)
        self.outcome.records = sum(item.mark is not None for items in history.final.values() for item in items)
        self.outcome.gaps = sum(item.mark is None for items in history.final.values() for item in items)
        self.outcome.acked = sum(len(written.acked) for written in history.written)
