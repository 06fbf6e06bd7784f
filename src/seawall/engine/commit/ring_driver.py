"""Commits for an event loop: numbers records on the loop, writes and syncs them by a disk ring, finishes on the loop.

The loop continues while the server of the ring, which needs no GIL, writes; a readable descriptor signals the end of
the commit. Checkpoints and evictions after a commit run on a thread. What still blocks the loop is the start of a new
segment or log file, once in many megabytes.

One commit is written at a time, and records that are published meanwhile go into the next one: the more publishers, the
more records share a sync. A commit takes about half of the records in flight, so that the other half is numbered and
encoded while it is written. If both commits are single durable writes, the ring gets the second one while the first is
still in flight, so the disk does not wait for the loop.

A thread that waits for a commit in flight may finish it instead of the loop (`assist`). On the loop's own thread it has
to, because no other thread would.

A commit is finished once, after all its operations have succeeded, in submission order.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import get_ident
from typing import Final

from seawall.engine.commit.appends import LARGE_BLOCK_SIZE, Commit, SegmentWrite
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import Group, PendingBatch
from seawall.errors import FatalError, SeawallError, SyncError
from seawall.io.disk.disk_ring import DiskRing
from seawall.io.disk.files import system_error
from seawall.io.interfaces import File, ReadableBuffer
from seawall.limits import IOVEC_COUNT_MAX, RECORD_HEADER_SIZE
from seawall.wire.format.records import raw_head

#: This few records are not worth two commits.
_FEW: Final = 8

#: The longest that one call waits for the disk before it checks the state again.
_WAIT_MS: Final = 1_000


class RingDriver:
    """Drives a commit queue from one event loop. Construct it on the loop's thread."""

    def __init__(self, queue: CommitQueue, ring: DiskRing, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._ring = ring
        self.loop = loop
        self._thread = get_ident()
        # Reentrant: a delivery callback may publish.
        self._lock = threading.RLock()
        #: Cleared while `tidy_up` runs on a thread.
        self._is_tidy = threading.Event()
        self._is_tidy.set()
        # Not the default executor of the loop: all its threads may be waiting for this very commit.
        self._tidying = ThreadPoolExecutor(1, thread_name_prefix="seawall-tidying")
        #: Commits that the ring has, in order: at most two.
        self._in_flight: deque[_InFlight] = deque()
        #: The group to write after them; begun already if the store can do that.
        self._next: Group | None = None
        #: By tag of an operation in the ring: its commit, and the bytes that it has to move.
        self._expected: dict[int, tuple[_InFlight, int]] = {}
        self._tags = 0
        #: True while a thread finishes commits: only one at a time does, in order.
        self._is_finishing = False
        self._is_woken = False
        self._is_closed = False
        #: Records that were published on the loop and are not queued yet, by topic name; for the loop's thread only.
        self._gathering: dict[str, PendingBatch] = {}
        #: An estimate of the records in flight at once.
        self._load = 0
        self.loop.add_reader(ring.completed.wait_fd, self._signalled)
        queue.driver = self

    def join(self, topic: str, value: bytes) -> Delivery | None:
        """Add one record of plain bytes to a gathered batch of its topic; None if none accepts it.

        Works on the loop's thread only, and so needs no lock.
        """
        pending_batch = self._gathering.get(topic)
        if pending_batch is None or get_ident() != self._thread:
            return None
        offset, group_max = pending_batch.record_count, self._queue.group_records_max
        size = pending_batch.size + RECORD_HEADER_SIZE + len(value)
        if offset >= group_max or size >= LARGE_BLOCK_SIZE:
            return None
        pending_batch.pieces += (raw_head(len(value)), value)
        pending_batch.size = size
        pending_batch.record_count = offset = offset + 1
        if offset == group_max:
            if self._in_flight:
                self._prepare()
            else:
                self._start()
        return Delivery(self._queue, pending_batch, offset - 1, 1)

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Commit records soon; from any thread. Plain ones of the loop's thread are gathered until a commit begins."""
        pending_batch.driver = self.wake
        if get_ident() != self._thread or self._is_closed:
            return self._queue.offer(pending_batch)
        name = pending_batch.topic.name
        if not pending_batch.is_plain or name in self._gathering:
            self.queue_gathered()
        if not pending_batch.is_plain:
            return self._queue.offer(pending_batch)
        self._gathering[name] = pending_batch
        pending_batch.loop, pending_batch.loop_thread = self.loop, self._thread
        self.wake()
        return Delivery(self._queue, pending_batch, 0, pending_batch.record_count)

    @property
    def record_count(self) -> int:
        """Records that were published on the loop and are not decided."""
        groups = [each.group for each in self._in_flight] + [each for each in [self._next] if each is not None]
        pending_batches = [*self._gathering.values(), *self._queue.pending_batches_of(self.wake)]
        return sum(each.record_count for each in groups) + sum(each.record_count for each in pending_batches)

    def queue_gathered(self) -> None:
        """Queue the gathered records for the next commit; on the loop's thread."""
        if self._gathering:
            self._queue.put(self._gathering.values())
            self._gathering.clear()

    def wake(self) -> None:
        """Commit what is queued soon; from any thread."""
        if self._is_closed or self._is_woken or self._in_flight:
            return
        self._is_woken = True
        if get_ident() == self._thread:
            # At the end of this iteration of the loop: the commit includes what else it publishes.
            self.loop.call_soon(self._start)
        else:
            self.loop.call_soon_threadsafe(self._start)

    def assist(self) -> None:
        """Finish commits that the ring has completed, in case the loop is blocked; for threads that wait for them."""
        if get_ident() == self._thread:
            self.queue_gathered()
            while self._in_flight:
                self._reap(_WAIT_MS)
        else:
            self._reap(0)

    def close(self) -> None:
        """Finish the commits in flight and leave the loop; what is queued is left to the next leader."""
        self._is_closed = True
        self.queue_gathered()
        while self._in_flight or not self._is_tidy.is_set():
            self.assist()
            self._is_tidy.wait()
        self._tidying.shutdown()
        self._queue.driver = None
        self.loop.remove_reader(self._ring.completed.wait_fd)
        self._ring.close()

    # --- on the loop ---------------------------------------------------------------------------------------------

    def _start(self, delivering: int = 0) -> None:
        """Begin the next commit, if none is in flight; `delivering` records of the last are about to be delivered."""
        self._is_woken = False
        if self._in_flight or self._is_closed:
            return
        self.queue_gathered()
        group = self._queue.acquire_leadership() or self._queue.acquire_for_arrivals()
        if group is None:
            return
        self._estimate_load(delivering + group.record_count)
        if self._begin(group):
            self._write_group(group)

    def _begin(self, group: Group) -> bool:
        """Number a group; False if that failed, and then its deliveries have the error."""
        try:
            self._queue.begin(group)
        except BaseException as error:
            self._queue.release_leadership()
            # Gathered records are tried next, and get an error of their own.
            self.wake()
            if isinstance(error, (SeawallError, OSError)):
                return False
            raise
        return True

    def _prepare(self) -> None:
        """Prepare the next commit while one is in flight, to write it right after that: a full group is waiting."""
        with self._lock:
            if len(self._in_flight) != 1 or self._next is not None:
                return
            self.queue_gathered()
            group = self._queue.next_group()
            if group is None:
                return
            self._estimate_load(self._in_flight[0].group.record_count + group.record_count)
            self._next = group
            try:
                # If the store cannot begin it yet, it begins after the commit in flight.
                self._queue.begin_next(group)
            except BaseException as error:
                # The deliveries of the group have the error.
                self._next = None
                if not isinstance(error, (SeawallError, OSError)):
                    raise
                return
            # Both in the ring only if each write is durable by itself: a sync of the first could otherwise cover a
            # second one that is not written yet.
            if group.commit is not None and _is_one_durable_write(group.commit) and self._in_flight[0].is_durable:
                self._next = None
                self._submit(group, group.commit)

    def _estimate_load(self, record_count: int) -> None:
        """Update the estimate of records in flight: `record_count`, and those in the queue."""
        self._load = max(record_count + self._queue.record_count, self._load - self._load // 8)
        # Half of them in one commit: while it is written, the other half is gathered.
        self._queue.group_records_max = max(_FEW, -(-self._load // 2))

    def _write_group(self, group: Group) -> None:
        """Submit the commit of a group to the ring."""
        commit = group.commit
        assert commit is not None
        if commit.epoch is None and not commit.segment_writes:
            self._finish(group)
            return
        with self._lock:
            is_done = self._submit(group, commit)
        if is_done:
            self._reap(0)

    def _signalled(self) -> None:
        with self._lock:
            self._ring.forget_signal()
        self._reap(0)
        if self._in_flight and self._ring.request_signal():
            self._reap(0)

    # --- operations ----------------------------------------------------------------------------------------------

    def _submit(self, group: Group, commit: Commit) -> bool:
        """Submit a commit as one chain: segment writes, then the epoch. True if the ring has completions already."""
        flight = _InFlight(group, commit, is_durable=_is_one_durable_write(commit))
        self._in_flight.append(flight)
        try:
            self._queue_writes(flight, commit)
        except BaseException as error:
            # Its deliveries get the error once the ring has completed the operations that it did take.
            flight.error = FatalError(f"the disk ring did not take a commit ({error!r}): stop and recover")
            self._ring.submit_signalled()
            self.loop.call_soon_threadsafe(self._reap, 0)
            raise
        return self._ring.submit_signalled()

    def _queue_writes(self, flight: _InFlight, commit: Commit) -> None:
        epoch = commit.epoch
        for write in commit.segment_writes:
            is_last = epoch is None and write is commit.segment_writes[-1]
            self._write_segment(flight, write, link=not is_last)
        if epoch is not None:
            writes_durably = commit.durable and epoch.follows_synced
            syncs = commit.durable and not writes_durably
            self._write_epoch(flight, epoch.file, epoch.buffers, epoch.file_at, link=syncs, sync=writes_durably)
            if syncs:
                self._sync(flight, epoch.file, link=False)

    def _write_segment(self, flight: _InFlight, write: SegmentWrite, *, link: bool) -> None:
        pieces = write.pieces()
        is_one = len(pieces) == 1
        for at, piece in pieces:
            is_linked = link or not is_one
            self._ring.write(
                *(write.file, piece, at),
                tag=self._next_tag(),
                link=is_linked,
                sync=is_one,
                uncached=write.is_uncached,
            )
            self._expect(flight, sum(map(len, piece)))
        if not is_one:
            self._sync(flight, write.file, link=link)

    def _write_epoch(
        self, flight: _InFlight, file: File, buffers: list[ReadableBuffer], at: int, *, link: bool, sync: bool
    ) -> None:
        for first in range(0, len(buffers), IOVEC_COUNT_MAX):
            pieces = buffers[first : first + IOVEC_COUNT_MAX]
            size = sum(map(len, pieces))
            more = first + IOVEC_COUNT_MAX < len(buffers)
            self._ring.write(file, pieces, at, tag=self._next_tag(), link=link or more, sync=sync)
            self._expect(flight, size)
            at += size

    def _sync(self, flight: _InFlight, file: File, *, link: bool) -> None:
        self._ring.sync(file, tag=self._next_tag(), link=link)
        self._expect(flight, 0)

    def _next_tag(self) -> int:
        self._tags += 1
        return self._tags

    def _expect(self, flight: _InFlight, size: int) -> None:
        """Record that the ring has taken the operation with the last tag, which has to move `size` bytes."""
        self._expected[self._tags] = flight, size
        flight.left += 1

    def _reap(self, wait_ms: int) -> None:
        """Take results from the ring, and finish the commits whose operations are all complete."""
        with self._lock:
            left = self._in_flight[0].left if self._in_flight else 0
            for tag, result in self._ring.reap(wait_ms=wait_ms, count=left):
                flight, expected = self._expected.pop(tag)
                flight.left -= 1
                if result == -errno.ECANCELED or 0 <= result < expected:
                    # Partly done, or canceled because the operation before it was.
                    flight.is_short = True
                elif result < 0 and flight.error is None:
                    flight.error = _failure(-result)
            if self._is_finishing:
                # The thread that finishes commits checks again.
                return
            self._is_finishing = True
        try:
            while (done := self._next_done()) is not None:
                self._complete(done)
        except BaseException:
            self._is_finishing = False
            raise

    def _next_done(self) -> _InFlight | None:
        with self._lock:
            if self._in_flight and not self._in_flight[0].left:
                return self._in_flight.popleft()
            self._is_finishing = False
            return None

    def _complete(self, flight: _InFlight) -> None:
        try:
            if flight.error is not None:
                raise flight.error
            if flight.is_short:
                # Rare: a signal interrupted it. Writing the same bytes to the same offsets again does no harm.
                flight.commit.execute()
        except (SeawallError, OSError) as error:
            self._queue.fail(flight.group, error)
            self._fail_rest(error)
            return
        self._finish(flight.group)

    def _finish(self, group: Group) -> None:
        """Finish a written commit, start the next one, and deliver. If `tidy_up` is due, a thread runs it first.

        The next commit is submitted before the deliveries, whose publishers will then offer more records.
        """
        next_group = self._next
        try:
            needs_tidy_up = self._queue.finish(group)
        except BaseException as error:
            # The deliveries of the group have the error.
            self._fail_rest(error)
            if not isinstance(error, (SeawallError, OSError)):
                raise
            return
        if needs_tidy_up and not self._in_flight and (next_group is None or next_group.commit is None):
            self._next = None
            self._is_tidy.clear()
            self._tidying.submit(self._tidy_up_and_deliver, group, next_group)
            return
        if not self._in_flight:
            self._next = None
            if next_group is None:
                self._release_leadership(group.record_count)
            else:
                self._write_next(next_group)
        self._queue.deliver(group)

    def _fail_rest(self, error: BaseException) -> None:
        """Fail the commits after a failed one, and release leadership."""
        with self._lock:
            failed = [flight.group for flight in self._in_flight]
            self._in_flight.clear()
            if self._next is not None:
                failed.append(self._next)
                self._next = None
        for group in failed:
            self._queue.fail(group, error)
        self._release_leadership()

    def _release_leadership(self, delivering: int = 0) -> None:
        """Release leadership, and acquire it again for what was queued or gathered meanwhile."""
        self._queue.release_leadership()
        if get_ident() == self._thread:
            self._start(delivering)
        else:
            # Only the loop's thread may touch what is gathered.
            self.wake()

    def _write_next(self, group: Group) -> None:
        """Write the next group, for which leadership was kept."""
        if group.commit is not None or self._begin(group):
            self._write_group(group)

    def _tidy_up_and_deliver(self, group: Group, next_group: Group | None) -> None:
        try:
            # If it fails, the deliveries of the group have the error.
            with suppress(SeawallError, OSError):
                self._queue.tidy_up(group)
                self._queue.deliver(group)
        finally:
            try:
                if next_group is None:
                    self._release_leadership()
                else:
                    self._write_next(next_group)
            finally:
                self._is_tidy.set()


class _InFlight:
    """A commit that was submitted to the ring."""

    __slots__ = ("commit", "error", "group", "is_durable", "is_short", "left")

    def __init__(self, group: Group, commit: Commit, *, is_durable: bool) -> None:
        self.group = group
        self.commit = commit
        #: True if its write makes it durable, without a separate sync.
        self.is_durable = is_durable
        #: Operations that the ring has not completed.
        self.left = 0
        #: True if an operation was cut short: the whole commit is written again.
        self.is_short = False
        self.error: Exception | None = None


def _is_one_durable_write(commit: Commit) -> bool:
    epoch = commit.epoch
    return commit.durable and epoch is not None and epoch.follows_synced and not commit.segment_writes


def _failure(code: int) -> Exception:
    detail = errno.errorcode.get(code, str(code))
    kind, what = (SyncError, "a write or its sync") if code == errno.EIO else (FatalError, "a write")
    error = kind(f"the disk ring: {what} failed ({detail}); what the file holds is unknown: stop and recover")
    error.__cause__ = system_error(code)
    return error
