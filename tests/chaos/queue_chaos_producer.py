"""A producer of jobs as a process: it pushes them in every way there is, and notes what it does in a journal.

It pushes until the parent closes its end of a pipe, and then waits for the last acks. A job is noted before it is
pushed, and again when the push is acked.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from queue_journal import ONCE, PLAIN, POISON, Journal, mark_of, now_ms, open_journal, value_of

import seawall
from seawall.api.publishable import Message
from seawall.client.remote_log import RemoteLog
from seawall.errors import OutcomeUnknownError

TIMEOUT_S = 90.0

#: Jobs that wait in a queue before no more are pushed.
BACKLOG_MAX = 300

#: Headers, which a dead letter must keep.
HEADER = "chaos"


def message_of(mark: str) -> Message:
    """The job with this mark."""
    return Message(value_of(mark), key=mark, headers=[(HEADER, mark)], meta=json.dumps({"mark": mark}))


class Producer:
    """Pushes jobs to queues in random order."""

    def __init__(self, plan: dict[str, Any], log: RemoteLog, journal: Journal) -> None:
        self._name = plan["name"]
        #: The queues, and whether each takes jobs that nobody acks.
        self._queues: dict[str, bool] = plan["queues"]
        self._log = log
        self._journal = journal
        self._chance = random.Random(f"{plan['seed']} {self._name}")
        self._numbers = count()

    def step(self) -> None:
        """Push some jobs to one queue, if not too many wait there."""
        name = self._chance.choice(list(self._queues))
        if self._log.queue(name).counts().ready > BACKLOG_MAX:
            time.sleep(0.1)
            return
        ways = {self._push: 6, self._push_with_key: 2, self._push_unique: 1, self._pipeline: 1}
        (way,) = self._chance.choices(list(ways), list(ways.values()))
        way(name)
        time.sleep(self._chance.choice((0.0, 0.01, 0.05)))

    def _marks(self, queue: str, jobs: int) -> list[str]:
        weights = {PLAIN: 12, ONCE: 8, POISON: 1 if self._queues[queue] else 0}
        tasks = self._chance.choices(list(weights), list(weights.values()), k=jobs)
        return [mark_of(self._name, next(self._numbers), task) for task in tasks]

    # --- ways to push ----------------------------------------------------------------------------------------------

    def _push(self, name: str) -> None:
        """Push one job or many, some with a delay or a priority."""
        marks = self._marks(name, self._chance.choice((1, 1, 5, 20)))
        delay_s = self._chance.choice((0.0, 0.0, 0.0, 0.2, 2.0))
        priority = self._chance.choice((0, 0, 0, 1, 9))
        self._offer(name, marks, delay_s)
        delivery = self._log.queue(name).push(list(map(message_of, marks)), delay_s=delay_s, priority=priority)
        self._acked(name, marks, delivery.seqs)

    def _push_with_key(self, name: str) -> None:
        """Push a job under an idempotency key, again while the outcome is not known."""
        marks = self._marks(name, 1)
        self._offer(name, marks)
        while True:
            try:
                delivery = self._log.publish(name, message_of(marks[0]), idempotency_key=marks[0])
                self._acked(name, marks, delivery.seqs)
                return
            except OutcomeUnknownError:
                continue

    def _push_unique(self, name: str) -> None:
        """Push a job under a unique key, twice."""
        marks = self._marks(name, 1)
        delay_s = self._chance.choice((0.0, 0.0, 0.5))
        self._offer(name, marks, delay_s, is_unique=True)
        for _ in range(2):
            pushed = self._log.queue(name).push_unique(message_of(marks[0]), marks[0], delay_s=delay_s)
            self._acked(name, marks, [pushed.seq])

    def _pipeline(self, name: str) -> None:
        """Push many jobs without waiting for each."""
        marks = self._marks(name, self._chance.randrange(10, 60))
        self._offer(name, marks)
        with self._log.publisher(name) as publisher:
            deliveries = [(mark, publisher.publish(message_of(mark))) for mark in marks]
        for mark, delivery in deliveries:
            self._acked(name, [mark], delivery.result().seqs)

    # --- the journal -----------------------------------------------------------------------------------------------

    def _offer(self, name: str, marks: Sequence[str], delay_s: float = 0.0, *, is_unique: bool = False) -> None:
        not_before_ms = now_ms() + round(delay_s * 1_000) if delay_s else 0
        self._journal.note(*(("offer", name, mark, not_before_ms, is_unique) for mark in marks))

    def _acked(self, name: str, marks: Sequence[str], seqs: Sequence[int]) -> None:
        found = list(seqs) or [0] * len(marks)
        self._journal.note(*(("push", name, mark, seq) for mark, seq in zip(marks, found, strict=True)))


def push_until_the_end(plan: dict[str, Any], parent: Connection) -> None:
    """The main function of the process."""
    journal = open_journal(plan)
    with seawall.connect(plan["url"], timeout_s=TIMEOUT_S) as log:
        producer = Producer(plan, log, journal)
        while not parent.poll():
            producer.step()
