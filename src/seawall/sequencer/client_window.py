"""The deduplication windows of all publishers: which client seqs are decided, and with which outcome.

A publisher numbers its batches from 1, in one sequence over all topics. After a lost answer it sends the batch again
under the same number, so the number distinguishes a repetition from a new batch: exactly within the window (client seqs
from highest seen − 255 to next expected + 255); outside, the batch is refused. `kernels.admission.client_window` has
the rules, the byte table of a row and the invariants; this class owns the arrays, opens sessions, and moves rows to and
from storage.

A row is 64 bytes, in memory and in storage. Rows of long silent publishers can be exported and forgotten; when such a
publisher returns, its row is imported before its batch is checked. Results (seq, position, timestamp) are cached for
recently active publishers and are not part of a row: after a restart, the answer to a duplicate has no numbers.

`note_activity` finds the publishers that were decided since its last call and sets when they were last seen; so
deciding a batch needs no clock, and the resolution is the interval between calls.

A crash loses the arrays. They are rebuilt from the rows of a snapshot and from the batches after it, by `decide`; seqs
that were refused without leaving a batch are then undecided again, or skipped if below next expected.

One owner, no lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.identifiers import check_client_id
from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, TimestampNs
from seawall.errors import ConflictError, CorruptionError, FullError, InvalidInputError, LimitError, NotFoundError
from seawall.kernels.admission import client_window as kernels
from seawall.kernels.admission.client_index import (
    CLIENT_ID,
    INDEX_ROWS_MAX,
    add_row,
    find_row,
    remove_row,
)
from seawall.kernels.admission.client_window import Rows, WindowArrays, Words
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import ABSENT, Values
from seawall.sequencer.aligned_arrays import line_zeros, line_zeros_together
from seawall.wire.format.codes import AckStatus

#: Arrays of batches to check, and of their outcomes; see the kernel module.
WINDOW_BATCH = kernels.WINDOW_BATCH
WINDOW_RESULT = kernels.WINDOW_RESULT

_SESSION_EPOCH_MAX = (1 << 63) - 1
_HALF = 0xFFFF_FFFF
_STORED_ROW = np.dtype("<u8")
#: Columns of `_seen`.
_NOTED = 0
_SEEN_MS = 1

assert kernels.WINDOW == limits.SESSION_WINDOW_BATCHES
assert kernels.ROW_WORDS * 8 == limits.CLIENT_ROW_SIZE
assert kernels.STATUS_STORED == AckStatus.OK
assert limits.CLIENTS_MAX <= INDEX_ROWS_MAX


class WindowCode(IntEnum):
    """What the window knows of a client seq."""

    NEW = kernels.CHECK_NEW  #: not decided yet
    DUPLICATE = kernels.CHECK_DUPLICATE  #: stored before
    REFUSED = kernels.CHECK_REFUSED  #: refused before
    SKIPPED = kernels.CHECK_SKIPPED  #: skipped, never stored
    MISMATCH = kernels.CHECK_MISMATCH  #: decided before, with a different block
    OUTSIDE = kernels.CHECK_OUTSIDE  #: below or above the window
    FENCED = kernels.CHECK_FENCED  #: not of the publisher's current session
    UNKNOWN_CLIENT = kernels.CHECK_UNKNOWN_CLIENT  #: its row is not in memory


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of one batch."""

    block_crc: int
    position: Position
    base_seq: Seq
    timestamp_ns: TimestampNs
    status: AckStatus = AckStatus.OK
    reason: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check; with the original's result if it was decided before and is still cached."""

    code: WindowCode
    original: BatchResult | None = None


@dataclass(frozen=True, slots=True)
class ClientState:
    """The session and the window limits of a publisher."""

    client_id: ClientId
    session_epoch: SessionEpoch
    next_expected: ClientSeq
    highest_seen: ClientSeq


class ClientWindow:
    """Windows of up to `clients_max` publishers, with cached results of the `remembered_max` most recent ones."""

    __slots__ = (
        *("_answers", "_clients", "_count", "_free", "_high_water", "_results"),
        *("_seen", "_sides", "_slots", "_table"),
    )

    def __init__(
        self, *, clients_max: int = limits.CLIENTS_MAX, remembered_max: int = limits.CLIENTS_REMEMBERED
    ) -> None:
        if not (0 < clients_max <= INDEX_ROWS_MAX and remembered_max > 0):
            raise InvalidInputError(
                f"a window of {clients_max} clients, {remembered_max} remembered: from 1 to {INDEX_ROWS_MAX}"
            )
        # Zeros cost no memory until they are touched, so the arrays have their maximal size.
        memories = min(remembered_max, clients_max)
        rows = ((clients_max, kernels.ROW_WORDS), np.uint64)
        slots = ((kernels.slot_rows(memories), kernels.ROW_WORDS), np.uint64)
        self._clients, self._sides, self._table, self._slots = line_zeros_together(
            rows, rows, (table_slots(clients_max), np.uint32), slots
        )
        self._slots[-1, kernels.SLOT_COUNT] = memories
        #: For each row: `SIDE_DECIDED_AT` at the last `note_activity`, and when the publisher was last seen.
        self._seen = np.zeros((clients_max, 2), np.uint64)
        self._count = 0
        self._results = line_zeros(memories * kernels.WINDOW, WINDOW_RESULT)
        self._answers = np.zeros(1, WINDOW_RESULT)
        self._high_water = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __contains__(self, client_id: ClientId) -> bool:
        return self._row_of(client_id) is not None

    def open(self, client_id: ClientId, session_epoch: SessionEpoch, start_seq: ClientSeq) -> ClientSeq:
        """Start a session, which fences earlier ones; returns the lowest undecided client seq.

        A known publisher continues where it was; `start_seq` is ignored then.
        """
        check_client_id(client_id)
        if not 0 < session_epoch <= _SESSION_EPOCH_MAX:
            raise InvalidInputError(f"session epoch {session_epoch} of client {client_id:016x}: from 1 to 2^63 - 1")
        row = self._row_of(client_id)
        if row is not None:
            current = int(self._clients[row, kernels.SESSION_EPOCH])
            if session_epoch <= current:
                raise ConflictError(
                    f"session {session_epoch} of client {client_id:016x} cannot open: its session {current} is newer"
                )
            self._clients[row, kernels.SESSION_EPOCH] = session_epoch
            return ClientSeq(int(self._clients[row, kernels.NEXT_EXPECTED]))
        _check_client_seq(start_seq)
        row = self._new_row(client_id)
        self._clients[row, : kernels.BITS] = (client_id, session_epoch, start_seq, start_seq - 1)
        return start_seq

    def state(self, client_id: ClientId) -> ClientState:
        """The state of a publisher; `NotFoundError` if its row is not in memory."""
        row = self._known_row(client_id)
        _, session_epoch, next_expected, highest_seen = self._clients[row, : kernels.BITS].tolist()
        return ClientState(client_id, SessionEpoch(session_epoch), ClientSeq(next_expected), ClientSeq(highest_seen))

    def check(self, client_id: ClientId, session_epoch: SessionEpoch, client_seq: ClientSeq, block_crc: int) -> Verdict:
        """Classify a batch, without changing anything."""
        seq, epoch = _bounded(client_seq), session_epoch & _HALF
        code = kernels.check_batch(np.uint64(client_id), epoch, seq, block_crc, self.arrays, self._answers, 0)
        return Verdict(WindowCode(code), _result_of(self._answers[0]) if self._answers[0]["known"] else None)

    def decide(self, client_id: ClientId, client_seq: ClientSeq, result: BatchResult) -> WindowCode:
        """Record the outcome of a batch; returns NEW, or why nothing was recorded (decided, skipped, outside)."""
        outcome = np.zeros(1, WINDOW_RESULT)
        outcome[0] = (
            *(result.position, result.base_seq, result.timestamp_ns),
            *(result.block_crc, result.reason, result.status, 1),
        )
        code = kernels.decide_batch(np.uint64(client_id), _bounded(client_seq), self.arrays, outcome, 0)
        return WindowCode(code)

    def check_many(self, batches: Rows) -> tuple[Values, Rows]:
        """Codes and original results of many batches (WINDOW_BATCH), all against the current window."""
        codes = np.zeros(batches.size, np.int64)
        answers = np.zeros(batches.size, WINDOW_RESULT)
        kernels.check_many(batches, batches.size, self.arrays, answers, codes)
        return codes, answers

    def decide_many(self, batches: Rows, outcomes: Rows) -> Values:
        """Record many outcomes (WINDOW_RESULT) in order; returns one code each, as `decide` does."""
        if batches.size != outcomes.size:
            raise InvalidInputError(f"{batches.size} batches with {outcomes.size} outcomes: one for each is needed")
        codes = np.zeros(batches.size, np.int64)
        kernels.decide_many(batches, batches.size, self.arrays, outcomes, codes)
        return codes

    def skip_to(self, client_id: ClientId, next_expected: ClientSeq) -> bool:
        """Skip all undecided client seqs below the given one; False if there were none."""
        self._known_row(client_id)
        _check_client_seq(next_expected)
        arrays = (self._table, self._clients, self._sides, self._slots)
        return kernels.skip_to(np.uint64(client_id), next_expected, *arrays) == kernels.CHECK_NEW

    def forget(self, client_id: ClientId) -> None:
        """Drop a publisher from memory; export its row before if it is still needed."""
        row = self._known_row(client_id)
        slot = kernels.own_memory(self._sides, self._slots, row)
        if slot != ABSENT:
            # The memory stays and is reused when the clock hand reaches it.
            kernels.set_owner_word(self._slots, slot, 0)
        remove_row(self._table, self._clients, row)
        self._count -= 1
        self._clients[row] = 0
        self._sides[row] = 0
        self._free.append(row)

    def longest_idle(self, count: int) -> list[ClientId]:
        """The publishers with the oldest last decision, those without any first; candidates to forget."""
        rows = self._rows_in_use()
        decided_at = self._sides[rows, kernels.SIDE_DECIDED_AT]
        order = np.lexsort((self._clients[rows, CLIENT_ID], decided_at))[:count]
        return self._ids(rows[order])

    # --- when publishers were last seen ------------------------------------------------------------------------------

    def note_activity(self, now_ms: int) -> None:
        """Set `now_ms` as last seen for publishers that were decided since the last call, or are new."""
        seen, decided = self._seen[: self._high_water], self._sides[: self._high_water, kernels.SIDE_DECIDED_AT]
        seen[(seen[:, _NOTED] != decided) | (seen[:, _SEEN_MS] == 0), _SEEN_MS] = now_ms
        seen[:, _NOTED] = decided

    def mark_active(self, client_id: ClientId, now_ms: int) -> None:
        """Record activity of a publisher other than a batch; 0 means the time of the next `note_activity`."""
        self._seen[self._known_row(client_id), _SEEN_MS] = now_ms

    def silent(self, since_ms: int) -> list[ClientId]:
        """Publishers that were last seen at or before a time, the longest silent ones first."""
        rows = self._rows_in_use()
        return self._ids(self._by_silence(rows[self._seen[rows, _SEEN_MS] <= since_ms]))

    def longest_silent(self) -> list[ClientId]:
        """All publishers, the longest silent one first."""
        return self._ids(self._by_silence(self._rows_in_use()))

    def seen_ms(self) -> Words:
        """When each publisher was last seen, in the order of `export_rows`; 0 means after the last `note_activity`."""
        seen: npt.NDArray[np.uint64] = self._seen[self._rows_by_id(), _SEEN_MS]
        return seen

    def set_seen_ms(self, seen_ms: Words) -> None:
        """Restore the result of `seen_ms` for the same publishers."""
        self._seen[self._rows_by_id(), _SEEN_MS] = seen_ms

    def _by_silence(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        # 0 (not noted yet) sorts last: 0 − 1 wraps to the largest number.
        seen_ms = self._seen[rows, _SEEN_MS] - np.uint64(1)
        return rows[np.lexsort((self._sides[rows, kernels.SIDE_DECIDED_AT], seen_ms))]

    def _ids(self, rows: npt.NDArray[np.intp]) -> list[ClientId]:
        return [ClientId(number) for number in self._clients[rows, CLIENT_ID].tolist()]

    def _rows_by_id(self) -> npt.NDArray[np.intp]:
        rows = self._rows_in_use()
        return rows[np.argsort(self._clients[rows, CLIENT_ID])]

    # --- rows ----------------------------------------------------------------------------------------------------

    def states(self, after: int = 0, count: int | None = None) -> list[tuple[ClientState, int]]:
        """State and last-seen time of the publishers above an id, at most `count`, by rising client id."""
        rows = self._rows_by_id()
        first = int(np.searchsorted(self._clients[rows, CLIENT_ID], np.uint64(after), side="right"))
        rows = rows[first:][:count]
        states = self._clients[rows, : kernels.BITS].tolist()
        return [
            (ClientState(ClientId(client_id), SessionEpoch(epoch), ClientSeq(expected), ClientSeq(highest)), seen_ms)
            for (client_id, epoch, expected, highest), seen_ms in zip(
                states, self._seen[rows, _SEEN_MS].tolist(), strict=True
            )
        ]

    def export_rows(self, client_ids: Iterable[ClientId] | None = None) -> bytes:
        """Rows of the given publishers in their order, or of all by rising client id, 64 bytes each."""
        if client_ids is None:
            rows = self._rows_by_id()
        else:
            rows = np.array([self._known_row(client_id) for client_id in client_ids], np.int64)
        return self._clients[rows].astype(_STORED_ROW, copy=False).tobytes()

    def rows_in_memory(self) -> Bytes:
        """Rows of all publishers in no particular order, 64 bytes each; valid until the next change."""
        used = self._clients[: self._high_water]
        if self._free:
            used = used[self._rows_in_use()]
        return used.astype(_STORED_ROW, copy=False).reshape(-1).view(np.uint8)

    def import_rows(self, data: bytes | memoryview) -> int:
        """Import rows from `export_rows`; returns how many. After an error, none is imported."""
        rows = _checked_rows(data)
        client_ids = [ClientId(number) for number in rows[:, CLIENT_ID].tolist()]
        for client_id in client_ids:
            if client_id in self:
                raise ConflictError(f"the row of client {client_id:016x} is in memory already and may be newer")
        if len(self) + len(client_ids) > self._clients.shape[0]:
            raise _no_space(self._clients.shape[0])
        for client_id, content in zip(client_ids, rows, strict=True):
            self._clients[self._new_row(client_id)] = content
        return len(client_ids)

    @property
    def admission_arrays(self) -> tuple[WindowArrays, Rows]:
        """The window arguments of the admission kernels: `arrays`, and scratch space."""
        return self.arrays, self._answers

    @property
    def arrays(self) -> WindowArrays:
        """Index table, rows, sides, slots and results: the window argument of most kernels."""
        return (self._table, self._clients, self._sides, self._slots, self._results)

    def _rows_in_use(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self._clients[: self._high_water, CLIENT_ID])

    def _row_of(self, client_id: ClientId) -> int | None:
        row = find_row(self._table, self._clients, np.uint64(client_id))
        return None if row == ABSENT else row

    def _known_row(self, client_id: ClientId) -> int:
        row = self._row_of(client_id)
        if row is None:
            raise NotFoundError(f"the row of client {client_id:016x} is not in memory; import it first")
        return row

    def _new_row(self, client_id: ClientId) -> int:
        if self._free:
            row = self._free.pop()
        elif self._high_water < self._clients.shape[0]:
            row = self._high_water
            self._high_water += 1
        else:
            raise _no_space(self._clients.shape[0])
        self._clients[row, CLIENT_ID] = client_id
        self._seen[row] = 0
        add_row(self._table, np.uint64(client_id), row)
        self._count += 1
        return row


def table_slots(entries: int) -> int:
    """Slots of a hash table for this many entries: a power of two, at most three quarters of it used."""
    return 1 << max(2, (entries * 4 // 3).bit_length())


def _check_client_seq(client_seq: ClientSeq) -> None:
    if not 0 < client_seq <= kernels.CLIENT_SEQ_MAX:
        raise LimitError(f"client seq {client_seq}: from 1 to {kernels.CLIENT_SEQ_MAX}")


def _bounded(client_seq: ClientSeq) -> int:
    """The client seq, capped for the kernels; every seq above the cap is outside any window."""
    return min(client_seq, kernels.CLIENT_SEQ_MAX + 1)


def _result_of(row: np.void) -> BatchResult:
    return BatchResult(
        block_crc=int(row["block_crc"]),
        position=Position(int(row["position"])),
        base_seq=Seq(int(row["base_seq"])),
        timestamp_ns=TimestampNs(int(row["timestamp_ns"])),
        status=AckStatus(int(row["status"])),
        reason=int(row["reason"]),
    )


def _checked_rows(data: bytes | memoryview) -> Words:
    """Parse rows and check the invariants of a window on each."""
    if len(data) % limits.CLIENT_ROW_SIZE:
        raise CorruptionError(f"client rows: {len(data)} bytes are not a multiple of {limits.CLIENT_ROW_SIZE}")
    rows = np.frombuffer(data, _STORED_ROW).astype(np.uint64).reshape(-1, kernels.ROW_WORDS)
    client_ids, epochs, next_expected, highest = rows[:, : kernels.BITS].T
    # Bound each number before adding to it.
    bounded = (next_expected <= kernels.CLIENT_SEQ_MAX + 1) & (highest <= kernels.CLIENT_SEQ_MAX)
    valid = (client_ids > 0) & (client_ids >> np.uint64(63) == 0) & (epochs > 0) & (epochs >> np.uint64(63) == 0)
    valid &= bounded & (next_expected > 0)
    lowest, highest = np.where(valid, next_expected, 1), np.where(valid, highest, 1)
    valid &= (highest + 1 >= lowest) & (highest <= lowest + kernels.WINDOW - 1)
    words = rows[np.arange(len(rows)), kernels.BITS + (lowest >> np.uint64(6) & np.uint64(3)).astype(np.intp)]
    is_next_stored = (words >> (lowest & np.uint64(63)) & np.uint64(1)).astype(bool)
    valid &= ~(is_next_stored & (lowest <= highest))
    if not valid.all():
        raise CorruptionError(f"client row {int(np.argmin(valid))} of {len(rows)} is not a valid window state")
    if np.unique(client_ids).size != client_ids.size:
        raise CorruptionError("client rows: a client has two")
    return rows


def _no_space(clients_max: int) -> FullError:
    return FullError(f"{clients_max} clients are in memory: export and forget the longest idle ones first")
