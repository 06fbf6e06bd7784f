"""The queues of one store: brings their lease views up to date, leases jobs, and deletes what was finished.

    view       a lease view (`topics/queues`) holds the state of every job of one queue: ready, leased, delayed
    catch up   new records are scanned for their options, outside the lock, and admitted to the view
    claim      the view chooses jobs; their records are read outside the lock, most of them from `recent_blocks`
    finish     an ack marks jobs in the view; one control deletes those of many acks, and removes them from the view

A job is ready as soon as its record can be read. What must survive is in the log: the record with its options, and the
delete of a finished job. Leases are not, unless the topic says so (`leases_durable`): after a crash every unfinished
job can be claimed. A delete that fails leaves its jobs leased.

Methods named `…_locked` need the lock of the store's memory; `commit` and `purge` need the store for themselves. The
others need neither. This module must not know who waits for jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from seawall.api.queues.jobs import not_a_queue
from seawall.api.received import readable_block
from seawall.core.transactions import JobAck
from seawall.core.types import Seq, TopicId
from seawall.engine.commit.log_writer import Unlocked
from seawall.engine.ordering.orderer import Orderer
from seawall.engine.queues.recent_blocks import BlockBudget, Integers, RecentBlocks, RecordRun, ranges_of, runs_of
from seawall.engine.queues.unique_keys import UniqueKeys
from seawall.engine.queues.workers import WorkerNumbers, digest_of
from seawall.engine.read.planning import Planned
from seawall.engine.read.reading import sound_batches
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import ConflictError, CorruptionError, NotFoundError, SeawallError
from seawall.kernels.codec import blocks
from seawall.limits import CLAIM_SIZE_MAX, DELETE_RANGES_MAX, MIB
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.queues import LEASE_ROW, LeaseRows, Leases
from seawall.storage.control.queues import LEASED as LEASED_ROW
from seawall.storage.control.queues import RETURNED as RETURNED_ROW
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.topics.config import Durability, TopicType
from seawall.topics.queues.lease_view import DELAYED, LEASED, RETURNED, Claimed, LeaseView
from seawall.topics.queues.lease_view import LEASE_ROW as VIEW_ROW
from seawall.topics.state import TopicState
from seawall.wire.jobs.option_scan import scan_job_options
from seawall.wire.jobs.rows import JOB_ROW, JobRows

#: Bytes of records that are scanned at once: other threads use the store in between.
_SCAN_SIZE: Final = 8 * MIB

_NONE: Final[Integers] = np.zeros(0, np.int64)
_NOTHING_LIVE: Final[Integers] = np.zeros((0, 2), np.int64)

#: Bits of the first lease id of a view. It is random: no lease of an earlier life, or of a deleted topic, has it. If
#: the log keeps leases, it is above those by a random step: the log has forgotten the leases that have ended.
_LEASE_ID_BITS: Final = 62
_LEASE_STEP_BITS: Final = 40


class JobQueue:
    """One queue: its topic, the state of its jobs, and the records that were read last."""

    __slots__ = ("blocks", "topic", "unique", "view")

    def __init__(self, topic: TopicState, view: LeaseView, budget: BlockBudget) -> None:
        self.topic = topic
        self.view = view
        self.blocks = RecentBlocks(budget)
        self.unique = UniqueKeys(topic)


class Scanned(NamedTuple):
    """The records of consecutive batches, with their options."""

    run: RecordRun
    not_before_ms: Integers
    priorities: Integers
    unique: list[tuple[int, bytes]]


class Taken(NamedTuple):
    """Jobs that a claim has leased, before their records are read."""

    queue: JobQueue
    claimed: Claimed
    deadline_ms: int
    #: Records that have to be read, as plans of whole batches.
    plans: list[Planned]
    #: Runs of records that are at hand.
    runs: list[RecordRun]


class ReadJobs(NamedTuple):
    """The records of the first claimed jobs: the pieces of their block, and what had to be read from files."""

    rows: JobRows
    sizes: Integers
    pieces: list[memoryview]
    loaded: list[RecordRun]
    #: The jobs from here on are too much for one claim.
    end_seq: int


class Finished(NamedTuple):
    """Jobs of one ack, marked in the view, to be deleted."""

    topic: TopicState
    #: Rising.
    seqs: Integers
    size: int


class LeaseChange(NamedTuple):
    """Leases of a queue that the log keeps: they have changed in the view, and are to be logged."""

    topic: TopicState
    rows: LeaseRows


#: What threads commit together.
JobChange: TypeAlias = Finished | LeaseChange


class JobStore:
    """The queues of one store."""

    def __init__(self, parts: StoreParts, orderer: Orderer) -> None:
        self._parts = parts
        self._orderer = orderer
        self._clock = parts.machine.clock
        self._budget = BlockBudget()
        self._queues: dict[TopicId, JobQueue] = {}
        self.workers = WorkerNumbers(self._workers_in_use)

    def now_ms(self) -> int:
        """The time in milliseconds since the Unix epoch."""
        return self._clock.wall_ns() // 1_000_000

    def queue_locked(self, name: str) -> JobQueue:
        """The queue with this name; `NotFoundError` or `WrongStateError` if there is none."""
        topic = self._parts.current_catalog().named(name)
        queue = self._queues.get(topic.topic_id)
        if queue is not None and queue.topic is topic:
            return queue
        if topic.config.kind is not TopicType.QUEUE:
            raise not_a_queue(name)
        if topic.leases is None:
            topic.leases = self._new_view(topic)
        queue = self._queues[topic.topic_id] = JobQueue(topic, topic.leases, self._budget)
        self._forget_deleted()
        return queue

    def _new_view(self, topic: TopicState) -> LeaseView:
        """A view with the leases that the log has kept."""
        logged = topic.lease_rows()
        random = int.from_bytes(self._parts.machine.random_bytes(8))
        above = int(logged["lease_id"].max()) + (random >> (64 - _LEASE_STEP_BITS)) if len(logged) else 0
        view = LeaseView(1 + max(random >> (64 - _LEASE_ID_BITS), above))
        if len(logged):
            rows = np.zeros(len(logged), VIEW_ROW)
            for name in ("seq", "lease_id", "deliveries", "priority"):
                rows[name] = logged[name]
            rows["time_ms"] = logged["at_ms"]
            rows["worker"] = [self.workers.of_digest(digest) for digest in logged["worker"].tolist()]
            is_delayed = logged["at_ms"] > 0
            rows["state"] = np.where(logged["state"] == LEASED_ROW, LEASED, np.where(is_delayed, DELAYED, RETURNED))
            view.restore(rows)
        return view

    def _forget_deleted(self) -> None:
        """Forget the queues of deleted topics, as often as queues are added."""
        find = self._parts.catalog.find
        for topic_id in [topic_id for topic_id, each in self._queues.items() if find(topic_id) is not each.topic]:
            del self._queues[topic_id]

    def _workers_in_use(self) -> set[int]:
        """The workers that hold leases."""
        return {int(worker) for queue in self._queues.values() for worker in np.unique(queue.view.snapshot()["worker"])}

    # --- new jobs ------------------------------------------------------------------------------------------------

    def plan_scan_locked(self, queue: JobQueue) -> Planned | None:
        """Plan the read of records that the view does not know yet; None if it knows all."""
        topic, view, log = queue.topic, queue.view, self._parts.logs.get(queue.topic.topic_id)
        first = max(view.scanned_seq + 1, topic.floor)
        if first >= topic.next_seq or log is None:
            if view.scanned_seq < topic.head_seq:
                # No job is left of these records.
                view.admit(topic.next_seq, _NOTHING_LIVE, _NONE, _NONE, topic.next_seq, self.now_ms())
            return None
        planned = log.plan(Seq(first), topic.next_seq, _SCAN_SIZE)
        log.note_reader(planned.end_seq)
        return planned

    @staticmethod
    def scan(planned: Planned) -> list[Scanned]:
        """Read planned batches and the options of their records. Damaged batches have no jobs."""
        found = []
        for run in record_runs(sound_batches(planned)):
            not_before_ms, priorities, starts, lengths, _ = scan_job_options(run.data, len(run.starts) - 1)
            unique = [
                (run.first_seq + number, bytes(run.data[starts[number] : starts[number] + lengths[number]]))
                for number in np.flatnonzero(lengths >= 0).tolist()
            ]
            found.append(Scanned(run, not_before_ms, priorities, unique))
        return found

    def admit_locked(self, queue: JobQueue, scanned: Sequence[Scanned], end_seq: int) -> None:
        """Let the jobs below `end_seq` be claimed, except those that another thread has admitted meanwhile."""
        view, topic, now_ms = queue.view, queue.topic, self.now_ms()
        for each in scanned:
            run = each.run
            if run.end_seq <= view.scanned_seq + 1:
                continue
            first = max(run.first_seq, view.scanned_seq + 1)
            live = topic.live(Seq(first), Seq(run.end_seq - 1))
            view.admit(run.first_seq, live, each.not_before_ms, each.priorities, run.end_seq, now_ms)
            for seq, key in each.unique:
                queue.unique.add(key, seq)
            queue.blocks.add(run)
        if view.scanned_seq + 1 < end_seq:
            # What is left is damaged: readers get a gap.
            view.admit(end_seq, _NOTHING_LIVE, _NONE, _NONE, end_seq, now_ms)

    # --- claims --------------------------------------------------------------------------------------------------

    def take_locked(self, queue: JobQueue, count_max: int, node: str, lease_ms: int) -> Taken:
        """Lease jobs to a worker, and plan the read of their records: at most CLAIM_SIZE_MAX bytes, or one batch."""
        now_ms, config = self.now_ms(), queue.topic.config
        deadline_ms = now_ms + (lease_ms or config.lease_ms)
        deliveries_max = config.max_deliveries if config.dead_letter is not None else 0
        claimed = queue.view.claim(count_max, now_ms, deadline_ms, self.workers.of(node), deliveries_max)
        plans, runs, end_seq = self._locate(queue, claimed.seqs)
        claimed, _ = self._unclaimed_from(queue, claimed, end_seq)
        return Taken(queue, claimed, deadline_ms, plans, runs)

    @staticmethod
    def _unclaimed_from(queue: JobQueue, claimed: Claimed, end_seq: int) -> tuple[Claimed, Integers]:
        """Undo the part of a claim from a seq on; returns what is left of it, and the jobs that are free again."""
        count = int(claimed.seqs.searchsorted(end_seq))
        if count == len(claimed.seqs):
            return claimed, _NONE
        undone = queue.view.unclaim(claimed.seqs[count:], claimed.lease_ids[count:])
        left = Claimed(claimed.seqs[:count], claimed.lease_ids[:count], claimed.deliveries[:count], claimed.dead)
        return left, claimed.seqs[count:][undone]

    def peek_locked(self, queue: JobQueue, count_max: int) -> Taken:
        """The jobs that would be claimed next, without leases."""
        seqs = queue.view.peek(count_max, self.now_ms())
        plans, runs, end_seq = self._locate(queue, seqs)
        seqs = seqs[: int(seqs.searchsorted(end_seq))]
        rows = queue.view.rows(seqs)
        claimed = Claimed(seqs, np.zeros(len(seqs), np.int64), rows["deliveries"].astype(np.int64), _NONE)
        return Taken(queue, claimed, 0, plans, runs)

    def _locate(self, queue: JobQueue, seqs: Integers) -> tuple[list[Planned], list[RecordRun], int]:
        """Find the runs of records that are at hand, and plan the read of the others, up to CLAIM_SIZE_MAX bytes.

        Returns plans, runs, and the seq from which on jobs exceed the size.
        """
        plans: list[Planned] = []
        runs: list[RecordRun] = []
        log = self._parts.logs.get(queue.topic.topic_id)
        size_left = CLAIM_SIZE_MAX
        #: The records below are located.
        seq = 0
        for first, end in runs_of(seqs):
            seq = max(seq, first)
            while seq < end:
                if size_left <= 0:
                    return plans, runs, seq
                run = queue.blocks.find(seq)
                if run is not None:
                    if not runs or runs[-1] is not run:
                        runs.append(run)
                    low = seq
                    seq = run.end_within(low, min(end, run.end_seq), size_left)
                    size_left -= len(run.bytes_of(low, seq))
                elif log is None:
                    seq = end
                else:
                    planned = log.plan(Seq(seq), Seq(end), size_left)
                    plans.append(planned)
                    size_left -= sum(each.size for each in planned.runs)
                    seq = max(seq + 1, end_of(planned))
        return plans, runs, seq

    @staticmethod
    def read(taken: Taken) -> ReadJobs:
        """Read the records of leased jobs, as many as one claim may have. A job that cannot be read has no row."""
        loaded = [run for planned in taken.plans for run in record_runs(sound_batches(planned))]
        claimed = taken.claimed
        rows: JobRows = np.zeros(len(claimed.seqs), JOB_ROW)
        rows["seq"], rows["lease_id"], rows["deliveries"] = claimed.seqs, claimed.lease_ids, claimed.deliveries
        rows["deadline_ms"] = taken.deadline_ms
        pieces: list[memoryview] = []
        is_found = np.zeros(len(rows), np.bool_)
        sizes = np.zeros(len(rows), np.int64)
        size_left, end_seq = CLAIM_SIZE_MAX, int(claimed.seqs[-1]) + 1 if len(rows) else 0
        for run in sorted([*taken.runs, *loaded], key=_first_seq):
            low, high = claimed.seqs.searchsorted((run.first_seq, run.end_seq)).tolist()
            # The same record may be in two runs: one at hand, one read for a neighbour.
            while low < high and is_found[low]:
                low += 1
            if low == high:
                continue
            inside = claimed.seqs[low:high]
            found = run.sizes(inside)
            fitting = int(found.cumsum().searchsorted(size_left, "right"))
            if fitting < len(inside):
                fitting = max(fitting, 0 if pieces else 1)
                end_seq = int(inside[fitting]) if fitting < len(inside) else end_seq
                inside, found, high = inside[:fitting], found[:fitting], low + fitting
            pieces += [run.bytes_of(first, end) for first, end in runs_of(inside)]
            rows["timestamp_ns"][low:high] = run.times_ns(inside)
            sizes[low:high] = found
            is_found[low:high] = True
            size_left -= int(found.sum())
            if end_seq <= claimed.seqs[-1]:
                break
        return ReadJobs(rows[is_found], sizes[is_found], pieces, loaded, end_seq)

    def read_done_locked(self, taken: Taken, read: ReadJobs) -> Integers:
        """Keep what was read, and undo the claim of jobs that are too much for one; returns those.

        Jobs without a readable record leave the view, and readers get a gap for them.
        """
        queue = taken.queue
        claimed, undone = self._unclaimed_from(queue, taken.claimed, read.end_seq)
        for run in read.loaded:
            queue.blocks.add(run)
        found = read.rows["seq"].astype(np.int64)
        queue.view.set_sizes(found, read.sizes)
        if len(found) < len(claimed.seqs):
            lost = np.setdiff1d(claimed.seqs, found)
            queue.view.removed_ranges(np.stack((lost, lost + 1), axis=1))
        return undone

    # --- finished jobs -------------------------------------------------------------------------------------------

    def finish_locked(self, queue: JobQueue, node: str, seqs: Integers, lease_ids: Integers) -> Finished:
        """Mark jobs of a worker as finished; `commit` or `unfinish_locked` must follow."""
        mask = queue.view.ack(seqs, lease_ids, self.workers.of(node), self.now_ms())
        finished = seqs[mask]
        return Finished(queue.topic, finished, self._size_of(queue, finished))

    def _size_of(self, queue: JobQueue, seqs: Integers) -> int:
        """Plain bytes of finished jobs."""
        sizes = queue.view.sizes(seqs)
        size = int(sizes.sum())
        if sizes.all():
            return size
        return size + self._parts.cleaner.size_of(queue.topic, ranges_of(seqs[sizes == 0]))

    def stored_ms_locked(self, queue: JobQueue, seq: int) -> int | None:
        """When a job was stored, in milliseconds since the Unix epoch."""
        time_ns = self._parts.cleaner.time_of(queue.topic, Seq(seq))
        return None if time_ns is None else time_ns // 1_000_000

    def lease_change_locked(self, queue: JobQueue, seqs: Integers, node: str) -> LeaseChange | None:
        """What the log has to know of jobs whose leases have changed; None if it keeps none for this queue."""
        if not queue.topic.config.leases_durable or not len(seqs):
            return None
        found = queue.view.rows(seqs)
        rows: LeaseRows = np.zeros(len(seqs), LEASE_ROW)
        is_leased = found["state"] == LEASED
        rows["seq"] = seqs
        rows["deliveries"], rows["priority"] = found["deliveries"], found["priority"]
        rows["at_ms"] = np.where(is_leased | (found["state"] == DELAYED), found["time_ms"], 0)
        rows["lease_id"] = np.where(is_leased, found["lease_id"], 0)
        rows["worker"] = np.where(is_leased, digest_of(node), 0)
        rows["state"] = np.where(is_leased, LEASED_ROW, RETURNED_ROW)
        return LeaseChange(queue.topic, rows)

    @staticmethod
    def unfinish_locked(changes: Sequence[JobChange]) -> None:
        """Undo `finish_locked`: the jobs are leased again."""
        for each in changes:
            if isinstance(each, Finished) and each.topic.leases is not None:
                each.topic.leases.unfinish(each.seqs)

    @contextmanager
    def finishing(self, acks: Sequence[JobAck]) -> Iterator[list[DeleteRecords]]:
        """Finish jobs by a transaction: the controls that delete them, to be committed inside the block.

        If a job is not leased to its worker any more, or the block raises, nothing is finished. The caller has the
        store for itself.
        """
        finished: list[Finished] = []
        try:
            for ack in acks:
                queue = self.queue_locked(ack.topic)
                leases = sorted(dict(zip(ack.seqs, ack.lease_ids, strict=True)).items())
                seqs, lease_ids = np.array(leases, np.int64).reshape(-1, 2).T.copy()
                finished.append(self.finish_locked(queue, ack.node, seqs, lease_ids))
                if len(finished[-1].seqs) < len(seqs):
                    lost = np.setdiff1d(seqs, finished[-1].seqs).tolist()
                    raise ConflictError(
                        f"{len(lost)} jobs of queue {ack.topic!r} are not leased to {ack.node!r} any more (the first "
                        f"is {lost[0]}): another worker may have them; claim them again"
                    )
            yield self.deletes_of(finished)
        except BaseException:
            self.unfinish_locked(finished)
            raise

    def removal_locked(self, topic: TopicState, seqs: Integers) -> Finished:
        """Records that are deleted as jobs are, whatever their topic is; `ConflictError` if one is gone already."""
        if not self._is_there(topic) or len(live_of(topic, seqs)) < len(seqs):
            raise ConflictError(f"records of topic {topic.name!r} were deleted while they were moved")
        return Finished(topic, seqs, self._parts.cleaner.size_of(topic, ranges_of(seqs)))

    def _is_there(self, topic: TopicState) -> bool:
        """True unless a topic was deleted."""
        return self._parts.catalog.find(topic.topic_id) is topic

    def purge(self, queue: JobQueue, unlocked: Unlocked) -> int:
        """Delete all jobs that are not leased; returns how many. The caller has the store for itself."""
        if not self._is_there(queue.topic):
            raise NotFoundError(f"topic {queue.topic.name!r} was deleted")
        ranges = queue.view.unclaimed(self.now_ms())
        deletes = []
        for first in range(0, len(ranges), DELETE_RANGES_MAX):
            some = ranges[first : first + DELETE_RANGES_MAX]
            size = self._parts.cleaner.size_of(queue.topic, some)
            deletes.append(DeleteRecords(queue.topic.topic_id, DeletedSeqs(some), size))
        self._commit(deletes, unlocked, durable=queue.topic.config.durability is Durability.FSYNC)
        return int((ranges[:, 1] - ranges[:, 0]).sum())

    def deletes_of(self, finished: Sequence[Finished]) -> list[DeleteRecords]:
        """The controls that delete finished jobs, as few as possible."""
        by_queue: dict[TopicId, list[Finished]] = {}
        for each in finished:
            if len(each.seqs):
                by_queue.setdefault(each.topic.topic_id, []).append(each)
        deletes = []
        for topic_id, of_queue in by_queue.items():
            seqs = of_queue[0].seqs if len(of_queue) == 1 else np.sort(np.concatenate([each.seqs for each in of_queue]))
            size = sum(each.size for each in of_queue)
            ranges = ranges_of(seqs)
            for first in range(0, len(ranges), DELETE_RANGES_MAX):
                removed = DeletedSeqs(ranges[first : first + DELETE_RANGES_MAX], are_merged=True)
                deletes.append(DeleteRecords(topic_id, removed, size if not first else 0))
        return deletes

    def commit(self, changes: Sequence[JobChange], unlocked: Unlocked) -> None:
        """Delete finished jobs and log leases, as durably as the topics store records.

        `unlocked` lets other threads claim jobs while this is written. The caller has the store for itself. A topic
        that was deleted meanwhile took its jobs with it, and so did a delete or an eviction of records.
        """
        there = [each for each in changes if self._is_there(each.topic)]
        deletes = self.deletes_of([self._still_live(each) for each in there if isinstance(each, Finished)])
        leases = [Leases(each.topic.topic_id, each.rows) for each in there if isinstance(each, LeaseChange)]
        durable = any(each.topic.config.durability is Durability.FSYNC for each in there)
        self._commit([*leases, *deletes], unlocked, durable=durable)

    def _still_live(self, finished: Finished) -> Finished:
        """The finished jobs that are not gone already."""
        topic, view = finished.topic, finished.topic.leases
        if view is not None and view.has_rows(finished.seqs):
            # The view forgets what the log deletes, evicts or loses.
            return finished
        seqs = live_of(topic, finished.seqs)
        return finished if len(seqs) == len(finished.seqs) else self.removal_locked(topic, seqs)

    def _commit(self, controls: Sequence[DeleteRecords | Leases], unlocked: Unlocked, *, durable: bool) -> None:
        if not controls:
            return

        def commit() -> None:
            self._parts.controls.commit_many(controls, durable=durable, unlocked=unlocked)
            for each in controls:
                if isinstance(each, DeleteRecords):
                    self._parts.cleaner.deleted(each)

        topic_ids = {each.topic_id for each in controls}
        self._orderer.change(commit, topic_ids.pop() if len(topic_ids) == 1 else None)


def live_of(topic: TopicState, seqs: Integers) -> Integers:
    """The live ones of rising seqs."""
    if not len(seqs):
        return seqs
    live = topic.live(Seq(int(seqs[0])), Seq(int(seqs[-1])))
    if not len(live):
        return seqs[:0]
    rows = live[:, 1].searchsorted(seqs, "right")
    inside = np.minimum(rows, len(live) - 1)
    found: Integers = seqs[(rows < len(live)) & (live[inside, 0] <= seqs)]
    return found


def record_runs(batches: Sequence[StoredBatch]) -> list[RecordRun]:
    """The records of batches, with consecutive batches joined. Batches that cannot be decoded are left out."""
    runs: list[RecordRun] = []
    joined: list[tuple[StoredBatch, memoryview]] = []
    for batch in batches:
        try:
            block = batch.block if batch.is_plain else readable_block(batch.header, batch.block)
        except SeawallError:
            continue
        if joined and joined[-1][0].base_seq + joined[-1][0].record_count != batch.base_seq:
            runs += _join(joined)
            joined = []
        joined.append((batch, block))
    return runs + _join(joined)


def _join(joined: Sequence[tuple[StoredBatch, memoryview]]) -> list[RecordRun]:
    if not joined:
        return []
    data = joined[0][1] if len(joined) == 1 else memoryview(b"".join(block for _, block in joined))
    counts = np.array([batch.record_count for batch, _ in joined], np.int64)
    times_ns = np.array([batch.timestamp_ns for batch, _ in joined], np.int64)
    try:
        starts = record_starts(data, int(counts.sum()))
    except CorruptionError:
        # One of the batches is not a run of records.
        return [] if len(joined) == 1 else [run for each in joined for run in _join([each])]
    return [RecordRun(joined[0][0].base_seq, data, starts, counts.cumsum() - counts, times_ns)]


def record_starts(block: memoryview, count: int) -> Integers:
    """Where each record of a block begins, and its end; `CorruptionError` if it is not `count` records."""
    source = np.frombuffer(block, np.uint8)
    starts = np.empty(count + 1, np.int64)
    if blocks.scan_block(source, 0, source.size, blocks.RECORDS_STORED, count, starts) != count:
        raise CorruptionError(f"a block of {source.size} bytes is not {count} records")
    return starts


def end_of(planned: Planned) -> int:
    """The seq after the last record of a plan, whose last batch may reach beyond what was asked for."""
    if not planned.runs:
        return planned.end_seq
    last = planned.runs[-1].entries[-1]
    return max(int(planned.end_seq), int(last["base_seq"]) + int(last["count"]))


def _first_seq(run: RecordRun) -> int:
    return run.first_seq
