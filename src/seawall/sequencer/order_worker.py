"""A worker of the sequencer: turns refs of slots into entries of the global order index.

Each client belongs to one worker. A worker owns the windows of its clients, holds batches of order 5 that arrive too
early, and writes the decided ones. One step:

    settle    record the numbers of newly committed batches in the window
    drain     decide up to `drain_refs` refs (`kernels.ordering.deciding`)
    expire    skip gaps past their deadline (`kernels.ordering.gaps`)
    write     reserve positions, write the entries, report one range to the frontier (`kernels.ordering.order_entries`)

A nearly full ring of entries stalls a worker: decided items wait, no more refs are taken, and the next step tries
again. If a client's row is not in memory, the worker loads it from `ClientRows`; if memory is full, it first saves the
rows that have been idle longest.

The gap timer runs on the time passed to `step`, minus the time between `pause_gaps` and `resume_gaps`.

`kernels.ordering.deciding`, `order_entries` and `holding` declare the invariants of ready items, entries and held
batches.

A crash loses windows, held batches and ready items. Held slots stay pinned and are collected again; windows are
restored from a checkpoint and the entries after it. One thread uses a worker; several workers may run on several
threads. A worker must not know topics, the decisions of the frontier, or where rows are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Position, SessionEpoch
from seawall.errors import ConflictError, FullError, InvalidInputError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.kernels.admission import client_window as window_kernels
from seawall.kernels.admission.client_index import CLIENT_ID, find_row
from seawall.kernels.ordering import deciding as ordering
from seawall.kernels.ordering import gaps, holding, order_entries
from seawall.kernels.runtime.atomics import load_acquire_u64
from seawall.kernels.runtime.rings import CONSUMED, Words
from seawall.kernels.runtime.tables import ABSENT
from seawall.sequencer import shared as shared_memory
from seawall.sequencer.client_window import ClientWindow
from seawall.sequencer.holds import empty_holds, empty_pages, empty_state
from seawall.sequencer.shared import SequencerShared, SpscRing
from seawall.wire.format.codes import AckStatus, ErrorCode

_REFUSED: Final = records.FLAG_REFUSED | 0xFFFF << records.REFUSED_REASON_SHIFT

assert (order_entries.RESERVED, order_entries.FLOOR) == (shared_memory.RESERVED, shared_memory.FLOOR)
assert order_entries.NOTHING_UNSETTLED == shared_memory.NOTHING_UNSETTLED
assert order_entries.LINE_WORDS == holding.HOLD_WORDS == shared_memory.LINE_WORDS
assert records.FLAG_STRONG_ORDER | records.FLAG_RECOVERED | _REFUSED == order_entries.FLAGS_KEPT
assert (order_entries.FLAG_SKIP, order_entries.FLAG_SKIP_RANGE) == (records.FLAG_SKIP, records.FLAG_SKIP_RANGE)
assert (order_entries.FLAG_NOP, order_entries.FLAG_CONTROL) == (records.FLAG_NOP, records.FLAG_CONTROL)
assert (holding.STATUS_DUPLICATE, holding.STATUS_REJECTED) == (AckStatus.DUPLICATE, AckStatus.REJECTED)
assert (holding.STATUS_OK, holding.STATUS_RETRY) == (AckStatus.OK, AckStatus.RETRY)
assert (ordering.REASON_FENCED, ordering.REASON_MISMATCH) == (ErrorCode.FENCED, ErrorCode.PAYLOAD_MISMATCH)
assert (ordering.REASON_SKIPPED, ordering.REASON_OUTSIDE_WINDOW) == (
    ErrorCode.CLIENT_SEQ_SKIPPED,
    ErrorCode.OUTSIDE_SESSION_WINDOW,
)
assert holding.BROKERS == limits.FABRIC_BROKERS_MAX

_FENCED: Final = holding.STATUS_REJECTED | ordering.REASON_FENCED << holding.REASON_SHIFT
_EVICTED_PART: Final = 64
#: Client seqs in one SKIP: its count has 32 bits.
_SKIP_MAX: Final = 1 << 31


class ClientRows(Protocol):
    """Storage for the rows of clients that no worker has in memory."""

    def load(self, client_id: ClientId) -> bytes | None:
        """The last saved row of a client (64 bytes), which stays stored, or None."""

    def save(self, rows: bytes) -> None:
        """Store rows, 64 bytes each; the worker forgets them."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How many refs a worker drains, batches it holds, and clients it keeps in memory."""

    drain_refs: int = limits.SEQUENCER_DRAIN_REFS
    hold_max: int = limits.HELD_BATCHES_MAX
    pages: int = limits.HELD_PAGES
    hold_high_percent: int = limits.HELD_HIGH_WATERMARK_PERCENT
    goi_high_percent: int = limits.GOI_HIGH_WATERMARK_PERCENT
    goi_low_percent: int = limits.GOI_LOW_WATERMARK_PERCENT
    silence_ns: int = limits.GAP_SILENCE_MS * 1_000_000
    clients_max: int = limits.WORKER_CLIENTS_MAX
    remembered_max: int = limits.CLIENTS_REMEMBERED

    def __post_init__(self) -> None:
        if min(self.drain_refs, self.pages, self.hold_max * self.hold_high_percent // 100) < 1:
            raise InvalidInputError(
                f"drain_refs {self.drain_refs}, hold_max {self.hold_max} at {self.hold_high_percent} %, "
                f"pages {self.pages}: each must be at least 1"
            )
        low, high = self.goi_low_percent, self.goi_high_percent
        if not 0 <= low <= high <= 100 or high == 0:
            raise InvalidInputError(f"watermarks of {low} and {high} %: the low one must not be above the high one")


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """An opened session: the client seq that its publisher continues with, and the position of its control entry."""

    next_expected: ClientSeq
    position: Position


class OrderWorker:
    """One worker, for the clients that `kernels.ordering.collecting.worker_of` assigns to it."""

    __slots__ = (
        *("_arrays", "_clients", "_goi_high", "_goi_low", "_holds", "_memories", "_notes", "_opened", "_pages"),
        *("_paused_at", "_paused_ns", "_pbr_entries", "_queues", "_range", "_ready", "_results", "_rows"),
        *("_settings", "_shared", "_sides", "_state", "_table", "_term", "_unsettled", "_worker", "window"),
    )

    def __init__(
        self,
        arrays: FabricArrays,
        shared: SequencerShared,
        worker: int,
        *,
        term: int,
        rows: ClientRows,
        settings: OrderSettings | None = None,
    ) -> None:
        if len(arrays.goi) != shared.goi_entries:
            raise InvalidInputError(f"the fabric has {len(arrays.goi)} entries, the sequencer {shared.goi_entries}")
        own = settings or OrderSettings()
        self._settings: Final = own
        self._arrays: Final = arrays
        self._shared: Final = shared
        self._worker: Final = worker
        self._term: Final = term
        self._rows: Final = rows
        self._pbr_entries: Final = len(arrays.pbr[0])
        self._notes: Final = shared.notes.view(np.int64)
        self._queues: Final = tuple(queues[worker] for queues in shared.queues)
        self._range: Final = shared.ranges[worker]
        #: The windows of this worker's clients; filled by recovery before the first step.
        self.window: Final = ClientWindow(clients_max=own.clients_max, remembered_max=own.remembered_max)
        (self._table, self._clients, self._sides, self._memories, self._results) = self.window.arrays
        ready_max = own.drain_refs + own.hold_max + gaps.SKIPS_MAX + 2
        self._ready: Final = np.zeros(ready_max * holding.READY_WORDS, np.int64)
        self._unsettled: Final = np.zeros(shared.goi_entries * order_entries.UNSETTLED_WORDS, np.int64)
        self._holds: Final = empty_holds(own.hold_max)
        self._pages: Final = empty_pages(own.pages)
        ring_sizes = (self._pbr_entries, len(arrays.blogs[0]))
        self._state: Final = empty_state(own.hold_max, *ring_sizes, own.hold_high_percent, own.silence_ns)
        self._goi_high: Final = max(1, shared.goi_entries * own.goi_high_percent // 100)
        self._goi_low: Final = shared.goi_entries * own.goi_low_percent // 100
        self._paused_at: int | None = None
        self._paused_ns = 0
        #: Sessions opened here whose control entry may not be committed yet: only this worker knows them.
        self._opened: dict[ClientId, Position] = {}

    @property
    def held(self) -> int:
        """The number of batches that wait for an earlier one of their client."""
        return int(self._state[holding.HELD])

    @property
    def waiting(self) -> int:
        """The number of decided items without a position, because the ring of entries is too full."""
        return int(self._state[holding.READY_TAIL] - self._state[holding.READY_HEAD])

    @property
    def unsettled(self) -> int:
        """The number of batches that have a position but are not settled yet."""
        return int(self._state[holding.UNSETTLED_TAIL] - self._state[holding.UNSETTLED_HEAD])

    @property
    def bounced(self) -> int:
        """The total number of held batches that were bounced."""
        return int(self._state[holding.BOUNCED_TOTAL])

    @property
    def skipped(self) -> int:
        """The total number of skipped client seqs."""
        return int(self._state[holding.SKIPPED_TOTAL])

    def step(self, now_ns: int) -> int:
        """Settle, drain, expire and write; returns the number of entries written."""
        self.settle()
        written = self._write()
        if self.waiting:
            return written
        gap_now = self._gap_time(now_ns)
        limit = max(1, self._settings.drain_refs // len(self._queues))
        for queue in self._queues:
            self._drain(queue, limit, gap_now)
        # Without held batches there is no gap; this test is cheaper than a kernel call.
        if self.held and self._paused_at is None:
            self._expire(gap_now)
        return written + self._write()

    def flush(self) -> int:
        """Settle, and write the decided items, without draining; returns the number of entries written."""
        self.settle()
        return self._write()

    def settle(self) -> int:
        """Record the outcomes of newly committed batches in the windows; returns how many."""
        committed = load_acquire_u64(self._arrays.control_words, records.CONTROL_COMMITTED)
        outcomes = (self._arrays.side_words, self._arrays.result_all_words, self._pbr_entries, self._shared.goi_entries)
        windows = (self._clients, self._sides, self._results)
        own = (self._unsettled, self._shared.settled)
        return order_entries.settle_entries(committed, *outcomes, *windows, *own, self._worker, self._state)

    def open_session(
        self, client_id: ClientId, session_epoch: SessionEpoch, start_seq: ClientSeq, *, after_gap_ns: int = 0
    ) -> SessionOpening | None:
        """Open a session, which fences older ones, and order its control entry; None if it has to wait.

        Held batches of an older session are refused before that entry. `after_gap_ns` is the time limit of a gap; with
        0 a gap lasts until the session has been silent for `silence_ns`.
        """
        if after_gap_ns < 0:
            raise InvalidInputError(f"a gap of {after_gap_ns} ns: 0 or more")
        if not self._is_idle():
            return None
        try:
            if client_id not in self.window and not self.fetch(client_id) and not self.make_space():
                return None
        except FullError:
            return None
        before = self.window.state(client_id) if client_id in self.window else None
        next_expected = self.window.open(client_id, session_epoch, start_seq)
        row = find_row(self._table, self._clients, np.uint64(client_id))
        page = int(self._sides[row, window_kernels.SIDE_PAGE]) - 1
        held = int(self._pages[page * holding.PAGE_WORDS + holding.PAGE_HELD]) if page >= 0 else 0
        start = self._reserve(held + 1, held + 1)
        if start is None:
            if before is None:
                self.window.forget(client_id)
            else:
                self._clients[row, window_kernels.SESSION_EPOCH] = before.session_epoch
            return None
        self._sides[row, window_kernels.SIDE_GAP_NS] = after_gap_ns
        holding.bounce_client(self._sides, self._holds, self._pages, self._ready, self._state, row, _FENCED)
        holding.push_ready(self._ready, self._state, 0, holding.KIND_CONTROL, client_id, next_expected)
        self._write_at(start)
        self._opened[client_id] = Position(start + held)
        return SessionOpening(next_expected, self._opened[client_id])

    def order_control(
        self, *, topic_id: int = 0, client_id: int = 0, client_seq: int = 0, record_count: int = 0
    ) -> Position | None:
        """Order a control entry; returns its position, or None if it has to wait."""
        start = self._reserve(1, 1) if self._is_idle() else None
        if start is None:
            return None
        code = holding.KIND_CONTROL | record_count
        holding.push_ready(self._ready, self._state, topic_id, code, client_id, client_seq)
        self._write_at(start)
        return Position(start)

    def abandon(self, client_id: ClientId, end_seq: ClientSeq) -> bool:
        """Skip everything below a seq of a client whose session was just opened; False if a part has to wait."""
        row = find_row(self._table, self._clients, np.uint64(client_id))
        while (first := int(self._clients[row, window_kernels.NEXT_EXPECTED])) < end_seq:
            start = self._reserve(1, 1) if self._is_idle() else None
            if start is None:
                return False
            end = min(end_seq, first + _SKIP_MAX)
            count = window_kernels.skip_run(end, self._clients, self._sides, self._memories, row)
            holding.push_ready(self._ready, self._state, count, holding.KIND_SKIP, row, first)
            self._write_at(start)
        return True

    def touch(self, client_id: ClientId, now_ns: int) -> None:
        """Record activity of a client without a batch: keeps its gap from expiring by silence."""
        row = find_row(self._table, self._clients, np.uint64(client_id))
        page = int(self._sides[row, window_kernels.SIDE_PAGE]) - 1 if row != ABSENT else -1
        if page >= 0:
            self._pages[page * holding.PAGE_WORDS + holding.PAGE_LAST_SEEN] = self._gap_time(now_ns)

    @property
    def rest_words(self) -> tuple[Words, Words]:
        """The counters that all workers share, and the state of this one; they show whether anything is in flight."""
        return self._shared.counters, self._state

    def evictable(self, count: int) -> list[ClientId]:
        """The longest idle clients with nothing held, ready, unsettled or being opened."""
        busy = self._busy_clients()
        idle = self.window.longest_idle(count + len(busy))
        return [client_id for client_id in idle if client_id not in busy][:count]

    def take_rows(self, client_ids: Iterable[ClientId]) -> bytes:
        """Export the rows of the given clients, 64 bytes each, and forget the clients."""
        wanted = list(client_ids)
        busy = self._busy_clients().intersection(wanted)
        if busy:
            raise ConflictError(f"client {min(busy):016x} has batches in flight: take only clients from `evictable`")
        rows = self.window.export_rows(wanted)
        for client_id in wanted:
            self.window.forget(client_id)
        return rows

    def busy(self) -> set[ClientId]:
        """Clients with something held, ready, unsettled or being opened."""
        self.settle()
        return self._busy_clients()

    def import_rows(self, rows: bytes | memoryview) -> int:
        """Import rows of clients of this worker; returns how many."""
        return self.window.import_rows(rows)

    def pause_gaps(self, now_ns: int) -> None:
        """Stop all gap timers: a broker is being replaced, and publishers cannot reach it."""
        if self._paused_at is None:
            self._paused_at = now_ns

    def resume_gaps(self, now_ns: int) -> None:
        """Resume the gap timers."""
        if self._paused_at is not None:
            self._paused_ns += now_ns - self._paused_at
            self._paused_at = None

    def _gap_time(self, now_ns: int) -> int:
        return (now_ns if self._paused_at is None else self._paused_at) - self._paused_ns

    def _is_idle(self) -> bool:
        """True if nothing is left to write, after a flush."""
        self.flush()
        return self.waiting == 0

    def _drain(self, queue: SpscRing, limit: int, now_ns: int) -> None:
        absent = ordering.NO_CLIENT
        end = int(queue.counters[CONSUMED]) + limit
        while True:
            code = ordering.drain_refs(
                queue.words,
                queue.counters,
                end - int(queue.counters[CONSUMED]),
                self._arrays.pbr_all_words,
                self._pbr_entries,
                now_ns,
                absent,
                self.window.arrays,
                (self._holds, self._pages, self._ready, self._state),
                self._shared.collected,
                self._arrays.tail_all_words,
            )
            if code == ordering.DRAIN_DONE:
                return
            client_id = ClientId(int(self._state[holding.UNKNOWN_CLIENT]))
            try:
                known = self.fetch(client_id)
            except FullError:
                return  # every client in memory is busy: the next step tries again
            if not known:
                absent = client_id

    def fetch(self, client_id: ClientId) -> bool:
        """Load a client's row into memory; False if there is none, `FullError` if no other row can be evicted."""
        row = self._rows.load(client_id)
        if row is None:
            return False
        if not self.make_space():
            raise FullError(
                f"all {self._settings.clients_max} clients in memory are busy: no space for client {client_id:016x}"
            )
        self.window.import_rows(row)
        return True

    def make_space(self) -> bool:
        """True if there is space for another client; evicts idle ones if needed."""
        clients_max = self._settings.clients_max
        return len(self.window) < clients_max or self.evict(max(1, clients_max // _EVICTED_PART)) > 0

    def evict(self, count: int) -> int:
        """Save the rows of up to `count` idle clients and drop them from memory; returns how many."""
        idle = self.evictable(count)
        if idle:
            self._rows.save(self.take_rows(idle))
        return len(idle)

    def _busy_clients(self) -> set[ClientId]:
        first, end = self._state[[holding.UNSETTLED_HEAD, holding.UNSETTLED_TAIL]].tolist()
        slots = np.arange(first, end) % self._shared.goi_entries
        unsettled = self._unsettled.reshape(-1, order_entries.UNSETTLED_WORDS)[slots, order_entries.UNSETTLED_ROW]
        first, end = self._state[[holding.READY_HEAD, holding.READY_TAIL]].tolist()
        ready = self._ready.reshape(-1, holding.READY_WORDS)[first:end]
        is_client = (ready[:, holding.READY_ROW] >= 0) & (ready[:, holding.READY_CODE] < holding.KIND_CONTROL)
        held = np.flatnonzero(self._sides[:, window_kernels.SIDE_PAGE])
        rows = np.unique(np.concatenate((unsettled, ready[is_client, holding.READY_ROW], held)))
        committed = load_acquire_u64(self._arrays.control_words, records.CONTROL_COMMITTED)
        self._opened = {client_id: position for client_id, position in self._opened.items() if position >= committed}
        return {*self._opened, *map(ClientId, self._clients[rows, CLIENT_ID].tolist())}

    def _expire(self, now_ns: int) -> None:
        held = (self._holds, self._pages, self._ready, self._state)
        gaps.expire_gaps(self._arrays.pbr_all_words, self._pbr_entries, now_ns, self.window.arrays, held)

    def _write(self) -> int:
        """Write as many ready items as there is space for; returns how many."""
        count = self.waiting
        start = self._reserve(1, count) if count else None
        return 0 if start is None else self._write_at(start)

    def _reserve(self, least: int, most: int) -> int | None:
        if not order_entries.has_range_space(self._range.words, self._range.counters):
            return None
        start = order_entries.reserve_positions(
            self._shared.counters,
            self._shared.settled,
            self._worker,
            self._shared.goi_entries,
            self._goi_high,
            self._goi_low,
            least,
            most,
            self._state,
        )
        return None if start == order_entries.NONE_RESERVED else start

    def _write_at(self, start: int) -> int:
        order_entries.write_entries(
            start,
            self._term,
            self._arrays.pbr_all_words,
            self._pbr_entries,
            self._arrays.goi_words,
            self._notes,
            self._clients,
            self._results,
            self._ready,
            self._unsettled,
            self._range.words,
            self._range.counters,
            self._state,
        )
        return int(self._state[holding.RESERVED_COUNT])
