"""Warm recovery: the sequencer has ended and the fabric lives; everything is found again in there.

In this order, by the owner, after the process before it has ended and while no worker runs:

    WarmRecovery(…)         the next term; the first hole behind `committed`; what lies behind the hole is scrubbed
    replay_topics(…)        rows of topics: the newest checkpoint, then committed batches and controls behind it
    restore_results()       results of committed entries that brokers have not got, and which slots have an entry
    a GoiFrontier           with `term_start` and `limit` at `start`: its steps commit what was written up to there
    replay_clients(…)       rows of clients: the checkpoint, then batches, SKIPs and controls up to `start`

and then collectors begin at `completed` of each ring, and pass over slots that are taken. What was scrubbed is ordered
again: its batches are in their rings, untouched.

What is needed is there: no worker writes over an entry from the checkpoint on. One thing is not: where
a topic's next byte offset is, if the bytes of its last batch were freed. What was freed is durable, so the owner finds
it in the log (`offset_after`).

INV-RECOVERY-TWICE: a recovery of the order keeps everything below the first hole, discards the rest, and can be cut and
repeated anywhere.

Entries from `start` on are those of the new term only.

A fabric whose counts contradict each other is not recovered: an error says so, and the way out is a cold start. This
module must not know files, nor what a control means.
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
    """Where collecting of one broker's ring begins, and which slots from there on have an entry (absolute indexes)."""

    cursor: int
    taken: Words


class WarmRecovery:
    """One recovery; what it finds is in its attributes. `frontier` is empty, and gets the topics and the position."""

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
        #: Positions below it were committed by the sequencer before; entries from `floor` on are there.
        self.committed = Position(load_acquire_u64(control, records.CONTROL_COMMITTED))
        durable = load_acquire_u64(control, records.CONTROL_DURABLE)
        self._checkpoint = _usable_checkpoint(fabric, self.committed, durable)
        self.floor = Position(min(durable, self._checkpoint.position))
        capacity = len(fabric.goi)
        found = int(ready_slots(self._goi, records.GOI_TOKEN, self.committed, capacity))
        #: The first position without an entry: ordering goes on here, in the new term.
        self.start = Position(self.committed + found)
        self.scrubbed = int(kernels.scrub_from(self._goi, self.start))
        self.term = Term(load_acquire_u64(control, records.CONTROL_TERM) + 1)
        store_release_u64(control, records.CONTROL_TERM, self.term)
        self.results_written = 0

    def replay_topics(
        self,
        on_control: Callable[[Position], None],
        offset_after: Callable[[TopicId, Position], Offset],
    ) -> None:
        """Bring the frontier to `committed`: topics of the checkpoint, moved on by what was committed behind it.

        `on_control` changes topics as the control at a position did, and numbers nothing. `offset_after` tells the byte
        offset behind a topic's batch at a durable position. Ceilings are the owner's to raise again.
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
        """Tell brokers what was committed and not told, and find which of their slots have an entry: one for each."""
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
        """Fill the windows of all workers with what is decided below `start`, which is committed by now.

        `on_control` opens sessions as the control at a position did. `import_client` puts the stored row of a client
        into its window, and says whether there was one.
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
        place = position & (len(self._fabric.goi) - 1)
        entry = self._fabric.goi[place]
        broker, blog = int(entry["broker"]), self._fabric.blogs[int(entry["broker"])]
        completed = load_acquire_u64(self._fabric.completion_words[broker], records.COMPLETION_COMPLETED)
        if slot_index_of(int(entry["pbr_index"]), completed) < 0:
            return offset_after(topic_id, position)
        at = int(entry["blog_offset"]) % blog.size + RAW_LENGTH_AT
        raw_length = int.from_bytes(blog[at : at + 4].tobytes(), "little")
        return Offset(int(self._fabric.side[place]["base_offset"]) + raw_length)


class _Decider:
    """Decides gathered batches in the windows of their clients."""

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
        """Decide the batches of a stretch; where it stopped."""
        position = int(kernels.gather_batches(first, end, goi, side, self._batches, self._outcomes, self._counts))
        count = int(self._counts[0])
        batches, outcomes = self._batches[:count], self._outcomes[:count]
        clients, which = np.unique(batches["client_id"], return_inverse=True)
        workers = np.array([self._worker_of(ClientId(number)) for number in clients.tolist()], np.int64)[which]
        for worker, window in enumerate(self._windows):
            mine = workers == worker
            self._decide(window, batches[mine], outcomes[mine])
        self._pass_lower(batches, goi[(outcomes["position"].astype(np.int64) * records.SLOT_WORDS + 7) % goi.size])
        return position

    def _pass_lower(self, batches: Records, flags: Words) -> None:
        """A batch of order 5 had its turn, so everything below it was decided, also what no row knows to be refused."""
        strong = batches[flags >> 32 & records.FLAG_STRONG_ORDER != 0]
        for number in np.unique(strong["client_id"]).tolist():
            highest = int(strong["client_seq"][strong["client_id"] == number].max())
            self.known_window(ClientId(number)).skip_to(ClientId(number), ClientSeq(highest + 1))

    def known_window(self, client_id: ClientId) -> ClientWindow:
        """The window that has a client's row, which is imported if need be."""
        window = self._windows[self._worker_of(client_id)]
        if client_id not in window and not self._import_client(client_id):
            raise CorruptionError(f"client {client_id:016x} has batches in the order and a row nowhere: {_START_COLD}")
        return window

    def _decide(self, window: ClientWindow, batches: Records, outcomes: Records) -> None:
        unknown = window.decide_many(batches, outcomes) == CHECK_UNKNOWN_CLIENT
        for number in np.unique(batches["client_id"][unknown]).tolist():
            # One by one: a row may have to leave for the next.
            mine = unknown & (batches["client_id"] == number)
            self.known_window(ClientId(number)).decide_many(batches[mine], outcomes[mine])


_START_COLD = "remove the fabric and start again, from what is on disk"


def _usable_checkpoint(fabric: FabricArrays, committed: int, durable: int) -> Checkpoint:
    """The newest one, if everything from it on is there."""
    newest = newest_checkpoint(fabric)
    if newest is None:
        raise CorruptionError(f"the fabric has no valid checkpoint: {_START_COLD}")
    first = min(durable, newest.position)
    behind = committed - first
    if max(durable, newest.position) > committed or behind > len(fabric.goi):
        raise CorruptionError(
            f"committed is {committed}, durable {durable}, the checkpoint of {newest.position}: {_START_COLD}"
        )
    if ready_slots(fabric.goi_words, records.GOI_TOKEN, first, behind) < behind:
        raise CorruptionError(f"entries between {first} and {committed} are gone: {_START_COLD}")
    return newest
