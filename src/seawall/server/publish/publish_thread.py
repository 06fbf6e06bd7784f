"""The publish thread: receives small batches of many connections, commits them together, and answers them.

    event loop ── attach ──▶ publish thread: receive │ commit cycle │ answer      a few calls for all connections
               ◀─ return ──

Every connection starts on its event loop. After some receives of nothing but small batches it is attached to this
thread; then the loop neither receives from it nor sends to it. One kernel call receives from all readable connections
(`kernels.network.publish_io`), this thread writes and syncs the batches as one commit, and another kernel call answers
them. So publishers that wait for each record share their commits, and no Python code runs per batch or per connection.

A connection returns to its event loop, with the received bytes that were not handled, when it sends anything else, when
one of its batches is not eligible for a commit cycle (`engine.commit.commit_cycle`), when it closes, or when the loop
recalls it.

Only this thread uses the socket of an attached connection. The loop closes the socket after its return. A connection is
returned when every batch received before is decided, or, after a failed write, with the ids of the batches whose
outcome is unknown.

A crash loses what was not acknowledged: the peer sends it again. This module must not know frames, nor what is stored
where.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import TopicId
from seawall.engine.serving.served_log import ServedLog
from seawall.io.disk.files import system_error
from seawall.io.network.readiness import ReadinessSet
from seawall.kernels.codec.batch_header import CLIENT_SEQ_AT, FRAME_HEADER_SIZE, LENGTH_AT
from seawall.kernels.codec.frames import FRAME_ROW, STATE_SIZE
from seawall.kernels.network import publish_cycle
from seawall.kernels.network import publish_io as kernels
from seawall.kernels.runtime.memory import set_addresses
from seawall.sequencer.frontier import signed
from seawall.server.connection.session import Bytes
from seawall.server.publish.producer_session import ProducerSession
from seawall.wire.format.codes import Features

__all__ = ["Attachment", "PublishThread", "Returned", "V1Topic"]

#: Partially received batches at once, one per connection.
_TAILS: Final = 64
#: Events reported by one wait.
_EVENTS: Final = 1_024
#: Wait without a timeout.
_WAIT_MS: Final = -1
#: A batch that takes longer to arrive goes back to the event loop, which enforces the timeouts of slow peers.
_SLOW_S: Final = 1.0
_NS_PER_S: Final = 1_000_000_000


class V1Topic(NamedTuple):
    """The topic of a version 1 connection: its id in frames, and its id in the log."""

    wire_topic: int
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class Returned:
    """A returned connection: its highest client seq, unhandled received bytes, and unsent bytes."""

    highest: int
    received: Bytes
    unsent: bytes = b""
    #: Ids of frames whose outcome is unknown, and the sizes of their batches.
    seqs: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


class Attachment:
    """A connection that is attached to the publish thread."""

    __slots__ = ("_row", "_thread", "index", "loop", "returned")

    def __init__(
        self,
        thread: PublishThread,
        index: int,
        row: Any,
        loop: asyncio.AbstractEventLoop,
        returned: Callable[[Returned], None],
    ) -> None:
        self._thread = thread
        self._row = row
        self.index = index
        self.loop = loop
        self.returned = returned

    @property
    def received_at(self) -> float:
        """Time of the last receive, in seconds of the monotonic clock."""
        return int(self._row["received_ns"]) / _NS_PER_S

    def is_slow(self, now: float) -> bool:
        """True if a batch of the connection arrives slowly."""
        return bool(self._row["tail_size"]) and now - int(self._row["tail_ns"]) / _NS_PER_S > _SLOW_S

    def recall(self) -> None:
        """Ask for the return of the connection."""
        self._thread.recall(self)


class PublishThread:
    """The publish thread of one node."""

    def __init__(self, log: ServedLog) -> None:
        """Starts the thread; `close` stops it. Needs epoll: see `is_supported`."""
        self._log = log
        self._connections = np.zeros(limits.CONNECTIONS_MAX, kernels.CONNECTION_ROW)
        self._free = list(range(len(self._connections)))
        self._attached: dict[int, Attachment] = {}
        self._recalled: deque[Attachment] = deque()
        self._lock = threading.Lock()
        self._is_closing = self._has_ended = False
        self._ready = ReadinessSet()
        self._by_descriptor = np.zeros(limits.DESCRIPTORS_MAX, np.int32)
        self._events = np.zeros(_EVENTS * kernels.EVENT_SIZE, np.uint8)
        self._tails = np.zeros(_TAILS * limits.LARGE_BATCH_SIZE, np.uint8)
        self._tail_owners = np.zeros(_TAILS, np.int64)
        self._progress = np.zeros(kernels.PROGRESS_SIZE, np.int64)
        # Acks of version 1 are as long as the headers of the frames that they answer.
        entries = limits.RECEIVED_BATCHES_MAX * (kernels.ACK_ENTRY + kernels.ACK_PREFIX)
        self._acks = np.zeros(entries + limits.MIB, np.uint8)
        self._scratch = (
            *(np.zeros(kernels.FRAMES_PER_RECEIVE, FRAME_ROW), np.zeros(kernels.FRAMES_PER_RECEIVE, FRAME_ROW)),
            *(np.zeros(kernels.FRAMES_PER_RECEIVE, np.int64), np.zeros(STATE_SIZE, np.int64)),
        )
        self._operation = np.zeros(publish_cycle.OPERATION_WORDS, np.int64)
        self._iovec = np.zeros(publish_cycle.IOVEC_WORDS, np.int64)
        #: The state of connections that the commit kernel uses.
        self._publishers = np.zeros(1, publish_cycle.PUBLISHERS)
        self._publishers["epoll"], self._publishers["waker"] = self._ready.descriptor, self._ready.waker
        self._orders, self._levels = log.rules.orders, log.rules.levels
        self._pass_arrays()
        self._resident = log.resident(self._publishers, self._ready.wake)
        self._received = self._resident.received
        #: Arguments of every receive.
        self._sources = (
            *(self._ready.descriptor, self._ready.waker, _WAIT_MS, self._events, self._by_descriptor),
            *(self._connections, self._received.buffer, self._tails, self._tail_owners, self._received.rows),
        )
        self._thread = threading.Thread(target=self._run, name="seawall-publish", daemon=True)
        self._thread.start()

    @staticmethod
    def is_supported() -> bool:
        """True if the system supports a publish thread."""
        return ReadinessSet.is_supported()

    def attach(
        self,
        descriptor: int,
        producer: ProducerSession,
        payload_max: int,
        loop: asyncio.AbstractEventLoop,
        returned: Callable[[Returned], None],
        v1_topic: V1Topic | None = None,
    ) -> Attachment | None:
        """Take over a connection until `returned` is called on its loop; None if that is impossible.

        A version 1 connection comes with its topic.
        """
        with self._lock:
            if self._is_closing or not self._free or descriptor >= len(self._by_descriptor):
                return None
            index = self._free.pop()
            row: Any = self._connections[index]
            row["fd"], row["client_id"] = descriptor, signed(producer.client_id)
            row["session_epoch"], row["version"] = producer.session_epoch, 2 if v1_topic is None else 1
            row["wire_topic"], row["topic_id"] = v1_topic or (0, 0)
            row["window_batches"], row["window_bytes"] = producer.window_batches, producer.window_bytes
            row["has_runs"] = bool(producer.features & Features.ACK_RUNS)
            row["payload_max"], row["highest"] = payload_max, producer.highest
            row["received_ns"], row["tail"], row["tail_size"] = int(loop.time() * _NS_PER_S), -1, 0
            row["unsent_at"] = row["unsent_end"] = row["rest_at"] = row["rest_end"] = 0
            row["state"] = kernels.ATTACHED
            attachment = self._attached[index] = Attachment(self, index, row, loop, returned)
            self._by_descriptor[descriptor] = index + 1
            self._ready.add(descriptor)
            return attachment

    def recall(self, *attachments: Attachment) -> None:
        """Ask for the return of connections. Thread-safe."""
        self._recalled.extend(attachments)
        with self._lock:
            if not self._has_ended:
                self._ready.wake()

    def recall_all(self) -> None:
        """Ask for the return of all connections."""
        self.recall(*list(self._attached.values()))

    def close(self) -> None:
        """Return all connections, and stop the thread."""
        with self._lock:
            self._is_closing = True
        self.recall()
        self._thread.join()

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._cycle()
        finally:
            with self._lock:
                self._is_closing = True
            unknown = self._unknown()
            for attachment in list(self._attached.values()):
                self._return(attachment, unknown.get(attachment.index))
            with self._lock:
                self._has_ended = True
                self._ready.close()

    def _pass_arrays(self) -> None:
        arrays = (
            *(self._events, self._by_descriptor, self._connections, self._tails, self._tail_owners),
            *(self._orders, self._levels, *self._scratch, self._progress, self._acks, self._operation, self._iovec),
        )
        set_addresses(self._publishers, publish_cycle.PUBLISHER_ARRAYS, arrays)

    def _update_topic_arrays(self) -> None:
        """Pass the topic arrays to the kernel again if the log has replaced them by larger ones."""
        rules = self._log.rules
        if self._orders is not rules.orders or self._levels is not rules.levels:
            self._orders, self._levels = rules.orders, rules.levels
            self._pass_arrays()

    def _cycle(self) -> None:
        """Receive, commit and answer batches, and return connections that this thread cannot handle."""
        resident, received, progress = self._resident, self._received, self._progress
        self._update_topic_arrays()
        count = kernels.receive_batches(*self._sources, self._orders, self._levels, *self._scratch, progress)
        if count < 0:
            raise system_error(-count)
        unknown: dict[int, Returned] = {}
        if count:
            resident.commit(count)
            if self._log.failure is not None:
                unknown = self._unknown()
            elif resident.unanswered:
                rows = (received.buffer, received.rows, resident.unanswered)
                kernels.send_acks(self._connections, *rows, self._acks, progress)
            resident.unanswered = 0
        if unknown or progress[kernels.RETURNS]:
            for index in np.flatnonzero(self._connections["state"] == kernels.RETURNED).tolist():
                self._return(self._attached[index], unknown.get(index))
        while self._recalled:
            attachment = self._recalled.popleft()
            if self._attached.get(attachment.index) is attachment:
                self._return(attachment)

    def _unknown(self) -> dict[int, Returned]:
        """The `Returned` of each connection with batches in a failed commit."""
        received, found = self._received, dict[int, Returned]()
        rows = received.rows[: self._resident.unanswered]
        for index in np.unique(rows["connection"]).tolist():
            own = rows[rows["connection"] == index]
            staged = own[own["is_staged"] != 0]
            row: Any = self._connections[index]
            row["state"] = kernels.RETURNED
            rest_at = int(own["frames_at"][staged.size]) if staged.size < own.size else int(row["rest_at"])
            rest = received.buffer[rest_at : int(row["rest_end"])].copy()
            first = self._id_at(int(own["at"][0]))
            seqs = np.array([each for row in staged for each in self._frame_ids(row)], np.uint64)
            found[index] = Returned(first + staged.size - 1, rest, seqs=seqs, sizes=staged["size"].copy())
        return found

    def _id_at(self, at: int) -> int:
        return int.from_bytes(self._received.buffer[at + CLIENT_SEQ_AT :][:8].tobytes(), "little")

    def _frame_ids(self, row: Any) -> list[int]:
        """The ids of the frames that a batch was made of."""
        found, at = [], int(row["frames_at"])
        for _ in range(int(row["frames"])):
            found.append(self._id_at(at))
            length = self._received.buffer[at + LENGTH_AT :][:4].tobytes()
            at += FRAME_HEADER_SIZE + int.from_bytes(length, "little")
        return found

    def _return(self, attachment: Attachment, returned: Returned | None = None) -> None:
        """Return a connection to its event loop."""
        row: Any = self._connections[attachment.index]
        descriptor, tail = int(row["fd"]), int(row["tail"])
        if returned is None:
            returned = self._returned(row, tail)
        if tail >= 0:
            self._tail_owners[tail] = 0
        with self._lock:
            self._ready.remove(descriptor)
            self._by_descriptor[descriptor] = 0
            row["state"] = kernels.FREE
            del self._attached[attachment.index]
            self._free.append(attachment.index)
        with suppress(RuntimeError):
            # The loop may have stopped.
            attachment.loop.call_soon_threadsafe(attachment.returned, returned)

    def _returned(self, row: Any, tail: int) -> Returned:
        """The `Returned` of a connection without batches of unknown outcome."""
        if row["state"] == kernels.RETURNED:
            received = self._received.buffer[int(row["rest_at"]) : int(row["rest_end"])].copy()
        else:
            at = max(tail, 0) * limits.LARGE_BATCH_SIZE
            received = self._tails[at : at + int(row["tail_size"])].copy()
        unsent = self._acks[int(row["unsent_at"]) : int(row["unsent_end"])].tobytes()
        return Returned(int(row["highest"]), received, unsent)
