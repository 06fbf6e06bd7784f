"""Dead letters: jobs that were delivered too often, moved to another topic, and back.

Moving a job is one transaction: the record is appended to the other topic, and deleted in its own, at one position. A
crash leaves it in one of the two topics. A job that cannot be moved, because the topic is full for example, stays in
its queue and is tried again later.

`wire/jobs/dead_letters` has the marks that a dead letter carries. Moving it back removes them. This module must not
know who claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Lock
from typing import Final, TypeAlias

import numpy as np

from seawall.api.transactions import StagedCall
from seawall.core.transactions import StagedPart, WantedTransaction, partition_named
from seawall.core.types import Seq
from seawall.engine.api.log_transactions import AttemptBatches, unlocked
from seawall.engine.queues.host import HostLog
from seawall.engine.queues.job_store import JobQueue, JobStore, end_of, record_runs
from seawall.engine.queues.recent_blocks import Integers, runs_of
from seawall.engine.read.reading import sound_batches
from seawall.errors import CorruptionError, FullError, InvalidInputError, LimitError, NotFoundError, SeawallError
from seawall.io.process.own_process import random_bytes
from seawall.limits import BLOCK_SIZE_MAX, JOBS_MAX, MIB
from seawall.storage.control.batches import SimpleControl
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
#: Bytes of records that are moved at once.
_MOVE_SIZE: Final = 4 * MIB

#: The seq of a record that is moved, and the record encoded for its new topic.
Moved: TypeAlias = tuple[int, bytes]


class DeadLetters:
    """Moves jobs of a log to their dead-letter topics, and back."""

    def __init__(
        self,
        log: HostLog,
        store: JobStore,
        caught_up: Callable[[str], JobQueue],
        returned: Callable[[JobQueue], None],
    ) -> None:
        """`caught_up` returns a queue once its view knows every record; `returned` serves claims after a return."""
        self._log = log
        self._store = store
        self._caught_up = caught_up
        self._returned = returned
        #: Creates a dead-letter topic at its first use.
        self.create_topic: Callable[[str], object] = log.create_topic
        #: The keys of the transactions. One commit at a time, so that no epoch fences an earlier one.
        self._owner = f"dead-letters-{random_bytes(8).hex()}"
        self._epochs = count(1)
        self._lock = Lock()
        #: Held by the call that moves dead letters back: none is moved twice.
        self._redriving = Lock()

    def bury(self, queue: JobQueue, seqs: Integers) -> None:
        """Move jobs to the dead-letter topic of their queue; those that cannot be moved are tried again later."""
        target = queue.topic.config.dead_letter
        try:
            if target is not None:
                self._create_target(target)
                self._bury(queue, seqs, target)
        except (SeawallError, OSError):
            # A full topic, or one that is deleted meanwhile: the jobs stay.
            return
        finally:
            with self._log.commits.state:
                queue.view.revive(seqs, self._store.now_ms() + _RETRY_MS)

    def _bury(self, queue: JobQueue, seqs: Integers, target: str) -> None:
        topic = queue.topic
        with self._log.inspecting():
            deliveries = dict(zip(seqs.tolist(), queue.view.rows(seqs)["deliveries"].tolist(), strict=True))
        readable: list[int] = []

        def letters() -> Iterator[tuple[int, Envelope]]:
            for seq, record in self._records(topic, seqs):
                readable.append(seq)
                yield seq, _letter(record, topic, seq, deliveries[seq])

        for some in _in_blocks(letters()):
            for _ in self._move(topic, some, target, are_dead=True):
                continue
        lost = np.setdiff1d(seqs, np.array(readable, np.int64))
        with self._log.commits.state:
            # Their records are damaged: readers get a gap for them.
            queue.view.removed_ranges(np.stack((lost, lost + 1), axis=1))

    def _create_target(self, name: str) -> None:
        """Create the dead-letter topic at its first use."""
        try:
            self._log.describe(name)
        except NotFoundError:
            self.create_topic(name)

    # --- back ----------------------------------------------------------------------------------------------------

    def redrive(self, name: str, count_max: int) -> int:
        """Move dead letters back to their queues; `count_max` of them, or all that are there now if it is 0.

        Those whose queue cannot take them stay, and raise its error if that is why none was moved. If the dead letters
        are in a queue, its jobs that are leased or delayed stay, too.
        """
        if count_max < 0:
            raise InvalidInputError(f"{count_max} dead letters: give a number, or 0 for all")
        with self._log.inspecting() as store:
            topic = store.catalog.named(name)
        with self._redriving:
            if topic.config.kind is not TopicType.QUEUE:
                return self._redrive(topic, self._stored(topic), count_max)
            with self._leasing(topic) as leased:
                return self._redrive(topic, leased, count_max)

    def _redrive(self, topic: TopicState, rounds: Iterator[Integers], count_max: int) -> int:
        moved = 0
        refused: SeawallError | None = None
        for seqs in rounds:
            by_target: dict[str, list[tuple[int, Envelope]]] = {}
            chosen = 0
            for seq, record in self._records(topic, seqs):
                source = _source_of(record)
                if source is not None and not (count_max and moved + chosen == count_max):
                    by_target.setdefault(source[0], []).append((seq, source[1]))
                    chosen += 1
            for target, jobs in by_target.items():
                try:
                    for some in _in_blocks(iter(jobs)):
                        for count in self._move(topic, some, target, are_dead=False):
                            moved += count
                except SeawallError as error:
                    refused = error
            if count_max and moved == count_max:
                break
        if refused is not None and not moved:
            raise refused
        return moved

    def _stored(self, topic: TopicState) -> Iterator[Integers]:
        """The live records of a log topic, some at once."""
        first, last = Seq(1), topic.head_seq
        while True:
            with self._log.inspecting():
                live = topic.live(first, last)
            if not len(live):
                return
            low = int(live[0, 0])
            first = Seq(min(int(live[0, 1]), low + JOBS_MAX))
            yield np.arange(low, first, dtype=np.int64)

    @contextmanager
    def _leasing(self, topic: TopicState) -> Iterator[Iterator[Integers]]:
        """The jobs of a dead-letter queue, some at once, leased so that no worker gets them meanwhile."""
        queue, last = self._caught_up(topic.name), topic.head_seq
        held: list[tuple[Integers, Integers]] = []

        def rounds() -> Iterator[Integers]:
            while True:
                with self._log.inspecting():
                    now_ms, worker = self._store.now_ms(), self._store.workers.of(_MOVER)
                    claimed = queue.view.claim(JOBS_MAX, now_ms, now_ms + _MOVE_LEASE_MS, worker, 0)
                    held.append((claimed.seqs, claimed.lease_ids))
                seqs = claimed.seqs[claimed.seqs <= last]
                if not len(seqs):
                    return
                yield seqs

        try:
            yield rounds()
        finally:
            with self._log.commits.state:
                for seqs, lease_ids in held:
                    queue.view.unclaim(seqs, lease_ids)
            self._returned(queue)

    # --- both ----------------------------------------------------------------------------------------------------

    def _records(self, topic: TopicState, seqs: Integers) -> Iterator[tuple[int, Record]]:
        """Read records; those that cannot be read are left out."""
        done = 0
        for first, end in runs_of(seqs):
            at = max(first, done)
            while at < end:
                with self._log.inspecting() as store:
                    log = store.parts.logs.get(topic.topic_id)
                    if log is None:
                        return
                    planned = log.plan(Seq(at), Seq(end), _MOVE_SIZE)
                done = max(at + 1, end_of(planned))
                for run in record_runs(sound_batches(planned)):
                    low, high = seqs.searchsorted((max(run.first_seq, at), run.end_seq)).tolist()
                    for seq in seqs[low:high].tolist():
                        yield seq, next(iter_records(run.bytes_of(seq, seq + 1)))
                at = done

    def _move(self, topic: TopicState, records: Sequence[Moved], target: str, *, are_dead: bool) -> Iterator[int]:
        """Move records to another topic, fewer at once if it has no space for all; yields how many each time."""
        at, count = 0, len(records)
        while at < len(records):
            some = records[at : at + count]
            try:
                self._publish(topic, some, target, are_dead=are_dead)
            except (FullError, LimitError):
                if len(some) == 1:
                    raise
                count = len(some) // 2
                continue
            at += len(some)
            yield len(some)

    def _publish(self, topic: TopicState, records: Sequence[Moved], target: str, *, are_dead: bool) -> None:
        """Append records to a topic and delete the jobs that they were, at one position."""
        log = self._log
        block = EncodedBlock(b"".join(encoded for _, encoded in records), len(records))
        seqs = np.array([seq for seq, _ in records], np.int64)
        staging = log.staging()
        staged = StagedCall([log.offer(AttemptBatches(staging).next(block))], partition_named(staging.name)).ranges()
        try:
            with self._lock, log.changing() as store:
                also: list[SimpleControl] = [*self._store.deletes_of([self._store.removal_locked(topic, seqs)])]
                if are_dead:
                    also.append(DeadLettered(topic.topic_id, len(seqs)))
                parts = tuple(StagedPart(target, each) for each in staged)
                wanted = WantedTransaction(self._owner, next(self._epochs), parts)
                store.commit_transaction(wanted, partial(unlocked, log.commits), also=also)
        except BaseException:
            with suppress(SeawallError, OSError):
                log.abort_staged(staged)
            raise


def _in_blocks(records: Iterator[tuple[int, Envelope]]) -> Iterator[list[Moved]]:
    """Encode records, as many at once as one step moves. A record that is too large with its new meta stays."""
    some: list[Moved] = []
    size = 0
    for seq, envelope in records:
        try:
            encoded = encode_record(envelope.to_record())
        except InvalidInputError:
            continue
        if len(encoded) > BLOCK_SIZE_MAX:
            continue
        if some and size + len(encoded) > _MOVE_SIZE:
            yield some
            some, size = [], 0
        some.append((seq, encoded))
        size += len(encoded)
    if some:
        yield some


def _letter(record: Record, topic: TopicState, seq: int, deliveries: int) -> Envelope:
    """The dead letter of a job."""
    envelope = _envelope_of(record)
    return replace(envelope, meta=marked_meta(envelope.meta, topic.name, seq, deliveries, "max_deliveries"))


def _source_of(record: Record) -> tuple[str, Envelope] | None:
    """The queue that a dead letter came from, and the job as it was; None if it is no dead letter."""
    if record.record_type != RecordType.ENVELOPE:
        return None
    envelope = _envelope_of(record)
    meta = parsed_meta(envelope.meta)
    source = meta.get(FROM)
    if not isinstance(source, str):
        return None
    return source, replace(envelope, meta=unmarked_meta(meta))


def _envelope_of(record: Record) -> Envelope:
    """The envelope of a record; a plain record becomes the data of one."""
    if record.record_type == RecordType.ENVELOPE:
        with suppress(CorruptionError):
            return parse_envelope(record.value)
    return Envelope(record.value)
