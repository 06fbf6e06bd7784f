"""Commits for an event loop: numbered on the loop, written and synced by a disk ring, finished on the loop.

The loop's turn goes on while the ring's server, which needs no GIL, writes; a readable descriptor brings the end of the
commit back. Checkpoints and evictions behind a commit are done on a thread. What is left on the loop is the beginning
of a segment or of a file of the log, once in many megabytes. One commit is written at a time, and what is published
meanwhile goes into the next: the more appenders, the more each sync carries. When half of those who append wait for one
commit, the records of the other half are numbered and encoded for the next; and where both are single durable writes,
the ring has the second behind the first, so that the disk need not wait for the loop.

A thread that needs the store while a commit is under way may finish it instead of the loop (`help`); on the loop's own
thread it has to, because nobody else would.

A commit is finished once, after all its operations have succeeded, in the order it was submitted.
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
from seawall.engine.commit.delivery import Delivery, PendingBatch
from seawall.engine.commit.pending_batches import Group
from seawall.errors import FatalError, SeawallError, SyncError
from seawall.io.disk.disk_ring import DiskRing
from seawall.io.disk.files import system_error
from seawall.io.interfaces import File, ReadableBuffer
from seawall.limits import IOVEC_COUNT_MAX, RECORD_HEADER_SIZE
from seawall.wire.format.records import raw_head

#: So many records are not worth two commits.
_FEW: Final = 8

#: The longest one call waits for a disk before it looks around.
_WAIT_MS: Final = 1_000


class RingDriver:
    """Drives a queue from one event loop. Made on the loop's thread."""

    def __init__(self, queue: CommitQueue, ring: DiskRing, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._ring = ring
        self.loop = loop
        self._thread = get_ident()
        # Entered again by whoever is told of a delivery and publishes at once.
        self._lock = threading.RLock()
        #: Set unless something is tidied up on a thread.
        self._is_tidy = threading.Event()
        self._is_tidy.set()
        # Not a thread of the loop's own: all of those may wait for the very commit that is tidied up behind.
        self._tidying = ThreadPoolExecutor(1, thread_name_prefix="seawall-tidying")
        #: Commits that the ring has, in order: one, or two.
        self._flights: deque[_Flight] = deque()
        #: What is written after them; begun already, where that can be.
        self._next: Group | None = None
        #: Tag of an operation under way → its flight, and the bytes it has to move.
        self._expected: dict[int, tuple[_Flight, int]] = {}
        self._tags = 0
        #: Whether somebody finishes flights: one at a time does, in order.
        self._is_finishing = False
        self._is_woken = False
        self._is_closed = False
        #: Records of the loop that are not queued yet, by the name of their topic: only the loop's thread has them.
        self._gathering: dict[str, PendingBatch] = {}
        #: Records that are on their way at once, as far as is known.
        self._crowd = 0
        self.loop.add_reader(ring.completed.wait_fd, self._signalled)
        queue.help = self.help
        queue.arrivals_driver = self.wake

    def join(self, topic: str, value: bytes) -> Delivery | None:
        """Make one record of plain bytes part of a batch that is gathered already; None if there is none that takes it.

        No lock is needed for that on the loop's thread, and nobody else may.
        """
        pending_batch = self._gathering.get(topic)
        if pending_batch is None or get_ident() != self._thread:
            return None
        offset, enough = pending_batch.record_count, self._queue.enough
        size = pending_batch.size + RECORD_HEADER_SIZE + len(value)
        if offset >= enough or size >= LARGE_BLOCK_SIZE:
            return None
        pending_batch.pieces += (raw_head(len(value)), value)
        pending_batch.size = size
        pending_batch.record_count = offset = offset + 1
        if offset == enough:
            if self._flights:
                self._prepare()
            else:
                self._start()
        return Delivery(self._queue, pending_batch, offset - 1, 1)

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Have records committed soon; from any thread. Plain ones of the loop are gathered until a commit begins."""
        pending_batch.driver = self.wake
        if get_ident() != self._thread or self._is_closed:
            return self._queue.offer(pending_batch)
        name = pending_batch.topic.name
        if not pending_batch.is_plain or name in self._gathering:
            self.hand_in()
        if not pending_batch.is_plain:
            return self._queue.offer(pending_batch)
        self._gathering[name] = pending_batch
        pending_batch.loop, pending_batch.loop_thread = self.loop, self._thread
        self.wake()
        return Delivery(self._queue, pending_batch, 0, pending_batch.record_count)

    @property
    def has_gathered(self) -> bool:
        """Whether records of the loop wait to be queued."""
        return bool(self._gathering)

    @property
    def record_count(self) -> int:
        """Records that were handed in on the loop and are not decided."""
        groups = [flight.group for flight in self._flights] + [each for each in [self._next] if each is not None]
        pending_batches = [*self._gathering.values(), *self._queue.pending_batches_of(self.wake)]
        return sum(each.record_count for each in groups) + sum(each.record_count for each in pending_batches)

    def hand_in(self) -> None:
        """Queue what is gathered, for whoever commits next; on the loop's thread."""
        if self._gathering:
            self._queue.put(self._gathering.values())
            self._gathering.clear()

    def wake(self) -> None:
        """Have what is queued committed soon; from any thread."""
        if self._is_closed or self._is_woken or self._flights:
            return
        self._is_woken = True
        if get_ident() == self._thread:
            # At the end of this turn of the loop: what else is published in it comes along.
            self.loop.call_soon(self._start)
        else:
            self.loop.call_soon_threadsafe(self._start)

    def help(self) -> None:
        """Finish a commit that is under way if its loop cannot: called by threads that wait for it."""
        if get_ident() == self._thread:
            self.hand_in()
            while self._flights:
                self._reap(_WAIT_MS)
        else:
            self._reap(0)

    def close(self) -> None:
        """Finish what is under way and leave the loop; what is queued is left to whoever leads next."""
        self._is_closed = True
        self.hand_in()
        while self._flights or not self._is_tidy.is_set():
            self.help()
            self._is_tidy.wait()
        self._tidying.shutdown()
        self._queue.help = self._queue.arrivals_driver = None
        self.loop.remove_reader(self._ring.completed.wait_fd)
        self._ring.close()

    # --- on the loop ---------------------------------------------------------------------------------------------

    def _start(self, told_soon: int = 0) -> None:
        """Begin the next commit, if none is under way; `told_soon` records of the last one are about to be told."""
        self._is_woken = False
        if self._flights or self._is_closed:
            return
        self.hand_in()
        group = self._queue.acquire_leadership() or self._queue.take_arrivals()
        if group is None:
            return
        self._gauge(told_soon + group.record_count)
        if self._begin(group):
            self._write_group(group)

    def _begin(self, group: Group) -> bool:
        """Number a group; false if that failed, which everybody in it was told."""
        try:
            self._queue.begin(group)
        except BaseException as error:
            self._queue.release_leadership()
            # Others may be gathered, and will be told the same.
            self.wake()
            if isinstance(error, (SeawallError, OSError)):
                return False
            raise
        return True

    def _prepare(self) -> None:
        """Enough is queued while a commit is under way: have it written right after that one."""
        with self._lock:
            if len(self._flights) != 1 or self._next is not None:
                return
            self.hand_in()
            group = self._queue.take_more()
            if group is None:
                return
            self._gauge(self._flights[0].group.record_count + group.record_count)
            self._next = group
            try:
                # If it cannot be, it begins when its turn has come.
                self._queue.begin_next(group)
            except BaseException as error:
                # Everybody in the group was told.
                self._next = None
                if not isinstance(error, (SeawallError, OSError)):
                    raise
                return
            # One behind the other only if each is durable by itself: a sync for both would vouch for what may not be
            # written yet.
            if group.commit is not None and _is_one_durable_write(group.commit) and self._flights[0].is_durable:
                self._next = None
                self._submit(group, group.commit)

    def _gauge(self, record_count: int) -> None:
        """So many records, beside those that are queued, are on their way."""
        self._crowd = max(record_count + self._queue.record_count, self._crowd - self._crowd // 8)
        # Half of them in one commit: while their records are written, those of the others are gathered.
        self._queue.enough = max(_FEW, -(-self._crowd // 2))

    def _write_group(self, group: Group) -> None:
        """Have the commit of a group written by the ring."""
        commit = group.commit
        assert commit is not None
        if commit.epoch is None and not commit.places:
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
        if self._flights and self._ring.ask_for_signal():
            self._reap(0)

    # --- operations ----------------------------------------------------------------------------------------------

    def _submit(self, group: Group, commit: Commit) -> bool:
        """Hand the commit to the ring as one chain: places first, then the epoch. Whether something is done already."""
        flight = _Flight(group, commit, is_durable=_is_one_durable_write(commit))
        self._flights.append(flight)
        try:
            self._queue_writes(flight, commit)
        except BaseException as error:
            # What the ring has of it by now is awaited; then everybody is told.
            flight.error = FatalError(f"the disk ring did not take a commit ({error!r}): stop and recover")
            self._ring.submit_signalled()
            self.loop.call_soon_threadsafe(self._reap, 0)
            raise
        return self._ring.submit_signalled()

    def _queue_writes(self, flight: _Flight, commit: Commit) -> None:
        epoch = commit.epoch
        for place in commit.places:
            is_last = epoch is None and place is commit.places[-1]
            self._place(flight, place, link=not is_last)
        if epoch is not None:
            at_once = commit.durable and epoch.follows_synced
            syncs = commit.durable and not at_once
            self._write(flight, epoch.file, epoch.buffers, epoch.file_at, link=syncs, sync=at_once)
            if syncs:
                self._sync(flight, epoch.file, link=False)

    def _place(self, flight: _Flight, place: SegmentWrite, *, link: bool) -> None:
        pieces = place.pieces()
        is_one = len(pieces) == 1
        for at, piece in pieces:
            is_linked = link or not is_one
            self._ring.write(
                *(place.file, piece, at),
                tag=self._next_tag(),
                link=is_linked,
                sync=is_one,
                uncached=place.is_uncached,
            )
            self._expect(flight, sum(map(len, piece)))
        if not is_one:
            self._sync(flight, place.file, link=link)

    def _write(
        self, flight: _Flight, file: File, buffers: list[ReadableBuffer], at: int, *, link: bool, sync: bool
    ) -> None:
        for first in range(0, len(buffers), IOVEC_COUNT_MAX):
            pieces = buffers[first : first + IOVEC_COUNT_MAX]
            size = sum(map(len, pieces))
            more = first + IOVEC_COUNT_MAX < len(buffers)
            self._ring.write(file, pieces, at, tag=self._next_tag(), link=link or more, sync=sync)
            self._expect(flight, size)
            at += size

    def _sync(self, flight: _Flight, file: File, *, link: bool) -> None:
        self._ring.sync(file, tag=self._next_tag(), link=link)
        self._expect(flight, 0)

    def _next_tag(self) -> int:
        self._tags += 1
        return self._tags

    def _expect(self, flight: _Flight, size: int) -> None:
        """The ring has taken the operation with the last tag, which is to move so many bytes."""
        self._expected[self._tags] = flight, size
        flight.left += 1

    def _reap(self, wait_ms: int) -> None:
        """Take results, and finish commits of which there are all."""
        with self._lock:
            left = self._flights[0].left if self._flights else 0
            for tag, result in self._ring.reap(wait_ms=wait_ms, count=left):
                flight, expected = self._expected.pop(tag)
                flight.left -= 1
                if result == -errno.ECANCELED or 0 <= result < expected:
                    # Done in part, or not at all because of one that was.
                    flight.is_short = True
                elif result < 0 and flight.error is None:
                    flight.error = _failure(-result)
            if self._is_finishing:
                # Whoever does that looks again.
                return
            self._is_finishing = True
        try:
            while (done := self._next_done()) is not None:
                self._complete(done)
        except BaseException:
            self._is_finishing = False
            raise

    def _next_done(self) -> _Flight | None:
        with self._lock:
            if self._flights and not self._flights[0].left:
                return self._flights.popleft()
            self._is_finishing = False
            return None

    def _complete(self, flight: _Flight) -> None:
        try:
            if flight.error is not None:
                raise flight.error
            if flight.is_short:
                # Rare: a signal came in between. Writing the same bytes to the same places again does no harm.
                flight.commit.execute()
        except (SeawallError, OSError) as error:
            self._queue.fail(flight.group, error)
            self._fail_applying(error)
            return
        self._finish(flight.group)

    def _finish(self, group: Group) -> None:
        """The commit is written. What has to be tidied up behind it is done on a thread, and then everybody is told.

        What was gathered meanwhile is on its way before those are told who will offer the next.
        """
        following = self._next
        try:
            is_untidy = self._queue.finish(group)
        except BaseException as error:
            # Everybody in the group was told.
            self._fail_applying(error)
            if not isinstance(error, (SeawallError, OSError)):
                raise
            return
        if is_untidy and not self._flights and (following is None or following.commit is None):
            self._next = None
            self._is_tidy.clear()
            self._tidying.submit(self._conclude, group, following)
            return
        if not self._flights:
            self._next = None
            if following is None:
                self._hand_on(group.record_count)
            else:
                self._follow(following)
        self._queue.tell(group)

    def _fail_applying(self, error: BaseException) -> None:
        """One commit has failed: so have those behind it, and nobody leads any more."""
        with self._lock:
            failed = [flight.group for flight in self._flights]
            self._flights.clear()
            if self._next is not None:
                failed.append(self._next)
                self._next = None
        for group in failed:
            self._queue.fail(group, error)
        self._hand_on()

    def _hand_on(self, told_soon: int = 0) -> None:
        """Give the lead back, and take it again for what is queued or gathered meanwhile."""
        self._queue.release_leadership()
        if get_ident() == self._thread:
            self._start(told_soon)
        else:
            # What is gathered belongs to the loop's thread.
            self.wake()

    def _follow(self, group: Group) -> None:
        """Have a group written for which the lead was kept."""
        if group.commit is not None or self._begin(group):
            self._write_group(group)

    def _conclude(self, group: Group, following: Group | None) -> None:
        try:
            # If it fails everybody in the group is told.
            with suppress(SeawallError, OSError):
                self._queue.tidy_up(group)
                self._queue.tell(group)
        finally:
            try:
                if following is None:
                    self._hand_on()
                else:
                    self._follow(following)
            finally:
                self._is_tidy.set()


class _Flight:
    """A commit that the ring has."""

    __slots__ = ("commit", "error", "group", "is_durable", "is_short", "left")

    def __init__(self, group: Group, commit: Commit, *, is_durable: bool) -> None:
        self.group = group
        self.commit = commit
        #: Whether it is durable as soon as it is written.
        self.is_durable = is_durable
        #: Operations of it that the ring has not completed.
        self.left = 0
        self.is_short = False
        self.error: Exception | None = None


def _is_one_durable_write(commit: Commit) -> bool:
    epoch = commit.epoch
    return commit.durable and epoch is not None and epoch.follows_synced and not commit.places


def _failure(code: int) -> Exception:
    detail = errno.errorcode.get(code, str(code))
    kind, what = (SyncError, "a write or its sync") if code == errno.EIO else (FatalError, "a write")
    error = kind(f"the disk ring: {what} failed ({detail}); what the file holds is unknown: stop and recover")
    error.__cause__ = system_error(code)
    return error
