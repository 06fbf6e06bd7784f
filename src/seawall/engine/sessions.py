"""The sessions of a store's publishers: who may publish, and which of their batches are decided already.

Owns the client window of a store. A session opens by a control batch that carries the publisher's row (`open` plans it,
`apply` carries it out once it is in the log); every batch of a session in the log decides its client seq. So the rows
of a snapshot and the log behind it give the same windows again, but for seqs that were refused and left no batch: they
are open again, or skipped where a later row says so. In a log whose order others made, refusals and seqs that were
given up are batches too (`refuse`, `skip`).

INV-SESSION-MERGE: a row never takes back what the window knows. The row of a control may have been planned before
batches that stand ahead of it in the log, and the log may have lost batches that the row knows: what either calls
stored is stored, and the higher numbers count.
INV-SESSION-REPLAY: no batch of the log stops a recovery. A publisher whose row is lost is opened by its first batch; a
seq beyond the window proves that everything 256 below it was decided; where the window has no room for another
publisher, the one that was silent longest is forgotten.

What a crash does: what `apply` and `decide_run` took from the log is taken again. Between `open` and `apply` of one
publisher its owner plans no other session of it. This module must not know topics, connections or files.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.identifiers import check_client_id
from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, TimestampNs
from seawall.errors import ConflictError, CorruptionError, FullError, InvalidInputError
from seawall.kernels.client_window import CLIENT_SEQ_MAX
from seawall.kernels.epochs import WalRows
from seawall.sequencer.client_window import WINDOW_BATCH, WINDOW_RESULT, BatchResult, ClientWindow, WindowCode
from seawall.storage.control import ClientRow
from seawall.storage.control_order import OrderNop, OrderSkip
from seawall.wire.codes import AckStatus

#: A row as `kernels.client_window` lays it out: client id, session epoch, next expected, highest seen, bitmap.
_ROW: Final = Struct("<QQQQ32s")
_WINDOW: Final = limits.SESSION_WINDOW_BATCHES
_SYNTHETIC: Final = np.uint64(1 << 63)
_SESSION_EPOCH_MAX: Final = (1 << 63) - 1

assert _ROW.size == limits.CLIENT_ROW_SIZE


class Sessions:
    """Every publisher with a session that a store knows."""

    __slots__ = ("_clients_max", "window")

    def __init__(self, *, clients_max: int = limits.CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        #: What batches are checked against; decided by whoever orders them, and by `decide_run`.
        self.window = ClientWindow(clients_max=clients_max)

    def __len__(self) -> int:
        return len(self.window)

    # --- planning ------------------------------------------------------------------------------------------------

    def open(self, client_id: ClientId, start_seq: ClientSeq) -> tuple[SessionEpoch, ClientSeq, ClientRow]:
        """The next session of a publisher: its epoch, the lowest client seq not decided, and the control to log.

        A publisher that is known goes on where it was, whatever `start_seq` says. Nothing changes before `apply`.
        """
        check_client_id(client_id)
        if client_id in self.window:
            previous = self.window.export_rows([client_id])
            _, epoch, next_expected, highest, bitmap = _ROW.unpack(previous)
            if epoch == _SESSION_EPOCH_MAX:
                raise ConflictError(f"client {client_id:016x} had all its sessions; publish under another client id")
            row = _ROW.pack(client_id, epoch + 1, next_expected, highest, bitmap)
            return SessionEpoch(epoch + 1), ClientSeq(next_expected), ClientRow(client_id, row, previous)
        if len(self.window) >= self._clients_max:
            raise FullError(f"{self._clients_max} publishers have sessions already; retire some first")
        if not 1 <= start_seq <= CLIENT_SEQ_MAX:
            raise InvalidInputError(f"start seq {start_seq} of client {client_id:016x}: from 1 to 2^62")
        row = _ROW.pack(client_id, 1, start_seq, start_seq - 1, b"")
        return SessionEpoch(1), start_seq, ClientRow(client_id, row)

    # --- what the log says ---------------------------------------------------------------------------------------

    def apply(self, control: ClientRow) -> None:
        """The row of a control batch of the log (INV-SESSION-MERGE); `CorruptionError` if no window can have it."""
        client_id = control.client_id
        if _ROW.unpack(control.row)[0] != client_id:
            raise CorruptionError(f"CLIENT: the row of another client than {client_id:016x}")
        if client_id not in self.window:
            self._make_room()
            self.window.import_rows(control.row)
            return
        known = self.window.export_rows([client_id])
        merged = _merge(known, control.row)
        if merged[16:] != known[16:]:
            # Results are forgotten with the old row: a repetition is still told apart, and is told no numbers.
            self.window.forget(client_id)
            self.window.import_rows(merged)
        elif merged != known:
            self._raise_epoch(client_id, _ROW.unpack(merged)[1])

    def decide_run(self, rows: WalRows) -> None:
        """Batches of the log (`WAL_ROW`), in its order; those without a session are passed over."""
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
        self._meet(batches[(before == WindowCode.UNKNOWN_CLIENT) | (before == WindowCode.FENCED)].tolist())
        codes = self.window.decide_many(batches, outcomes)
        for index in np.flatnonzero(codes == WindowCode.OUTSIDE).tolist():
            client_id, client_seq, _, _ = batches[index].tolist()
            if client_seq >= _WINDOW:
                # It was taken, so at that time all this far below it was decided.
                self.window.skip_to(client_id, ClientSeq(client_seq - _WINDOW + 1))
                self.window.decide_many(batches[index : index + 1], outcomes[index : index + 1])

    def refuse(self, refused: OrderNop, position: Position) -> None:
        """A new batch of a session was refused for good: its client seq is decided, and is never stored."""
        if not refused.decides or refused.client_id not in self.window:
            return
        result = BatchResult(refused.block_crc, position, Seq(0), TimestampNs(0), AckStatus.REJECTED, refused.reason)
        code = self.window.decide(refused.client_id, refused.client_seq, result)
        if code is WindowCode.OUTSIDE and _WINDOW <= refused.client_seq <= CLIENT_SEQ_MAX:
            self.window.skip_to(refused.client_id, ClientSeq(refused.client_seq - _WINDOW + 1))
            self.window.decide(refused.client_id, refused.client_seq, result)

    def skip(self, skipped: OrderSkip) -> None:
        """Client seqs of a session were given up; one that is not known has nothing to give up."""
        if skipped.client_id in self.window:
            self.window.skip_to(skipped.client_id, min(skipped.end_client_seq, ClientSeq(CLIENT_SEQ_MAX)))

    # --- restart -------------------------------------------------------------------------------------------------

    def rows(self) -> bytes:
        """Every row, by rising client id, for a snapshot."""
        return self.window.export_rows()

    def load(self, rows: bytes) -> None:
        """The rows of a snapshot, into sessions that know nobody yet."""
        self.window.import_rows(rows)

    def _meet(self, batches: list[tuple[int, int, int, int]]) -> None:
        """Batches whose session the rows do not know: the control that opened it is lost."""
        for number, client_seq, session_epoch, _ in batches:
            client_id = ClientId(number)
            if client_id not in self.window:
                self._make_room()
                self.window.open(client_id, SessionEpoch(max(1, session_epoch)), ClientSeq(client_seq))
            else:
                # A header has the low half of the epoch only; the high half goes on from what is known.
                known = self.window.state(client_id).session_epoch
                self._raise_epoch(client_id, (known & ~0xFFFF_FFFF) | session_epoch)

    def _raise_epoch(self, client_id: ClientId, session_epoch: int) -> None:
        if session_epoch > self.window.state(client_id).session_epoch:
            self.window.open(client_id, SessionEpoch(session_epoch), ClientSeq(1))

    def _make_room(self) -> None:
        if len(self.window) >= self._clients_max:
            self.window.forget(*self.window.longest_idle(1))


def _merge(known: bytes, other: bytes) -> bytes:
    """One row of two of the same client, by INV-SESSION-MERGE."""
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
    """The client seqs that a row calls stored."""
    _, _, _, highest, bitmap = _ROW.unpack(row)
    bits = int.from_bytes(bitmap, "little")
    return {seq for seq in range(max(1, highest - _WINDOW + 1), highest + 1) if bits >> seq % _WINDOW & 1}
