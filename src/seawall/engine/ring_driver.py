"""Commits for an event loop: numbered on the loop, written and synced by a disk ring, finished on the loop.

The loop's turn goes on while the ring's server, which needs no GIL, writes; a readable descriptor brings the end of the
commit back. Checkpoints and evictions behind a commit are done on a thread. What is left on the loop is the beginning
of a segment or of a file of the log, once in many megabytes. One commit is written at a time, and what is published
meanwhile goes into the next: the more appenders, the more each sync carries. When half of those who append wait for one
commit, the records of the other half are numbered and encoded for the next.

A thread that needs the store while a commit is under way may finish it instead of the loop (`help`); on the loop's own
thread it has to, because nobody else would.

INV-RING-COMMIT: a commit is finished once, after all its operations have succeeded, in the order it was submitted.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from contextlib import suppress
from threading import get_ident
from typing import Final

from seawall.engine.appends import LARGE_BLOCK_SIZE, Commit
from seawall.engine.commit_queue import CommitQueue
from seawall.engine.delivery import Bundle, Delivery
from seawall.engine.groups import Group
from seawall.errors import FatalError, SeawallError, SyncError
from seawall.io.interfaces import File, ReadableBuffer
from seawall.io.ring import DiskRing
from seawall.limits import IOVEC_COUNT_MAX, RECORD_HEADER_SIZE
from seawall.wire.records import raw_head

#: So many records are not worth two commits.
_FEW: Final = 8

#: The longest one call waits for a disk before it looks around.
_WAIT_MS: Final = 1_000


class RingDriver:
    """Drives a queue from one event loop. Made on the loop's thread."""

    def __init__(self, queue: CommitQueue, ring: DiskRing, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._ring = ring
        self._loop = loop
        self._thread = get_ident()
        # Entered again by whoever is told of a delivery and publishes at once.
        self._lock = threading.RLock()
        #: Set unless something is tidied up on a thread.
        self._is_tidy = threading.Event()
        self._is_tidy.set()
        self._group: Group | None = None
        #: What is written after it; begun already, where that can be.
        self._next: Group | None = None
        #: Tag of an operation under way → bytes it has to move.
        self._expected: dict[int, int] = {}
        self._is_short = False
        self._error: Exception | None = None
        self._is_woken = False
        self._is_closed = False
        #: Records of the loop that are not queued yet, by the name of their topic: only the loop's thread has them.
        self._gathering: dict[str, Bundle] = {}
        #: Records that are on their way at once, as far as is known.
        self._crowd = 0
        self._loop.add_reader(ring.completed.wait_fd, self._signalled)
        queue.help = self.help

    def join(self, topic: str, value: bytes) -> Delivery | None:
        """Make one record of plain bytes part of a batch that is gathered already; None if there is none that takes it.

        No lock is needed for that on the loop's thread, and nobody else may.
        """
        bundle = self._gathering.get(topic)
        if bundle is None or get_ident() != self._thread:
            return None
        offset, enough = bundle.record_count, self._queue.enough
        size = bundle.size + RECORD_HEADER_SIZE + len(value)
        if offset >= enough or size >= LARGE_BLOCK_SIZE:
            return None
        bundle.pieces += (raw_head(len(value)), value)
        bundle.size = size
        bundle.record_count = offset = offset + 1
        if offset == enough:
            if self._group is None:
                self._start()
            else:
                self._prepare()
        return Delivery(self._queue, bundle, offset - 1, 1)

    def offer(self, bundle: Bundle) -> Delivery:
        """Have records committed soon; from any thread. Plain ones of the loop are gathered until a commit begins."""
        bundle.driver = self.wake
        if get_ident() != self._thread or self._is_closed:
            return self._queue.offer(bundle)
        name = bundle.topic.name
        if not bundle.is_plain or name in self._gathering:
            self.hand_in()
        if not bundle.is_plain:
            return self._queue.offer(bundle)
        self._gathering[name] = bundle
        bundle.loop, bundle.loop_thread = self._loop, self._thread
        self.wake()
        return Delivery(self._queue, bundle, 0, bundle.record_count)

    def hand_in(self) -> None:
        """Queue what is gathered, for whoever commits next; on the loop's thread."""
        if self._gathering:
            self._queue.put(self._gathering.values())
            self._gathering.clear()

    def wake(self) -> None:
        """Have what is queued committed soon; from any thread."""
        if self._is_closed or self._is_woken or self._group is not None:
            return
        self._is_woken = True
        if get_ident() == self._thread:
            # At the end of this turn of the loop: what else is published in it comes along.
            self._loop.call_soon(self._start)
        else:
            self._loop.call_soon_threadsafe(self._start)

    def help(self) -> None:
        """Finish a commit that is under way if its loop cannot: called by threads that wait for it."""
        if get_ident() == self._thread:
            self.hand_in()
            while self._group is not None:
                self._reap(_WAIT_MS)
        else:
            self._reap(0)

    def close(self) -> None:
        """Finish what is under way and leave the loop; what is queued is left to whoever leads next."""
        self._is_closed = True
        self.hand_in()
        while self._group is not None or not self._is_tidy.is_set():
            self.help()
            self._is_tidy.wait()
        self._queue.help = None
        self._loop.remove_reader(self._ring.completed.wait_fd)
        self._ring.close()

    # --- on the loop ---------------------------------------------------------------------------------------------

    def _start(self, told_soon: int = 0) -> None:
        """Begin the next commit, if none is under way; `told_soon` records of the last one are about to be told."""
        self._is_woken = False
        if self._group is not None or self._is_closed:
            return
        self.hand_in()
        group = self._queue.take_lead()
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
            self._queue.hand_on()
            if isinstance(error, (SeawallError, OSError)):
                return False
            raise
        return True

    def _prepare(self) -> None:
        """Enough is queued while a commit is under way: have it ready for the moment that one is written."""
        with self._lock:
            if self._group is None or self._next is not None:
                return
            self.hand_in()
            group = self._queue.take_more()
            if group is None:
                return
            self._gauge(self._group.record_count + group.record_count)
            self._next = group
            try:
                # If it cannot be, it begins when its turn has come.
                self._queue.begin_ahead(group)
            except BaseException as error:
                # Everybody in the group was told.
                self._next = None
                if not isinstance(error, (SeawallError, OSError)):
                    raise

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
            self._finish(group, None)
            return
        with self._lock:
            self._group = group
            is_written = self._submit(commit)
        if is_written:
            self._reap(0)

    def _signalled(self) -> None:
        with self._lock:
            self._ring.forget_signal()
        if not self._reap(0) and self._ring.ask_for_signal():
            self._reap(0)

    # --- operations ----------------------------------------------------------------------------------------------

    def _submit(self, commit: Commit) -> bool:
        """Hand the commit to the ring as one chain: places first, then the epoch. Whether something is done already."""
        self._is_short = False
        self._error = None
        epoch = commit.epoch
        for place in commit.places:
            is_last = epoch is None and place is commit.places[-1]
            self._write(place.file, place.buffers, place.at, link=not is_last, sync=True)
        if epoch is not None:
            at_once = commit.durable and epoch.follows_synced
            syncs = commit.durable and not at_once
            self._write(epoch.file, epoch.buffers, epoch.file_at, link=syncs, sync=at_once)
            if syncs:
                self._ring.sync(epoch.file, tag=self._tag(0))
        return self._ring.submit_signalled()

    def _write(self, file: File, buffers: list[ReadableBuffer], at: int, *, link: bool, sync: bool) -> None:
        if len(buffers) == 1:
            self._ring.write(file, buffers, at, tag=self._tag(len(buffers[0])), link=link, sync=sync)
            return
        for first in range(0, len(buffers), IOVEC_COUNT_MAX):
            pieces = buffers[first : first + IOVEC_COUNT_MAX]
            size = sum(map(len, pieces))
            more = first + IOVEC_COUNT_MAX < len(buffers)
            self._ring.write(file, pieces, at, tag=self._tag(size), link=link or more, sync=sync)
            at += size

    def _tag(self, expected: int) -> int:
        tag = len(self._expected)
        self._expected[tag] = expected
        return tag

    def _reap(self, wait_ms: int) -> bool:
        """Take results; with the last one the commit is finished. Whether none is awaited that was before."""
        with self._lock:
            group = self._group
            if group is None:
                return True
            for completion in self._ring.reap(wait_ms=wait_ms, count=len(self._expected)):
                expected = self._expected.pop(completion.tag)
                if completion.result == -errno.ECANCELED or 0 <= completion.result < expected:
                    # Done in part, or not at all because of one that was.
                    self._is_short = True
                elif completion.result < 0 and self._error is None:
                    self._error = _failure(-completion.result)
            if self._expected:
                return False
            following = self._next
            self._group = self._next = None
        self._complete(group, following)
        return True

    def _complete(self, group: Group, following: Group | None) -> None:
        commit = group.commit
        assert commit is not None
        try:
            if self._error is not None:
                raise self._error
            if self._is_short:
                # Rare: a signal came in between. Writing the same bytes to the same places again does no harm.
                commit.carry_out()
        except (SeawallError, OSError) as error:
            for failed in (group, following):
                if failed is not None:
                    self._queue.fail(failed, error)
            self._queue.hand_on()
            return
        self._finish(group, following)

    def _finish(self, group: Group, following: Group | None) -> None:
        """The commit is written. What has to be tidied up behind it is done on a thread, and then everybody is told.

        What was gathered meanwhile is on its way before those are told who will offer the next.
        """
        try:
            if self._queue.finish(group) and (following is None or following.commit is None):
                self._is_tidy.clear()
                self._loop.run_in_executor(None, self._conclude, group, following)
                return
        except BaseException as error:
            # Everybody in the group was told.
            if following is not None:
                self._queue.fail(following, error)
            self._queue.hand_on()
            if not isinstance(error, (SeawallError, OSError)):
                raise
            return
        if following is None:
            self._queue.hand_on()
            self._start(group.record_count)
        else:
            self._follow(following)
        self._queue.tell(group)

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
            if following is None:
                self._queue.hand_on()
            else:
                self._follow(following)
            self._is_tidy.set()


def _failure(code: int) -> Exception:
    detail = errno.errorcode.get(code, str(code))
    if code == errno.EIO:
        return SyncError(f"the disk ring: a write or its sync failed ({detail}); stop, start again and recover")
    return FatalError(f"the disk ring: a write failed ({detail}); what the file holds is unknown: stop and recover")
