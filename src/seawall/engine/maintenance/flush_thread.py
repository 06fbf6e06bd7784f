"""A background thread that flushes, seals segments and makes checkpoints while appends and reads continue.

`checkpoint_schedule` wakes it when the log has grown. It waits until the log is quiet, because its writes would slow
down appends; if the flush is urgent, it starts at once. Further passes flush what arrives meanwhile, each shorter than
the one before, until almost nothing is left for the checkpoint. After a quiet period the thread also makes the
checkpoint, since nothing waits for it then.

After a crash: see `flushing`; a sealed segment stays valid whether or not a snapshot lists it. One thread.
"""

from __future__ import annotations

import threading
from typing import Final

from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.worker_thread import WorkerThread
from seawall.engine.store.store import Store
from seawall.engine.store.write_guard import refusal_of
from seawall.errors import RetryableError, SeawallError
from seawall.limits import MIB

#: The log is quiet after this time without an append.
_QUIET_S: Final = 0.25
#: The most unflushed bytes to leave to the checkpoint.
_LEFT_SIZE: Final = 4 * MIB
#: After this many passes the rest is left to the checkpoint, however much it is.
_PASSES_MAX: Final = 8


class FlushThread:
    """Flushes the log of one store, on a thread that starts when it is first needed."""

    def __init__(self, queue: CommitQueue, store: Store) -> None:
        self._queue = queue
        self._store = store
        self._maintenance = store.maintenance
        self._worker = WorkerThread(self._work)
        self._urgent = threading.Event()
        self._is_checkpoint_wanted = False
        self._is_stopping = False

    def wake(self, is_urgent: bool) -> None:
        """Request a flush: in the next quiet period, or at once."""
        if is_urgent:
            self._urgent.set()
        self._worker.wake()

    def flush_now(self) -> None:
        """Request a flush and a checkpoint at once, to free the memory that unflushed batches and unsealed segments
        take."""
        self._is_checkpoint_wanted = True
        self.wake(is_urgent=True)

    def stop(self) -> None:
        """Flush what is left, if the thread was ever woken, and stop."""
        self._is_stopping = True
        self._urgent.set()
        self._worker.stop()

    def flush(self) -> None:
        """Flush batches to their segments and seal segments, so that a checkpoint has less to do."""
        store, state = self._store, self._queue.state
        with store.checkpoint_schedule.flush_lock:
            if store.guard.is_failed:
                return  # INV-STORE-FAILED: no more writes
            try:
                self._recover()
                for _ in range(_PASSES_MAX):
                    if self._flush_once() <= _LEFT_SIZE:
                        break
                self._seal()
                with state:
                    store.checkpoint_schedule.flushed()
            except (SeawallError, OSError) as error:
                if isinstance(error, RetryableError) or refusal_of(error) is not None:
                    # No space for an index or no free descriptor. The next pass retries, or a checkpoint, which reports
                    # the error.
                    return
                # Refuse further changes with this error: the content of the segment is unknown.
                with state:
                    store.guard.refuse(error)

    def _work(self) -> None:
        is_quiet = self._await_quiet()
        is_wanted, self._is_checkpoint_wanted = self._is_checkpoint_wanted, False
        self.flush()
        if is_quiet or is_wanted:
            with self._queue.exclusive() as store:
                store.tidy_up()

    def _await_quiet(self) -> bool:
        """Wait until the log is quiet; false if the flush is urgent."""
        while not self._is_stopping:
            at = self._store.parts.writer.log_end
            if self._urgent.wait(_QUIET_S):
                self._urgent.clear()
                break
            if self._store.parts.writer.log_end == at:
                return True
        return False

    def _flush_once(self) -> int:
        """Flush what is unflushed now; returns how many bytes of the log that was."""
        with self._queue.state:
            jobs = self._maintenance.plan_flushes()
        for job in jobs:
            job.execute()
        with self._queue.state:
            for job in jobs:
                job.settle()
        return sum(job.size for job in jobs)

    def _recover(self) -> None:
        """Recover the topics that have unflushed batches since the opening, a few at a time, so that other threads can
        run."""
        is_more = True
        while is_more:
            with self._queue.state:
                is_more = self._store.parts.logs.recover_unflushed()

    def _seal(self) -> None:
        """Seal complete segments one by one, so that readers wait only for the rename of each."""
        with self._queue.state:
            seals = self._maintenance.plan_seals()
        for seal in seals:
            seal.execute()
            with self._queue.state:
                seal.settle()
