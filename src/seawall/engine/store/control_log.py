"""Changes other than appends: numbers control batches, makes them durable, and applies them to catalog and frontier.

    begin_change   the start of every change: nothing has failed, the term has begun, pending rows are applied
    commit         reserve, stage, flush, apply: the controls of one call, at one position

The first change of a process logs its term. So after a clean shutdown, a process that only reads leaves no trace.

A full disk refuses a control and changes nothing. Deletes still work on a full disk: appends leave space for them
(`HEADROOM`), and after that there is the ballast file. A crash loses a control that was not flushed; replay applies one
that was. The caller applies the effect of a control on segments and sessions; this module must not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from seawall import limits
from seawall.core.types import Position, Seq, Term, TimestampNs
from seawall.engine.commit.log_writer import LogWriter, Unlocked
from seawall.engine.commit.pending_rows import PendingRows
from seawall.engine.commit.reservations import Reservations
from seawall.engine.store.write_guard import WriteGuard
from seawall.errors import DiskFullError
from seawall.io.interfaces import Clock
from seawall.sequencer.frontier import TopicNumbers
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import Ceiling, CursorCommit
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise, Loss, TermStart, TopicCreate, TopicDelete
from seawall.storage.control.queues import Leases
from seawall.storage.directory import DataDirectory
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Order, stored_config

#: Space in the log that appends leave for deletes and for the next opening, in case the disk is full.
HEADROOM: Final = 16 * limits.KIB
_USES_HEADROOM: Final = (TopicDelete, DeleteRecords, FloorRaise, TermStart, Loss)

#: Changes that leave segments, ceilings and settings as they are: reservations stay valid.
_KEEPS_RESERVATIONS: Final = (DeleteRecords, Leases, CursorCommit)

#: The most controls that `commit_many` logs at one position.
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
        """`lost` are the losses of the previous shutdown or crash, which the first change logs."""
        self._guard = guard
        self._directory = directory
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._term = term
        self._pending = pending
        self._reservations = reservations
        self._lost = lost
        #: The position of the first change of this process; None before it.
        self.began_at: Position | None = None

    def begin_term(self) -> None:
        """Log the start of this process's term and the losses before it, unless that was done.

        Any failure ends all writing: a later clean close would otherwise vouch for numbers that were not accounted for.
        """
        if self.began_at is None:
            self.began_at = self._writer.frontier.next_position
            with self._guard.changing():
                self.commit(TermStart(self._term, self._catalog.term, self.began_at))
                self._directory.note_log_begun()
                self.commit_many(self._lost)

    def begin_change(self) -> None:
        """Prepare for a change; `ReadOnlyError` after a failed write."""
        self._guard.require_usable()
        self.begin_term()
        self._pending.apply()

    def commit(self, *controls: SimpleControl, durable: bool = True, unlocked: Unlocked = nullcontext) -> None:
        """Log controls at one position and apply them: durably at once, or with the next sync.

        `unlocked` releases the store's memory lock while they are written.
        """
        self.begin_change()
        if not all(isinstance(part, _KEEPS_RESERVATIONS) for part in controls):
            self._reservations.forget()
        writer, now = self._writer, self._clock.wall_ns()
        control = writer.control_of(controls)
        with self._guard.preparing():
            self._reserve(controls, len(control.encode()) + limits.BATCH_HEADER_SIZE, TimestampNs(now))
        with self._guard.changing():
            position = writer.stage_control(control, now)
            writer.flush(durable=durable, unlocked=unlocked)
            self._catalog.apply(control, position)
            for part in controls:
                self._apply_to_frontier(part)

    def commit_many(
        self, controls: Sequence[SimpleControl], *, durable: bool = True, unlocked: Unlocked = nullcontext
    ) -> None:
        """Log and apply any number of controls, up to a fixed number at each position."""
        for first in range(0, len(controls), _CONTROLS_PER_BATCH):
            self.commit(*controls[first : first + _CONTROLS_PER_BATCH], durable=durable, unlocked=unlocked)

    def sync(self) -> None:
        """Make everything logged or appended so far durable, whatever its durability class."""
        self._guard.require_usable()
        with self._guard.changing():
            self._writer.flush(durable=True)

    def _reserve(self, controls: Sequence[SimpleControl], size: int, now_ns: TimestampNs) -> None:
        """Reserve space in the log; controls that must work on a full disk may use the headroom and the ballast."""
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
            case Loss():
                # Of a router. The losses of a crash were skipped when the store was opened.
                frontier.skip_to(part.topic_id, Seq(part.last_seq + 1))
