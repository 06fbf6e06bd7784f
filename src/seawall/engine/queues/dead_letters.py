"""Dead letters: jobs that were delivered too often, moved to another topic, and back.

Moving a job is one transaction: the record is appended to the other topic, and deleted in its own, at one position. A
crash leaves it in one of the two topics. A job that cannot be moved, because the topic is full for example, stays in
its queue and is tried again later.

`wire/jobs/dead_letters` has the marks that a dead letter carries. Moving it back removes them. This module must not
know who claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Lock
from typing import Final

import numpy as np

from seawall.api.transactions import StagedCall
from seawall.core.transactions import StagedPart, WantedTransaction, partition_named
from seawall.core.types import Seq
from seawall.engine.api.log_transactions import AttemptBatches, unlocked
from seawall.engine.queues.host import HostLog
from seawall.engine.queues.job_store import Finished, JobQueue, JobStore, record_runs
from seawall.engine.queues.recent_blocks import Integers
from seawall.engine.read.reading import stored_batches
from seawall.errors import CorruptionError, InvalidInputError, NotFoundError, SeawallError
from seawall.io.process.own_process import random_bytes
from seawall.limits import JOBS_MAX
from seawall.storage.control.queues import DeadLettered
from seawall.topics.config import TopicType
from seawall.topics.state import TopicState
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.envelope import Envelope, parse_envelope
from seawall.wire.format.records import Record, RecordType, encode_record, iter_records
from seawall.wire.jobs.dead_letters import FROM, marked_meta, parsed_meta, unmarked_meta

#: Jobs that could not be moved wait this long.
_RETRY_MS: Final = 5_000
#: How long jobs of a dead-letter queue are leased while they are moved back.
_MOVE_LEASE_MS: Final = 60_000
_MOVER: Final = "seawall-redrive"


class DeadLetters:
    """Moves jobs of a log to their dead-letter topics, and back."""

    def __init__(self, log: HostLog, store: JobStore, caught_up: Callable[[str], JobQueue]) -> None:
        """`caught_up` returns a queue once its view knows every record."""
        self._log = log
        self._store = store
        self._caught_up = caught_up
        #: Creates a dead-letter topic at its first use.
        self.create_topic: Callable[[str], object] = log.create_topic
        #: The keys of the transactions. One commit at a time, so that no epoch fences an earlier one.
        self._owner = f"dead-letters-{random_bytes(8).hex()}"
        self._epochs = count(1)
        self._lock = Lock()

    def bury(self, queue: JobQueue, seqs: Integers) -> None:
        """Move jobs to the dead-letter topic of their queue; those that cannot be moved are tried again later."""
        try:
            target = queue.topic.config.dead_letter
            if target is None:
                raise NotFoundError(f"queue {queue.topic.name!r} has no dead-letter topic any more")
            self._move(queue, seqs, target)
        except (SeawallError, OSError):
            with self._log.commits.state:
                queue.view.revive(seqs, self._store.now_ms() + _RETRY_MS)

    def _move(self, queue: JobQueue, seqs: Integers, target: str) -> None:
        with self._log.inspecting():
            deliveries = queue.view.rows(seqs)["deliveries"].tolist()
        letters = [
            _letter(record, queue.topic, seq, count)
            for (seq, record), count in zip(self._records(queue.topic, seqs), deliveries, strict=True)
        ]
        self._create_target(target)
        self._publish(
            letters, target, [self._removal(queue.topic, seqs)], DeadLettered(queue.topic.topic_id, len(seqs))
        )

    def _create_target(self, name: str) -> None:
        """Create the dead-letter topic at its first use."""
        with suppress(SeawallError):
            self._log.describe(name)
            return
        self.create_topic(name)

    # --- back ----------------------------------------------------------------------------------------------------

    def redrive(self, name: str, count_max: int) -> int:
        """Move dead letters back to their queues; `count_max` of them, or all that are there now if it is 0."""
        if count_max < 0:
            raise InvalidInputError(f"{count_max} dead letters: give a number, or 0 for all")
        with self._log.inspecting() as store:
            topic = store.catalog.named(name)
            last_seq = topic.head_seq
        moved, after = 0, 0
        while not count_max or moved < count_max:
            wanted = min(JOBS_MAX, count_max - moved) if count_max else JOBS_MAX
            seqs = (
                self._lease(topic, wanted) if topic.config.kind is TopicType.QUEUE else self._next(topic, after, wanted)
            )
            seqs = seqs[seqs <= last_seq]
            if not len(seqs):
                break
            after = int(seqs[-1])
            moved += self._move_back(topic, seqs)
        return moved

    def _next(self, topic: TopicState, after: int, count: int) -> Integers:
        """The next live records of a log topic."""
        with self._log.inspecting():
            live = topic.live(Seq(after + 1), topic.head_seq)
        found: list[int] = []
        for first, end in live.tolist():
            found += range(first, min(end, first + count - len(found)))
            if len(found) == count:
                break
        return np.array(found, np.int64)

    def _lease(self, topic: TopicState, count: int) -> Integers:
        """Lease the next jobs of a dead-letter queue, so that no worker gets them meanwhile."""
        queue = self._caught_up(topic.name)
        with self._log.inspecting():
            now_ms = self._store.now_ms()
            return queue.view.claim(count, now_ms, now_ms + _MOVE_LEASE_MS, self._store.workers.of(_MOVER), 0).seqs

    def _move_back(self, topic: TopicState, seqs: Integers) -> int:
        """Move dead letters to the queues that they name; the others stay."""
        by_target: dict[str, list[tuple[int, Record]]] = {}
        for seq, record in self._records(topic, seqs):
            source = _source_of(record)
            if source is not None:
                by_target.setdefault(source[0], []).append((seq, source[1]))
        moved = 0
        for target, records in by_target.items():
            chosen = np.array([seq for seq, _ in records], np.int64)
            self._publish([record for _, record in records], target, [self._removal(topic, chosen)])
            moved += len(records)
        return moved

    def _removal(self, topic: TopicState, seqs: Integers) -> Finished:
        """The delete of jobs or dead letters that are moved."""
        with self._log.inspecting():
            return self._store.removal_locked(topic, seqs)

    # --- both ----------------------------------------------------------------------------------------------------

    def _records(self, topic: TopicState, seqs: Integers) -> Iterator[tuple[int, Record]]:
        """Read records; raises if one cannot be read."""
        wanted = set(seqs.tolist())
        with self._log.inspecting() as store:
            log = store.parts.logs[topic.topic_id]
            batches = []
            at = int(seqs[0])
            while at <= int(seqs[-1]):
                some = stored_batches(log, Seq(at), Seq(int(seqs[-1]) + 1), 1)
                if not some:
                    break
                batches += some
                at = int(some[-1].next_seq)
        found = 0
        for run in record_runs(batches):
            for seq, record in enumerate(iter_records(run.data), run.first_seq):
                if seq in wanted:
                    found += 1
                    yield seq, record
        if found < len(wanted):
            raise CorruptionError(f"{len(wanted) - found} of {len(wanted)} jobs of {topic.name!r} cannot be read")

    def _publish(
        self, records: Sequence[Record], target: str, finished: Sequence[Finished], *also: DeadLettered
    ) -> None:
        """Append records to a topic and delete the jobs that they were, at one position."""
        log = self._log
        block = EncodedBlock(b"".join(map(encode_record, records)), len(records))
        staging = log.staging()
        staged = StagedCall([log.offer(AttemptBatches(staging).next(block))], partition_named(staging.name)).ranges()
        try:
            with self._lock, log.changing() as store:
                wanted = WantedTransaction(
                    self._owner, next(self._epochs), tuple(StagedPart(target, each) for each in staged)
                )
                deletes = self._store.deletes_of(finished)
                store.commit_transaction(wanted, partial(unlocked, log.commits), also=(*deletes, *also))
        except BaseException:
            with suppress(SeawallError, OSError):
                log.abort_staged(staged)
            raise


def _letter(record: Record, topic: TopicState, seq: int, deliveries: int) -> Record:
    """The dead letter of a job."""
    envelope = _envelope_of(record)
    return _with_meta(envelope, marked_meta(envelope.meta, topic.name, seq, deliveries, "max_deliveries"))


def _source_of(record: Record) -> tuple[str, Record] | None:
    """The queue that a dead letter came from, and the job as it was; None if it is no dead letter."""
    if record.record_type != RecordType.ENVELOPE:
        return None
    envelope = _envelope_of(record)
    meta = parsed_meta(envelope.meta)
    source = meta.get(FROM)
    if not isinstance(source, str):
        return None
    return source, _with_meta(envelope, unmarked_meta(meta))


def _envelope_of(record: Record) -> Envelope:
    """The envelope of a record; a plain record becomes the data of one."""
    if record.record_type == RecordType.ENVELOPE:
        with suppress(CorruptionError):
            return parse_envelope(record.value)
    return Envelope(record.value)


def _with_meta(envelope: Envelope, meta: bytes | None) -> Record:
    return replace(envelope, meta=meta).to_record()
