"""Changes that are no appends: control batches, numbered, made durable, and applied to catalog and frontier.

    begin_change   what every change begins with: nothing has failed, this process has its term, no row is pending
    commit         reserve, stage, flush, apply: the controls of one call, at one position

The term of this process is logged by its first change: after a clean end, who only reads leaves no trace.

A full disk refuses a control and changes nothing. Deletes still work: appends leave space for them (`HEADROOM`), and
behind that there is the ballast. A crash takes a control that is not flushed; replay applies one that is. What a
control means to segments or sessions is applied by whoever commits it, and this module must not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seawall import limits
from seawall.core.types import Position, Term, TimestampNs
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.commit.pending_rows import PendingRows
from seawall.engine.commit.reservations import Reservations
from seawall.engine.store.write_guard import WriteGuard
from seawall.errors import DiskFullError
from seawall.io.interfaces import Clock
from seawall.sequencer.frontier import TopicNumbers
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import Ceiling
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise, Loss, TermStart, TopicCreate, TopicDelete
from seawall.storage.directory import DataDirectory
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Order, stored_config

#: Space in the log that appends leave to deletes and to the next opening, for when the disk is full.
HEADROOM: Final = 16 * limits.KIB
_USES_HEADROOM: Final = (TopicDelete, DeleteRecords, FloorRaise, TermStart, Loss)

#: Losses, or ceilings, logged at one position.
_CONTROLS_PER_BATCH: Final = 1_000


class ControlLog:
    """The control batches of one data directory."""

    def __init__(
        self,
        guard: WriteGuard,
        directory: DataDirectory,
        writer: LogWriter,
        catalog: TopicCatalog,
        clock: Clock,
        term: Term,
        pending: PendingRows,
        reservations: Reservations,
        *,
        lost: Sequence[Loss],
    ) -> None:
        """`lost` is what the end before has cost, which the first change logs."""
        self._guard = guard
        self._directory = directory
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._term = term
        self._pending = pending
        self._reservations = reservations
        self._lost = lost
        #: The position at which this process began to write; None before its first change.
        self.began_at: Position | None = None

    def begin_term(self) -> None:
        """Log that this process writes now, and what the end before has cost, unless that was done.

        Whatever fails in it ends the writing: a clean close would vouch for numbers that have not been accounted for.
        """
        if self.began_at is None:
            self.began_at = self._writer.frontier.next_position
            with self._guard.changing():
                self.commit(TermStart(self._term, self._catalog.term, self.began_at))
                self._directory.note_log_begun()
                self.commit_many(self._lost)

    def begin_change(self) -> None:
        """Have everything ready for a change; `ReadOnlyError` where writing has failed."""
        self._guard.require_usable()
        self.begin_term()
        self._pending.apply()

    def commit(self, *controls: SimpleControl, durable: bool = True) -> None:
        """Log controls at one position, durably at once or with the next sync, and apply them."""
        self.begin_change()
        # A change may be to what reservations were made from.
        self._reservations.forget()
        writer, now = self._writer, self._clock.wall_ns()
        control = writer.control_of(controls)
        with self._guard.preparing():
            self._reserve(controls, len(control.encode()) + limits.BATCH_HEADER_SIZE, TimestampNs(now))
        with self._guard.changing():
            position = writer.stage_control(control, now)
            writer.flush(durable=durable)
            self._catalog.apply(control, position)
            for part in controls:
                self._apply_to_frontier(part)

    def commit_many(self, controls: Sequence[SimpleControl], *, durable: bool = True) -> None:
        """`commit` for as many controls as there are, some at each position."""
        for first in range(0, len(controls), _CONTROLS_PER_BATCH):
            self.commit(*controls[first : first + _CONTROLS_PER_BATCH], durable=durable)

    def sync(self) -> None:
        """Make everything logged or appended so far durable, whatever its class."""
        self._guard.require_usable()
        with self._guard.changing():
            self._writer.flush(durable=True)

    def _reserve(self, controls: Sequence[SimpleControl], size: int, now_ns: TimestampNs) -> None:
        """Reserve space in the log; what must work on a full disk gets the headroom, and the ballast."""
        if not all(isinstance(part, _USES_HEADROOM) for part in controls):
            self._writer.reserve(HEADROOM + size, now_ns)
            return
        try:
            self._writer.reserve(size, now_ns)
        except DiskFullError:
            if not self._directory.has_ballast:
                raise
            self._directory.release_ballast()
            self._writer.reserve(size, now_ns, small=True)

    def _apply_to_frontier(self, part: SimpleControl) -> None:
        frontier = self._writer.frontier
        match part:
            case TopicCreate():
                is_strong = stored_config(part.config).order is Order.CLIENT
                frontier.add_topic(TopicNumbers(part.topic_id, is_strong=is_strong))
            case TopicDelete():
                frontier.remove_topic(part.topic_id)
            case Ceiling():
                frontier.set_ceiling(part.topic_id, part.ceiling)
