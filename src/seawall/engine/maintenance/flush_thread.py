"""Somebody on the side, who fills places, seals segments and makes checkpoints while others append and read.

Woken when the log has grown (`upkeep`), it waits until nothing more comes for a moment, because beside appends its
writes cost them speed; where that is urgent, it begins at once. What comes meanwhile is placed in further passes, each
shorter than the one before, until a checkpoint has next to nothing left to do. After a quiet moment it makes the
checkpoint, too: nobody waits for that then.

What a crash does: see `placing`; a sealed segment is one whether or not a snapshot knows. One thread.
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

#: Nothing came for so long: the moment is quiet.
_QUIET_S: Final = 0.25
#: So little is left to the checkpoint.
_REST_SIZE: Final = 4 * MIB
#: Passes after which the rest is left to the checkpoint however much it is.
_PASSES_MAX: Final = 8


class FlushThread:
    """Places what waits in the log of one store, on a thread that begins when it is first needed."""

    def __init__(self, queue: CommitQueue, store: Store) -> None:
        self._queue = queue
        self._store = store
        self._maintenance = store.maintenance
        self._pump = WorkerThread(self._work)
        self._hurry = threading.Event()
        self._is_checkpoint_wanted = False
        self._is_stopping = False

    def wake(self, is_urgent: bool) -> None:
        """Have what waits placed: in a quiet moment, or at once."""
        if is_urgent:
            self._hurry.set()
        self._pump.wake()

    def relieve(self) -> None:
        """Have what waits placed and a checkpoint made at once: what both keep in memory is wanted for other things."""
        self._is_checkpoint_wanted = True
        self.wake(is_urgent=True)

    def stop(self) -> None:
        """Place what is left, if it was ever woken, and end."""
        self._is_stopping = True
        self._hurry.set()
        self._pump.stop()

    def place(self) -> None:
        """Bring what waits in the log to its places, and seal segments, so that a checkpoint has less to do."""
        store, state = self._store, self._queue.state
        with store.checkpoint_schedule.placing:
            if store.guard.is_failed:
                return  # INV-STORE-FAILED: nothing is written any more
            try:
                self._recover()
                for _ in range(_PASSES_MAX):
                    if self._flush_once() <= _REST_SIZE:
                        break
                self._seal()
                with state:
                    store.checkpoint_schedule.placed()
            except (SeawallError, OSError) as error:
                if isinstance(error, RetryableError) or refusal_of(error) is not None:
                    # No room for an index, say, or no descriptor: what was not done is done once there is one, by the
                    # next pass or by a checkpoint, which says so.
                    return
                # Whoever changes something next is told: a place that could not be filled is no place.
                with state:
                    store.guard.refuse(error)

    def _work(self) -> None:
        is_quiet = self._await_quiet()
        is_wanted, self._is_checkpoint_wanted = self._is_checkpoint_wanted, False
        self.place()
        if is_quiet or is_wanted:
            with self._queue.exclusive() as store:
                store.tidy_up()

    def _await_quiet(self) -> bool:
        """Wait until nothing comes to the log for a moment; false if there is no time for that."""
        while not self._is_stopping:
            at = self._store.parts.writer.log_end
            if self._hurry.wait(_QUIET_S):
                self._hurry.clear()
                break
            if self._store.parts.writer.log_end == at:
                return True
        return False

    def _flush_once(self) -> int:
        """Place what waits now; how many bytes of the log that was."""
        with self._queue.state:
            jobs = self._maintenance.plan_flushes()
        for job in jobs:
            job.execute()
        with self._queue.state:
            for job in jobs:
                job.settle()
        return sum(job.size for job in jobs)

    def _recover(self) -> None:
        """Have topics put in order of which batches wait since the opening, some at a time: others go on between."""
        is_more = True
        while is_more:
            with self._queue.state:
                is_more = self._store.parts.logs.recover_unflushed()

    def _seal(self) -> None:
        """Seal what is written on no more, each segment on its own: readers wait only for its change of name."""
        with self._queue.state:
            seals = self._maintenance.plan_seals()
        for seal in seals:
            seal.execute()
            with self._queue.state:
                seal.settle()
