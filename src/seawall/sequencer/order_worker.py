"""A worker of the sequencer: from refs of slots to entries of the global order index.

Each client belongs to one worker. A worker has the windows of its clients, holds batches of order 5 that are ahead of
their turn, and writes what it has decided. One step:

    settle    batches that were committed since get their numbers in the window
    drain     up to `drain_refs` refs are decided on (`kernels.ordering.deciding`)
    expire    gaps whose time is over are skipped (`kernels.ordering.gaps`)
    write     one reservation for all of it, the entries, one range for the frontier (`kernels.ordering.order_entries`)

A ring of entries that is nearly full stalls a worker: what is decided waits, nothing more is taken, and the next step
tries again. A client whose row is not in memory is asked for from `ClientRows`; if there is no room for it, rows that
have been idle longest go there.

The gap clock counts the time given to `step`, without what lies between `pause_gaps` and `resume_gaps`.

What holds of ready items, entries and held batches is in `kernels.ordering.deciding`, `order_entries` and
`kernels.ordering.holding`.

What a crash does: windows, held batches and what is ready are gone. Held slots are pinned and are collected again;
windows come from a checkpoint and the entries behind it. One thread uses a worker; several workers may be on several
threads. It must not know topics, what the frontier will say, or where rows are kept.
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
_EVICTED_AT_ONCE: Final = 64
#: Client seqs in one SKIP: its count has 32 bits.
_SKIPPED_AT_ONCE: Final = 1 << 31


class ClientRows(Protocol):
    """Where rows of clients are that no worker has in memory."""

    def load(self, client_id: ClientId) -> bytes | None:
        """The row of a client (64 bytes) as it was saved last, which stays there, or None if there is none."""

    def save(self, rows: bytes) -> None:
        """Keep rows, 64 bytes each; the worker forgets them."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How much a worker takes, holds and remembers."""

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
                f"a worker that drains {self.drain_refs} refs, holds {self.hold_max} batches up to "
                f"{self.hold_high_percent} %, of {self.pages} clients: each must leave at least 1"
            )
        low, high = self.goi_low_percent, self.goi_high_percent
        if not 0 <= low <= high <= 100 or high == 0:
            raise InvalidInputError(f"watermarks of {low} and {high} %: the low one is not the higher")


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """A session that is open: where its publisher goes on, and the position of the control entry that says so."""

    next_expected: ClientSeq
    position: Position


class OrderWorker:
    """One worker: the clients that `kernels.ordering.collecting.worker_of` gives it."""

    __slots__ = (
        *("_arrays", "_clients", "_goi_high", "_goi_low", "_holds", "_memories", "_notes", "_opened", "_pages"),
        *("_paused_at", "_paused_ns", "_pbr_entries", "_places", "_queues", "_range", "_ready", "_results", "_rows"),
        *("_settings", "_shared", "_sides", "_state", "_term", "_unsettled", "_worker", "window"),
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
            raise InvalidInputError(f"a fabric of {len(arrays.goi)} entries, a sequencer of {shared.goi_entries}")
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
        #: The windows of this worker's clients; recovery fills them before the first step.
        self.window: Final = ClientWindow(clients_max=own.clients_max, remembered_max=own.remembered_max)
        (self._places, self._clients, self._sides, self._memories, self._results, _) = self.window.admission_arrays
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
        #: Sessions that are open here and may not be committed: nobody else knows of them.
        self._opened: dict[ClientId, Position] = {}

    @property
    def held(self) -> int:
        """Batches that wait for an earlier one of their client."""
        return int(self._state[holding.HELD])

    @property
    def waiting(self) -> int:
        """Entries that are decided and have no position, because the ring of entries is too full."""
        return int(self._state[holding.READY_TAIL] - self._state[holding.READY_HEAD])

    @property
    def unsettled(self) -> int:
        """Batches that have a position and do not know their numbers yet."""
        return int(self._state[holding.UNSETTLED_TAIL] - self._state[holding.UNSETTLED_HEAD])

    @property
    def bounced(self) -> int:
        """Held batches that were sent back so far."""
        return int(self._state[holding.BOUNCED_TOTAL])

    @property
    def skipped(self) -> int:
        """Client seqs that were given up so far."""
        return int(self._state[holding.SKIPPED_TOTAL])

    def step(self, now_ns: int) -> int:
        """Do what can be done now; how many entries were written."""
        self.settle()
        written = self._write()
        if self.waiting:
            return written
        gap_now = self._gap_time(now_ns)
        share = max(1, self._settings.drain_refs // len(self._queues))
        for queue in self._queues:
            self._drain(queue, share, gap_now)
        # Without anything held there is no gap, and a kernel costs more to call than this is to ask.
        if self.held and self._paused_at is None:
            self._expire(gap_now)
        return written + self._write()

    def flush(self) -> int:
        """Settle, and write what is decided, without taking more; how many entries were written."""
        self.settle()
        return self._write()

    def settle(self) -> int:
        """Let the windows know what became of batches that were committed since; how many."""
        committed = load_acquire_u64(self._arrays.control_words, records.CONTROL_COMMITTED)
        told = (self._arrays.side_words, self._arrays.result_all_words, self._pbr_entries, self._shared.goi_entries)
        windows = (self._clients, self._sides, self._results)
        own = (self._unsettled, self._shared.settled)
        return order_entries.settle_entries(committed, *told, *windows, *own, self._worker, self._state)

    def open_session(
        self, client_id: ClientId, session_epoch: SessionEpoch, start_seq: ClientSeq, *, after_gap_ns: int = 0
    ) -> SessionOpening | None:
        """Open a session, which fences older ones, and order its control entry; None if that has to wait.

        What is held of an older session is refused ahead of that entry. `after_gap_ns` is how long the session allows
        a gap to last; with 0 a gap lasts until the session has been silent for long enough.
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
        row = find_row(self._places, self._clients, np.uint64(client_id))
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
        """Order a control entry; its position, or None if that has to wait."""
        start = self._reserve(1, 1) if self._is_idle() else None
        if start is None:
            return None
        code = holding.KIND_CONTROL | record_count
        holding.push_ready(self._ready, self._state, topic_id, code, client_id, client_seq)
        self._write_at(start)
        return Position(start)

    def abandon(self, client_id: ClientId, end_seq: ClientSeq) -> bool:
        """Give up all below a seq of a client whose session was just opened, by SKIPs; false if some has to wait."""
        row = find_row(self._places, self._clients, np.uint64(client_id))
        while (first := int(self._clients[row, window_kernels.NEXT_EXPECTED])) < end_seq:
            start = self._reserve(1, 1) if self._is_idle() else None
            if start is None:
                return False
            end = min(end_seq, first + _SKIPPED_AT_ONCE)
            count = window_kernels.skip_run(end, self._clients, self._sides, self._memories, row)
            holding.push_ready(self._ready, self._state, count, holding.KIND_SKIP, row, first)
            self._write_at(start)
        return True

    def touch(self, client_id: ClientId, now_ns: int) -> None:
        """The session of a client lives, although no batch came: what it holds back may still get its turn."""
        row = find_row(self._places, self._clients, np.uint64(client_id))
        page = int(self._sides[row, window_kernels.SIDE_PAGE]) - 1 if row != ABSENT else -1
        if page >= 0:
            self._pages[page * holding.PAGE_WORDS + holding.PAGE_LAST_SEEN] = self._gap_time(now_ns)

    @property
    def rest_words(self) -> tuple[Words, Words]:
        """The counters that all workers share, and the state of this one: what shows that nothing is under way."""
        return self._shared.counters, self._state

    def evictable(self, count: int) -> list[ClientId]:
        """Clients that have been idle longest and of which nothing is held, ready, unsettled or being opened."""
        busy = self._busy_clients()
        idle = self.window.longest_idle(count + len(busy))
        return [client_id for client_id in idle if client_id not in busy][:count]

    def take_rows(self, client_ids: Iterable[ClientId]) -> bytes:
        """Rows of the named clients, 64 bytes each, which are then forgotten here."""
        named = list(client_ids)
        busy = self._busy_clients().intersection(named)
        if busy:
            raise ConflictError(f"client {min(busy):016x} has batches under way: take those that `evictable` names")
        taken = self.window.export_rows(named)
        for client_id in named:
            self.window.forget(client_id)
        return taken

    def busy(self) -> set[ClientId]:
        """Clients of which something is held, ready, unsettled or being opened."""
        self.settle()
        return self._busy_clients()

    def import_rows(self, rows: bytes | memoryview) -> int:
        """Take rows of clients that belong to this worker; how many."""
        return self.window.import_rows(rows)

    def pause_gaps(self, now_ns: int) -> None:
        """Stop all gap clocks: something is being replaced, and publishers cannot reach us."""
        if self._paused_at is None:
            self._paused_at = now_ns

    def resume_gaps(self, now_ns: int) -> None:
        """Let the gap clocks go on where they were stopped."""
        if self._paused_at is not None:
            self._paused_ns += now_ns - self._paused_at
            self._paused_at = None

    def _gap_time(self, now_ns: int) -> int:
        return (now_ns if self._paused_at is None else self._paused_at) - self._paused_ns

    def _is_idle(self) -> bool:
        """Whether nothing is left to write, after trying to."""
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
                self._places,
                self._clients,
                self._sides,
                self._memories,
                self._results,
                self._holds,
                self._pages,
                self._ready,
                self._state,
                self._shared.collected,
                self._arrays.tail_all_words,
            )
            if code == ordering.DRAIN_DONE:
                return
            client_id = ClientId(int(self._state[holding.UNKNOWN_CLIENT]))
            try:
                known = self.fetch(client_id)
            except FullError:
                return  # every client in memory has something under way: the next step finds some that have not
            if not known:
                absent = client_id

    def fetch(self, client_id: ClientId) -> bool:
        """Take a client's row into memory; false if there is none, `FullError` if no other can be spared for it."""
        row = self._rows.load(client_id)
        if row is None:
            return False
        if not self.make_space():
            raise FullError(f"no row of {self._settings.clients_max} clients can be spared for client {client_id:016x}")
        self.window.import_rows(row)
        return True

    def make_space(self) -> bool:
        """Whether there is a row for another client, some idle ones having left for it where needed."""
        clients_max = self._settings.clients_max
        return len(self.window) < clients_max or self.evict(max(1, clients_max // _EVICTED_AT_ONCE)) > 0

    def evict(self, count: int) -> int:
        """Have up to so many idle clients leave memory, whose rows are saved; how many did."""
        idle = self.evictable(count)
        if idle:
            self._rows.save(self.take_rows(idle))
        return len(idle)

    def _busy_clients(self) -> set[ClientId]:
        first, end = self._state[[holding.UNSETTLED_HEAD, holding.UNSETTLED_TAIL]].tolist()
        places = np.arange(first, end) % self._shared.goi_entries
        unsettled = self._unsettled.reshape(-1, order_entries.UNSETTLED_WORDS)[places, order_entries.UNSETTLED_ROW]
        first, end = self._state[[holding.READY_HEAD, holding.READY_TAIL]].tolist()
        ready = self._ready.reshape(-1, holding.READY_WORDS)[first:end]
        is_client = (ready[:, holding.READY_ROW] >= 0) & (ready[:, holding.READY_CODE] < holding.KIND_CONTROL)
        held = np.flatnonzero(self._sides[:, window_kernels.SIDE_PAGE])
        rows = np.unique(np.concatenate((unsettled, ready[is_client, holding.READY_ROW], held)))
        committed = load_acquire_u64(self._arrays.control_words, records.CONTROL_COMMITTED)
        self._opened = {client_id: position for client_id, position in self._opened.items() if position >= committed}
        return {*self._opened, *map(ClientId, self._clients[rows, CLIENT_ID].tolist())}

    def _expire(self, now_ns: int) -> None:
        windows = (self._clients, self._sides, self._memories, self._results)
        holds = (self._holds, self._pages, self._ready, self._state)
        gaps.expire_gaps(self._arrays.pbr_all_words, self._pbr_entries, now_ns, *windows, *holds)

    def _write(self) -> int:
        """Write as much of what is ready as has room; how many entries."""
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
