"""Warm recovery: restores a sequencer from the fabric after its process has ended.

The owner calls these in order, after the previous process has ended and while no worker runs:

    WarmRecovery(…)         takes the next term; finds the first hole above `committed`; scrubs entries above the hole
    replay_topics(…)        rows of topics: the newest checkpoint, then committed batches and controls after it
    restore_results()       results of committed entries that brokers have not received, and which slots have an entry
    a GoiFrontier           with `term_start` and `limit` at `start`: its steps commit the entries below
    replay_clients(…)       rows of clients: the checkpoint, then batches, SKIPs and controls up to `start`

Then collectors begin at `completed` of each ring and skip slots with an entry. Scrubbed batches are ordered again: they
are still in their rings.

Everything needed is in the fabric, since no worker overwrites an entry from the checkpoint on, with one exception: a
topic's next byte offset, if the bytes of its last batch were freed. Freed batches are durable, so the owner finds the
offset in the log (`offset_after`).

INV-RECOVERY-TWICE: a recovery of the order keeps everything below the first hole, discards the rest, and can be cut and
repeated anywhere.

Entries from `start` on belong to the new term only.

A fabric with inconsistent counts is not recovered: an error reports it, and the remedy is a cold start. This module
must not know files or the meaning of a control.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from seawall.core.types import ClientId, ClientSeq, Offset, Position, Term, TopicId
from seawall.errors import CorruptionError, WrongStateError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.checkpoint import Checkpoint, newest_checkpoint
from seawall.fabric.layout import CHECKPOINT_ROW_SIZE
from seawall.fabric.records import Records, Words
from seawall.kernels.admission.client_window import CHECK_UNKNOWN_CLIENT
from seawall.kernels.admission.frontier import LAST_TIMESTAMP, NEXT_POSITION
from seawall.kernels.codec.batch_header import RAW_LENGTH_AT
from seawall.kernels.ordering import goi_recovery as kernels
from seawall.kernels.ordering.goi_frontier import slot_index_of, write_results
from seawall.kernels.runtime.atomics import load_acquire_u64, store_release_u64
from seawall.kernels.runtime.slots import ready_slots
from seawall.limits import SEQUENCER_DRAIN_REFS
from seawall.sequencer.client_window import WINDOW_BATCH, WINDOW_RESULT, ClientWindow
from seawall.sequencer.frontier import CommitFrontier

_SKIP_OR_CONTROL = records.FLAG_SKIP | records.FLAG_CONTROL


@dataclass(frozen=True, slots=True)
class RingResume:
    """The first slot to collect of one broker's ring, and the later slots with an entry (absolute indexes)."""

    cursor: int
    taken: Words


class WarmRecovery:
    """One recovery; its attributes hold the results. Fills the empty `frontier` with topics and position."""

    __slots__ = (
        *("_checkpoint", "_fabric", "_goi", "_side", "committed", "floor", "frontier", "results_written", "scrubbed"),
        *("start", "term"),
    )

    def __init__(self, fabric: FabricArrays, frontier: CommitFrontier) -> None:
        control = fabric.control_words
        self.frontier = frontier
        self._fabric = fabric
        self._goi = fabric.goi_words
        self._side = fabric.side_words
        #: Positions below it were committed by the previous sequencer; entries from `floor` on exist.
        self.committed = Position(load_acquire_u64(control, records.CONTROL_COMMITTED))
        durable = load_acquire_u64(control, records.CONTROL_DURABLE)
        self._checkpoint = _usable_checkpoint(fabric, self.committed, durable)
        self.floor = Position(min(durable, self._checkpoint.position))
        capacity = len(fabric.goi)
        written = int(ready_slots(self._goi, records.GOI_TOKEN, self.committed, capacity))
        #: The first position without an entry: ordering continues here, in the new term.
        self.start = Position(self.committed + written)
        self.scrubbed = int(kernels.scrub_from(self._goi, self.start))
        self.term = Term(load_acquire_u64(control, records.CONTROL_TERM) + 1)
        store_release_u64(control, records.CONTROL_TERM, self.term)
        self.results_written = 0

    def replay_topics(
        self,
        on_control: Callable[[Position], None],
        offset_after: Callable[[TopicId, Position], Offset],
    ) -> None:
        """Bring the frontier to `committed`: topics of the checkpoint, advanced by the entries committed after it.

        `on_control` applies the topic changes of the control at a position, and assigns no numbers. `offset_after`
        returns the byte offset after a topic's batch at a durable position. The owner raises ceilings again.
        """
        state = self.frontier.state
        self.frontier.import_rows(self._checkpoint.topics)
        numbers, topics = state[-1], state[-2]
        numbers[NEXT_POSITION] = self._checkpoint.position
        numbers[LAST_TIMESTAMP] = max(int(numbers[LAST_TIMESTAMP]), self._checkpoint.timestamp_ns)
        latest = np.full(len(topics), -1, np.int64)
        position = self._checkpoint.position
        while position < self.committed:
            position = kernels.replay_topics(position, self.committed, self._goi, self._side, *state, latest)
            if position < self.committed:
                on_control(Position(position))
                stamp = self._fabric.side[position & (len(self._fabric.goi) - 1)]
                numbers[LAST_TIMESTAMP] = max(int(numbers[LAST_TIMESTAMP]), int(stamp["timestamp_ns"]))
                position += 1
                numbers[NEXT_POSITION] = position
        for row in np.flatnonzero(latest >= 0):
            topic_id = TopicId(int(topics[row]["topic_id"]))
            topics[row]["next_offset"] = self._offset_after(topic_id, Position(int(latest[row])), offset_after)

    def restore_results(self) -> tuple[RingResume, ...]:
        """Write missing results of committed entries, and find the slots with an entry; one `RingResume` per broker."""
        fabric, brokers = self._fabric, len(self._fabric.pbr)
        taken = np.zeros(sum(map(len, fabric.pbr)), np.int64)
        completion, results = fabric.completion_all_words, fabric.result_all_words
        self.results_written = int(
            write_results(
                *(self.floor, self.committed, self._goi, self._side, completion, results, len(fabric.pbr[0]), 1),
            )
        )
        kernels.mark_ordered(self.floor, self.start, self._goi, completion, taken, brokers)
        resumes = []
        for broker, ring in enumerate(np.split(taken, brokers)):
            completed = load_acquire_u64(fabric.completion_words[broker], records.COMPLETION_COMPLETED)
            claimed = load_acquire_u64(fabric.tail_words[broker], records.TAIL_CLAIMED)
            kernels.mark_answered(results, broker, completed, claimed, taken, brokers)
            resumes.append(RingResume(completed, np.sort(ring[ring > 0] - 1)))
        return tuple(resumes)

    def replay_clients(
        self,
        windows: Sequence[ClientWindow],
        worker_of: Callable[[ClientId], int],
        *,
        on_control: Callable[[Position], None],
        import_client: Callable[[ClientId], bool],
    ) -> None:
        """Fill the windows of all workers with the decisions below `start`, which must be committed by now.

        `on_control` opens the session of the control at a position. `import_client` loads the stored row of a client
        into its window, and returns False if there is none.
        """
        if load_acquire_u64(self._fabric.control_words, records.CONTROL_COMMITTED) < self.start:
            raise WrongStateError(f"positions below {self.start} are not all committed: step the frontier first")
        rows = self._checkpoint.clients.reshape(-1, CHECKPOINT_ROW_SIZE)
        owners = np.array([worker_of(ClientId(number)) for number in rows.view(np.uint64)[:, 0].tolist()], np.int64)
        for worker, window in enumerate(windows):
            window.import_rows(rows[owners == worker].tobytes())
        decider = _Decider(windows, worker_of, import_client)
        position = self._checkpoint.position
        while position < self.start:
            position = decider.decide_run(position, self.start, self._goi, self._side)
            entry = self._fabric.goi[position & (len(self._fabric.goi) - 1)]
            if position < self.start and int(entry["flags"]) & _SKIP_OR_CONTROL:
                if int(entry["flags"]) & records.FLAG_SKIP:
                    after = int(entry["client_seq"]) + int(entry["record_count"])
                    decider.known_window(ClientId(int(entry["client_id"]))).skip_to(
                        ClientId(int(entry["client_id"])), ClientSeq(after)
                    )
                else:
                    on_control(Position(position))
                position += 1

    def _offset_after(
        self, topic_id: TopicId, position: Position, offset_after: Callable[[TopicId, Position], Offset]
    ) -> Offset:
        slot = position & (len(self._fabric.goi) - 1)
        entry = self._fabric.goi[slot]
        broker, blog = int(entry["broker"]), self._fabric.blogs[int(entry["broker"])]
        completed = load_acquire_u64(self._fabric.completion_words[broker], records.COMPLETION_COMPLETED)
        if slot_index_of(int(entry["pbr_index"]), completed) < 0:
            return offset_after(topic_id, position)
        at = int(entry["blog_offset"]) % blog.size + RAW_LENGTH_AT
        raw_length = int.from_bytes(blog[at : at + 4].tobytes(), "little")
        return Offset(int(self._fabric.side[slot]["base_offset"]) + raw_length)


class _Decider:
    """Decides replayed batches in the windows of their clients."""

    __slots__ = ("_batches", "_counts", "_import_client", "_outcomes", "_windows", "_worker_of")

    def __init__(
        self,
        windows: Sequence[ClientWindow],
        worker_of: Callable[[ClientId], int],
        import_client: Callable[[ClientId], bool],
    ) -> None:
        self._windows = windows
        self._worker_of = worker_of
        self._import_client = import_client
        self._batches = np.zeros(SEQUENCER_DRAIN_REFS, WINDOW_BATCH)
        self._outcomes = np.zeros(SEQUENCER_DRAIN_REFS, WINDOW_RESULT)
        self._counts = np.zeros(1, np.int64)

    def decide_run(self, first: int, end: int, goi: Words, side: Words) -> int:
        """Decide the batches of a range of positions; returns where it stopped."""
        position = int(kernels.gather_batches(first, end, goi, side, self._batches, self._outcomes, self._counts))
        count = int(self._counts[0])
        batches, outcomes = self._batches[:count], self._outcomes[:count]
        clients, which = np.unique(batches["client_id"], return_inverse=True)
        workers = np.array([self._worker_of(ClientId(number)) for number in clients.tolist()], np.int64)[which]
        for worker, window in enumerate(self._windows):
            mine = workers == worker
            self._decide(window, batches[mine], outcomes[mine])
        self._skip_lower(batches, goi[(outcomes["position"].astype(np.int64) * records.SLOT_WORDS + 7) % goi.size])
        return position

    def _skip_lower(self, batches: Records, flags: Words) -> None:
        """Skip everything below a batch of order 5: it was decided, even if it was refused and left no trace."""
        strong = batches[flags >> 32 & records.FLAG_STRONG_ORDER != 0]
        for number in np.unique(strong["client_id"]).tolist():
            highest = int(strong["client_seq"][strong["client_id"] == number].max())
            self.known_window(ClientId(number)).skip_to(ClientId(number), ClientSeq(highest + 1))

    def known_window(self, client_id: ClientId) -> ClientWindow:
        """The window that has a client's row; imports the row if needed."""
        window = self._windows[self._worker_of(client_id)]
        if client_id not in window and not self._import_client(client_id):
            raise CorruptionError(f"client {client_id:016x} has batches in the order but no row: {_START_COLD}")
        return window

    def _decide(self, window: ClientWindow, batches: Records, outcomes: Records) -> None:
        unknown = window.decide_many(batches, outcomes) == CHECK_UNKNOWN_CLIENT
        for number in np.unique(batches["client_id"][unknown]).tolist():
            # One by one: importing a row may evict another.
            mine = unknown & (batches["client_id"] == number)
            self.known_window(ClientId(number)).decide_many(batches[mine], outcomes[mine])


_START_COLD = "remove the fabric and start again, from the data directory"


def _usable_checkpoint(fabric: FabricArrays, committed: int, durable: int) -> Checkpoint:
    """The newest checkpoint; `CorruptionError` if entries after it are missing."""
    newest = newest_checkpoint(fabric)
    if newest is None:
        raise CorruptionError(f"the fabric has no valid checkpoint: {_START_COLD}")
    first = min(durable, newest.position)
    count = committed - first
    if max(durable, newest.position) > committed or count > len(fabric.goi):
        raise CorruptionError(
            f"committed is {committed}, durable {durable}, the checkpoint {newest.position}: {_START_COLD}"
        )
    if ready_slots(fabric.goi_words, records.GOI_TOKEN, first, count) < count:
        raise CorruptionError(f"entries between {first} and {committed} are missing: {_START_COLD}")
    return newest
