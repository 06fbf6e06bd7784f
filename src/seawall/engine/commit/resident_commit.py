"""Commits by a kernel that stays: the publish thread leads, and one call receives, commits and answers again and again.

    lead ──▶ run_cycles ──▶ something is lacking ──▶ Python provides it ──▶ run_cycles …    ──▶ account, release

Python prepares ahead: what cycles may take of reservations is granted, and the log's file is lent. It applies behind:
rows of stored batches when somebody looks, reservations when the kernel has ended. In between no Python runs, unless
the kernel says what it lacks (`kernels.network.publish_cycle`).

Whoever wants to lead interrupts the kernel, and the next who waits leads as ever. Readers do not wait for it: they
share `state` with it, a lock that kernels take, too.

The kernel runs only while its thread leads, so nobody else changes the store.

A crash takes what was not acked. This module must not know connections, sockets or frames.
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

#: The log needs nothing before this address.
_NOTHING_DUE: Final = (1 << 63) - 1


class ResidentCommit:
    """The kernel of one publish thread."""

    def __init__(
        self,
        queue: CommitQueue,
        store: Store,
        orderer: SequencedOrderer,
        publishers: npt.NDArray[np.void],
        interrupt: Callable[[], None],
    ) -> None:
        """`publishers` are the arguments of the kernel that are about connections; `interrupt` ends its waiting."""
        assert isinstance(queue.state, SharedLock), "opened for the network"
        self._queue = queue
        self._store = store
        self._orderer = orderer
        self._cycle = orderer.cycle
        self._publishers = publishers
        self._interrupt = interrupt
        #: Where the kernel puts batches.
        self.received: Final = orderer.cycle.received
        #: Signalled when something new can be read and somebody waits for that: then `notify` has to be called.
        self.news: Final = Event(block=False)
        publishers["news"] = self.news.signal_fd
        publishers["lock_at"] = queue.state.words.ctypes.data
        publishers["signals_at"] = queue.signals.ctypes.data
        #: Rows of `received` that the kernel has not answered.
        self.unanswered = 0

    def commit(self, count: int) -> None:
        """Commit the first rows of `received`, answer them, and go on with what comes, until something else is to be
        done.

        Rows that are `unanswered` then were committed otherwise, if they are staged; the others have to be published to
        the ring of an event loop. A failure is reported to everybody who publishes; of rows that are staged nobody
        knows then whether they are stored.
        """
        self.unanswered = count
        self._queue.commit_arrivals(self._run, self._interrupt)

    def _run(self) -> None:
        """Run the kernel until there is nothing more for it to do."""
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
            self._commit_otherwise()
        elif self._store.is_tidy_up_due:
            with suppress(SeawallError, OSError), queue.state:
                self._store.tidy_up()

    def notify(self) -> None:
        """Have everybody look who waits for news."""
        self.news.clear()
        self._queue.notify()

    def _run_kernel(self) -> int:
        """Run the kernel once: the reason for which it has ended."""
        cycle, publishers = self._cycle, self._publishers
        file = cycle.lend()
        assert isinstance(file, OsFile), "only real files are served"
        publishers["fd"], publishers["direct_sync"] = file.fileno(), file.direct_sync
        publishers["due_at"] = min(self._store.checkpoint_schedule.look_at, _NOTHING_DUE)
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
        """Provide what the kernel lacks; whether it may go on."""
        if reason == LACKS_GRANTS:
            with self._queue.state:
                self._cycle.grant()
        elif reason == LACKS_ROWS:
            with self._queue.state:
                self._cycle.apply_rows()
        else:
            return False
        return True

    def _commit_otherwise(self) -> None:
        """Commit rows by the steps that others use."""
        self.received.count = self.unanswered
        try:
            self._queue.commit_led()
        finally:
            self.received.count = 0
