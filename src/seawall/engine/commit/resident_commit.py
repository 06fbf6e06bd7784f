"""Commits by a resident kernel: while the publish thread leads, one call receives, commits and answers in a loop.

    acquire leadership ──▶ run_cycles ──▶ it lacks something ──▶ Python provides it ──▶ run_cycles …
                                      ──▶ settle grants, release leadership

Before the kernel runs, Python grants it reservations and lends it the log file. After it has returned, Python deducts
what it used; the rows of its batches are applied when a reader needs them. In between no Python runs, except to provide
what the kernel reports as lacking (`kernels.network.publish_cycle`).

A thread that wants leadership interrupts the kernel, and the next waiter becomes the commit leader as usual. Readers do
not wait for the kernel to end: they share with it the lock `state`, which kernels can take.

The kernel runs only while its thread is the commit leader, so no other thread changes the store.

A crash loses what was not acknowledged. This module must not know connections, sockets or frames.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.ordering.sequenced_orderer import SequencedOrderer
from seawall.engine.store.store import Store
from seawall.errors import SeawallError
from seawall.io.disk.disk_ring import Event
from seawall.io.disk.files import OsFile
from seawall.io.process.shared_lock import SharedLock
from seawall.kernels.log.cycle_records import LACKS_GRANTS, LACKS_ROWS, NOT_ELIGIBLE
from seawall.kernels.network import publish_cycle as kernels

#: A log address that is never reached: no flush or checkpoint is due.
_NOTHING_DUE: Final = (1 << 63) - 1


class ResidentCommit:
    """Runs the resident kernel of one publish thread."""

    def __init__(
        self,
        queue: CommitQueue,
        store: Store,
        orderer: SequencedOrderer,
        publishers: npt.NDArray[np.void],
        interrupt: Callable[[], None],
    ) -> None:
        """`publishers` has the kernel arguments that concern connections; `interrupt` wakes the kernel if it waits."""
        assert isinstance(queue.state, SharedLock), "opened for the network"
        self._queue = queue
        self._store = store
        self._orderer = orderer
        self._cycle = orderer.cycle
        self._publishers = publishers
        self._interrupt = interrupt
        #: The receive buffer of the kernel.
        self.received: Final = orderer.cycle.received
        #: Signalled when new records are readable and a reader waits for them: call `notify` then.
        self.readable: Final = Event(block=False)
        publishers["readable"] = self.readable.signal_fd
        publishers["lock_at"] = queue.state.words.ctypes.data
        publishers["signals_at"] = queue.signals.ctypes.data
        #: Rows of `received` that the kernel has not answered.
        self.unanswered = 0

    def commit(self, count: int) -> None:
        """Commit and answer the first `count` rows of `received`, and continue with what arrives, as the commit leader.

        Returns when there is no more to do, or another thread wants leadership. Of the rows that are `unanswered` then,
        those marked as staged were committed by the general path; publish the others to the ring of an event loop. A
        failure is reported to all publishers; the outcome of staged rows is unknown then.
        """
        self.unanswered = count
        self._queue.run_as_leader(self._run, self._interrupt)

    def _run(self) -> None:
        """Run the kernel until it has nothing more to do; the caller is the commit leader."""
        cycle, queue = self._cycle, self._queue
        reason = NOT_ELIGIBLE
        if not self._store.guard.is_failed and self._orderer.is_at_rest:
            cycle.expect(self.unanswered)
            reason = self._run_kernel()
            while self._provide(reason):
                reason = self._run_kernel()
            with queue.state:
                self._orderer.cycles_ended()
        if reason == NOT_ELIGIBLE:
            self._commit_by_queue()
        elif self._store.is_tidy_up_due:
            with suppress(SeawallError, OSError), queue.state:
                self._store.tidy_up()

    def notify(self) -> None:
        """Call the listeners of the queue: new records may be readable."""
        self.readable.clear()
        self._queue.notify()

    def _run_kernel(self) -> int:
        """Run the kernel once: the reason why it returned."""
        cycle, publishers = self._cycle, self._publishers
        file = cycle.lend()
        assert isinstance(file, OsFile), "only real files are served"
        publishers["fd"], publishers["direct_sync"] = file.fileno(), file.direct_sync
        publishers["due_at"] = min(self._store.checkpoint_schedule.next_check_at, _NOTHING_DUE)
        reason: int = kernels.run_cycles(publishers, cycle.cycles, cycle.memory)
        self.unanswered = cycle.expected
        if reason == kernels.CYCLES_FAILED:
            failed = file.failed(-int(publishers["error"][0]))
            with self._queue.state:
                self._store.fail(failed)
        else:
            cycle.take_back()
        return reason

    def _provide(self, reason: int) -> bool:
        """Provide what the kernel lacks; True if it can continue."""
        if reason == LACKS_GRANTS:
            with self._queue.state:
                self._cycle.grant()
        elif reason == LACKS_ROWS:
            with self._queue.state:
                self._cycle.apply_rows()
        else:
            return False
        return True

    def _commit_by_queue(self) -> None:
        """Commit the unanswered rows by the general path."""
        self.received.count = self.unanswered
        try:
            self._queue.commit_arrivals()
        finally:
            self.received.count = 0
