"""The sessions of a store's publishers: who may publish, and which client seqs are decided already.

Owns the client window of a store. A control batch with the publisher's row opens a session: `open` plans it, `apply`
executes it once it is in the log. Every logged batch of a session decides its client seq. So the rows of a snapshot and
the log after it give the same windows again. Exceptions are seqs that were refused without a batch: they are open
again, or skipped where a later row says so. In a log whose order is made elsewhere, refused and skipped seqs are
batches too (`refuse`, `skip`).

A control batch also ends a session: `retire` plans it, `apply_retired` forgets the rows. Only two numbers remain: no
retired session had an epoch above `epoch_floor`, or decided a client seq above `seq_floor`.

INV-SESSION-RETIRED: a batch that a retired session stored is never stored again. The next session of an unknown client
gets an epoch above the floor, so an epoch at or below it identifies a retired session (`was_retired`). Its client seqs
start one window above the floor, so a repetition under an old number is outside the window and is refused, never taken
for new. Clients with a newly drawn id have no past and start at any seq.

A row never undoes what the window knows. The row of a control may have been planned before batches that precede it in
the log, and the log may have lost batches that the row knows. So a seq is stored if either says so, and the higher
numbers win. No batch of the log stops a recovery. The first batch of a publisher whose row is lost opens its session. A
seq beyond the window proves that everything 256 below it was decided. When the window is full, the publisher that was
idle longest is retired.

Snapshots store when publishers were last seen. After a snapshot the times of batches in the log count, so a restart
makes no publisher look younger by more than one check interval (`note_activity`).

After a crash, replay calls `apply`, `apply_retired` and `decide_run` again for the same batches. Between `open` and
`apply` of one publisher the owner plans no other session for it. This module must not know topics, connections or
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.identifiers import check_client_id
from seawall.core.sessions import SessionInfo
from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, TimestampNs
from seawall.errors import ConflictError, CorruptionError, FullError, InvalidInputError
from seawall.kernels.admission.client_window import CLIENT_SEQ_MAX
from seawall.kernels.log.epochs import WalRows
from seawall.sequencer.client_window import WINDOW_BATCH, WINDOW_RESULT, BatchResult, ClientWindow, WindowCode
from seawall.storage.control.codec import ClientRow
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.control.sessions import SessionsRetired
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.wire.format.codes import AckStatus

#: A row as `kernels.admission.client_window` lays it out: client id, session epoch, next expected, highest seen,
#: bitmap.
_ROW: Final = Struct("<QQQQ32s")
_WINDOW: Final = limits.SESSION_WINDOW_BATCHES
_SYNTHETIC: Final = np.uint64(1 << 63)
_FLOORS: Final = Struct("<QQ")
_TIME: Final = np.dtype("<u8")
_SESSION_EPOCH_MAX: Final = (1 << 63) - 1

assert _ROW.size == limits.CLIENT_ROW_SIZE


class Sessions:
    """All publishers with a session in one store."""

    __slots__ = (
        "_check_interval_ms",
        "_clients_max",
        "_noted_ms",
        "epoch_floor",
        "live_clients",
        "seq_floor",
        "window",
    )

    def __init__(
        self,
        *,
        clients_max: int = limits.CLIENTS_MAX,
        check_interval_ms: int = limits.SESSION_TTL_MS // limits.SESSION_CHECKS,
    ) -> None:
        self._clients_max = clients_max
        self._check_interval_ms = max(1, check_interval_ms)
        #: The time of the last `note_activity` call.
        self._noted_ms = 0
        self.epoch_floor = SessionEpoch(0)
        self.seq_floor = ClientSeq(0)
        #: The window that batches are checked against; the orderer and `decide_run` decide seqs in it.
        self.window = ClientWindow(clients_max=clients_max)
        #: Functions that return the clients whose sessions are in use: by connections and open publishers.
        self.live_clients: list[Callable[[], Iterable[ClientId]]] = []

    def __len__(self) -> int:
        return len(self.window)

    # --- planning ------------------------------------------------------------------------------------------------

    def open(
        self, client_id: ClientId, start_seq: ClientSeq, *, is_drawn: bool = False
    ) -> tuple[SessionEpoch, ClientSeq, ClientRow]:
        """Plan the next session of a publisher: its epoch, the lowest undecided client seq, and the control to log.

        A known publisher continues where it was, whatever `start_seq` says. An unknown one starts at `start_seq`, or
        above everything that retired sessions used, unless its id was drawn just now (`is_drawn`). Nothing changes
        before `apply`.
        """
        check_client_id(client_id)
        if client_id in self.window:
            previous = self.window.export_rows([client_id])
            _, epoch, next_expected, highest, bitmap = _ROW.unpack(previous)
            if epoch == _SESSION_EPOCH_MAX:
                raise ConflictError(
                    f"client {client_id:016x} has used all its session epochs; publish under another client id"
                )
            row = _ROW.pack(client_id, epoch + 1, next_expected, highest, bitmap)
            return SessionEpoch(epoch + 1), ClientSeq(next_expected), ClientRow(client_id, row, previous)
        if len(self.window) >= self._clients_max:
            raise FullError(f"{self._clients_max} publishers have sessions already; retire some first")
        # One window above the floor: no retired session used a seq that a window from there on can recognise.
        lowest = self.seq_floor + _WINDOW + 1 if self.seq_floor else 1
        highest = max(lowest, limits.SESSION_START_SEQ_MAX)
        if not 1 <= start_seq <= highest:
            raise InvalidInputError(f"start seq {start_seq} of client {client_id:016x}: from 1 to {highest}")
        epoch = SessionEpoch(self.epoch_floor + 1)
        if not is_drawn:
            start_seq = ClientSeq(max(start_seq, lowest))
        row = _ROW.pack(client_id, epoch, start_seq, start_seq - 1, b"")
        return epoch, start_seq, ClientRow(client_id, row)

    def was_retired(self, client_id: ClientId, session_epoch: SessionEpoch) -> bool:
        """True if the session may have been retired; false for a session of another log."""
        return client_id not in self.window and 0 < session_epoch <= self.epoch_floor

    def retire(self, client_ids: Iterable[ClientId]) -> SessionsRetired | None:
        """Plan the retirement of known sessions; None if none is known. Nothing changes before `apply_retired`."""
        known = sorted(client_id for client_id in set(client_ids) if client_id in self.window)
        if not known:
            return None
        states = [self.window.state(client_id) for client_id in known]
        epoch_floor = max(self.epoch_floor, *(state.session_epoch for state in states))
        seq_floor = max(self.seq_floor, *(state.highest_seen for state in states))
        return SessionsRetired(tuple(known), epoch_floor, seq_floor)

    # --- applying the log ----------------------------------------------------------------------------------------

    def apply(self, control: ClientRow, now_ms: int = 0) -> None:
        """Apply the row of a logged control batch; `CorruptionError` if the row is not valid.

        The publisher was last seen at `now_ms`; if that is 0, at the next `note_activity`.
        """
        client_id = control.client_id
        if _ROW.unpack(control.row)[0] != client_id:
            raise CorruptionError(f"CLIENT: the row belongs to another client than {client_id:016x}")
        if client_id not in self.window:
            self._make_space()
            self.window.import_rows(control.row)
            self.window.mark_active(client_id, now_ms)
            return
        known = self.window.export_rows([client_id])
        merged = _merge(known, control.row)
        if merged[16:] != known[16:]:
            # The results are lost with the old row: a repetition is still recognised, but its answer has no numbers.
            self.window.forget(client_id)
            self.window.import_rows(merged)
        elif merged != known:
            self._raise_epoch(client_id, _ROW.unpack(merged)[1])
        self.window.mark_active(client_id, now_ms)

    def apply_retired(self, control: SessionsRetired) -> None:
        """Forget the sessions that a logged control batch retires (INV-SESSION-RETIRED)."""
        self.epoch_floor = max(self.epoch_floor, control.epoch_floor)
        self.seq_floor = max(self.seq_floor, control.seq_floor)
        for client_id in control.client_ids:
            if client_id in self.window:
                self._forget(client_id)

    def decide_run(self, rows: WalRows) -> None:
        """Decide the client seqs of logged batches (`WAL_ROW`), in log order; skips batches without a session."""
        client_ids, client_seqs = rows["client_id"], rows["client_seq"]
        has_session = (client_ids < _SYNTHETIC) & (client_ids > 0) & (client_seqs > 0) & (client_seqs <= CLIENT_SEQ_MAX)
        found = np.flatnonzero(has_session)
        if not found.size:
            return
        rows = rows.take(found)
        batches = np.zeros(len(rows), WINDOW_BATCH)
        for name in ("client_id", "client_seq", "session_epoch", "block_crc"):
            batches[name] = rows[name]
        outcomes = np.zeros(len(rows), WINDOW_RESULT)
        for name in ("position", "base_seq", "timestamp_ns", "block_crc"):
            outcomes[name] = rows[name]
        outcomes["known"] = 1
        before, _ = self.window.check_many(batches)
        self._open_unknown(batches[(before == WindowCode.UNKNOWN_CLIENT) | (before == WindowCode.FENCED)].tolist())
        codes = self.window.decide_many(batches, outcomes)
        for index in np.flatnonzero(codes == WindowCode.OUTSIDE).tolist():
            client_id, client_seq, _, _ = batches[index].tolist()
            if client_seq >= _WINDOW:
                # It was accepted, so everything this far below it was decided at that time.
                self.window.skip_to(client_id, ClientSeq(client_seq - _WINDOW + 1))
                self.window.decide_many(batches[index : index + 1], outcomes[index : index + 1])

    def refuse(self, refused: OrderNop, position: Position) -> None:
        """Record that a new batch of a session was refused for good: its client seq is decided and never stored."""
        if not refused.decides or refused.client_id not in self.window:
            return
        result = BatchResult(refused.block_crc, position, Seq(0), TimestampNs(0), AckStatus.REJECTED, refused.reason)
        code = self.window.decide(refused.client_id, refused.client_seq, result)
        if code is WindowCode.OUTSIDE and _WINDOW <= refused.client_seq <= CLIENT_SEQ_MAX:
            self.window.skip_to(refused.client_id, ClientSeq(refused.client_seq - _WINDOW + 1))
            self.window.decide(refused.client_id, refused.client_seq, result)

    def skip(self, skipped: OrderSkip) -> None:
        """Record that client seqs of a session were given up; ignored if the session is not known."""
        if skipped.client_id in self.window:
            self.window.skip_to(skipped.client_id, min(skipped.end_client_seq, ClientSeq(CLIENT_SEQ_MAX)))

    # --- live sessions -----------------------------------------------------------------------------------------------

    def live(self) -> set[ClientId]:
        """The clients whose sessions are in use."""
        return {client_id for clients in self.live_clients for client_id in clients()}

    def infos(self, after: int = 0, count: int | None = None) -> list[SessionInfo]:
        """Sessions of clients above an id, by rising id: all, or at most `count`."""
        live = self.live()
        return [
            SessionInfo(state.client_id, state.session_epoch, state.next_expected, seen_ms, state.client_id in live)
            for state, seen_ms in self.window.states(after, count)
        ]

    # --- time --------------------------------------------------------------------------------------------------------

    def is_check_due(self, now_ms: int) -> bool:
        """True if a check interval has passed since the last `note_activity`."""
        return now_ms >= self._noted_ms + self._check_interval_ms or now_ms < self._noted_ms

    def split_by_interval(self, rows: WalRows) -> list[WalRows]:
        """Split logged batches into parts that each span at most one check interval."""
        intervals = rows["timestamp_ns"] // np.uint64(self._check_interval_ms * 1_000_000)
        if intervals[0] == intervals[-1]:
            return [rows]
        return np.split(rows, np.flatnonzero(np.diff(intervals)) + 1)

    def note_activity(self, now_ms: int, live: Iterable[ClientId] = ()) -> None:
        """Set the last-seen time of publishers that were active since the last call, or are `live`, to `now_ms`."""
        for client_id in live:
            if client_id in self.window:
                self.window.mark_active(client_id, now_ms)
        self.window.note_activity(now_ms)
        self._noted_ms = now_ms

    # --- restart -------------------------------------------------------------------------------------------------

    def rows(self) -> bytes:
        """Every row, by rising client id."""
        return self.window.export_rows()

    def sections(self) -> dict[SectionKind, bytes]:
        """The snapshot sections: every row by rising client id, the floors, and when each publisher was last seen."""
        times = self.window.seen_ms().astype(_TIME)
        return {
            SectionKind.CLIENT_ROWS: self.rows(),
            SectionKind.SESSIONS: _FLOORS.pack(self.epoch_floor, self.seq_floor) + times.tobytes(),
        }

    def load(self, snapshot: Snapshot) -> None:
        """Load what `sections` stored, into an empty object; without times, all sessions count as new."""
        count = self.window.import_rows(snapshot.section(SectionKind.CLIENT_ROWS))
        rest = snapshot.section(SectionKind.SESSIONS)
        if not rest:
            return
        if len(rest) != _FLOORS.size + count * _TIME.itemsize:
            raise CorruptionError(f"SESSIONS: {len(rest)} bytes for {count} sessions")
        epoch_floor, seq_floor = _FLOORS.unpack_from(rest)
        if max(epoch_floor, seq_floor) > _SESSION_EPOCH_MAX:
            raise CorruptionError(f"SESSIONS: floors {epoch_floor} and {seq_floor} are above 2^63 - 1")
        self.epoch_floor, self.seq_floor = SessionEpoch(epoch_floor), ClientSeq(seq_floor)
        self.window.set_seen_ms(np.frombuffer(rest, _TIME, offset=_FLOORS.size).astype(np.uint64))
        self._noted_ms = snapshot.created_ns // 1_000_000

    def _open_unknown(self, batches: list[tuple[int, int, int, int]]) -> None:
        """Open the sessions of batches whose opening control is lost."""
        for number, client_seq, session_epoch, _ in batches:
            client_id = ClientId(number)
            if client_id not in self.window:
                self._make_space()
                self.window.open(client_id, SessionEpoch(max(1, session_epoch)), ClientSeq(client_seq))
            else:
                # A header has the low half of the epoch only; take the high half from the known epoch.
                known = self.window.state(client_id).session_epoch
                self._raise_epoch(client_id, (known & ~0xFFFF_FFFF) | session_epoch)

    def _raise_epoch(self, client_id: ClientId, session_epoch: int) -> None:
        if session_epoch > self.window.state(client_id).session_epoch:
            self.window.open(client_id, SessionEpoch(session_epoch), ClientSeq(1))

    def _make_space(self) -> None:
        if len(self.window) >= self._clients_max:
            self._forget(*self.window.longest_idle(1))

    def _forget(self, client_id: ClientId) -> None:
        state = self.window.state(client_id)
        self.epoch_floor = max(self.epoch_floor, state.session_epoch)
        self.seq_floor = max(self.seq_floor, state.highest_seen)
        self.window.forget(client_id)


def _merge(known: bytes, other: bytes) -> bytes:
    """Merge two rows of one client: a seq is stored if either row says so, and the higher numbers win."""
    client_id, epoch, next_expected, highest, _ = _ROW.unpack(known)
    _, other_epoch, other_next, other_highest, _ = _ROW.unpack(other)
    highest = max(highest, other_highest)
    stored = {seq for seq in _stored(known) | _stored(other) if seq > highest - _WINDOW}
    next_expected = max(next_expected, other_next)
    while next_expected in stored:
        next_expected += 1
    bitmap = sum(1 << seq % _WINDOW for seq in stored)
    return _ROW.pack(
        client_id, max(epoch, other_epoch), next_expected, highest, bitmap.to_bytes(_WINDOW // 8, "little")
    )


def _stored(row: bytes) -> set[int]:
    """The client seqs that a row marks as stored."""
    _, _, _, highest, bitmap = _ROW.unpack(row)
    bits = int.from_bytes(bitmap, "little")
    return {seq for seq in range(max(1, highest - _WINDOW + 1), highest + 1) if bits >> seq % _WINDOW & 1}
