"""The publish thread: it receives small batches of many connections, commits them together, and answers them.

    event loop ── attach ──▶ publish thread: receive │ commit cycle │ answer      a few calls for all connections
               ◀─ return ──

Every connection begins on its event loop. One that has sent nothing but small batches for a while is attached to this
thread; then the loop neither receives from it nor sends to it. Its batches are received by one kernel call for all
connections that are readable (`kernels.network.publish_io`), become one commit, written and synced on this thread, and
are answered by another kernel call. So publishers that wait for each record share their commits, and no Python runs for
a batch or for a connection.

A connection goes back to its event loop, with what was received and not handled, when it sends anything else, when a
batch of it is not eligible for a commit cycle (`engine.commit.commit_cycle`), when it ends, or when the loop recalls
it.

Of an attached connection, only this thread uses the socket. The loop closes it after its return. A connection is
returned when everything that was received before is decided, or with the numbers of the batches of which nobody knows,
after a failed write.

A crash takes what was not acked: the peer sends it again. This module must not know frames, nor what is stored where.
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

#: Batches that are still arriving, of so many connections at once.
_TAILS: Final = 64
#: Events that one wait reports.
_EVENTS: Final = 1_024
#: A wait lasts until something comes.
_WAIT_MS: Final = -1
#: A batch that takes longer to arrive is for the event loop, which watches slow peers.
_SLOW_S: Final = 1.0
_NS_PER_S: Final = 1_000_000_000


class V1Topic(NamedTuple):
    """The topic of a connection of version 1: as its frames name it, and as the log does."""

    wire_topic: int
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class Returned:
    """A connection that is back: its highest client seq, bytes that were not handled, and bytes that were not sent."""

    highest: int
    received: Bytes
    unsent: bytes = b""
    #: Frames of which nobody knows whether they are stored, by their ids, with the sizes of their batches.
    seqs: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


class Attachment:
    """A connection that the publish thread has."""

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
        """When its peer last sent something, in seconds of the monotonic clock."""
        return int(self._row["received_ns"]) / _NS_PER_S

    def is_slow(self, now: float) -> bool:
        """Whether a batch of it takes long to arrive."""
        return bool(self._row["tail_size"]) and now - int(self._row["tail_ns"]) / _NS_PER_S > _SLOW_S

    def recall(self) -> None:
        """Have it returned soon."""
        self._thread.recall(self)


class PublishThread:
    """The publish thread of one node."""

    def __init__(self, log: ServedLog) -> None:
        """Started at once; `close` ends it. Only where the system has epoll: see `is_supported`."""
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
        #: What the kernel that commits is told of connections.
        self._publishers = np.zeros(1, publish_cycle.PUBLISHERS)
        self._publishers["epoll"], self._publishers["waker"] = self._ready.descriptor, self._ready.waker
        self._orders, self._levels = log.rules.orders, log.rules.levels
        self._set_addresses()
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
        """Whether this system has what it needs."""
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
        """Take a connection over, until `returned` is called on its loop; None if that cannot be.

        One of version 1 comes with its topic.
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
        """Have connections returned soon; from any thread."""
        self._recalled.extend(attachments)
        with self._lock:
            if not self._has_ended:
                self._ready.wake()

    def recall_all(self) -> None:
        """Have all connections returned soon."""
        self.recall(*list(self._attached.values()))

    def close(self) -> None:
        """Return all connections, and end."""
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

    def _set_addresses(self) -> None:
        arrays = (
            *(self._events, self._by_descriptor, self._connections, self._tails, self._tail_owners),
            *(self._orders, self._levels, *self._scratch, self._progress, self._acks, self._operation, self._iovec),
        )
        set_addresses(self._publishers, publish_cycle.PUBLISHER_ARRAYS, arrays)

    def _learn_topics(self) -> None:
        """Have the kernel know of topics that are too many for the arrays it knows."""
        rules = self._log.rules
        if self._orders is not rules.orders or self._levels is not rules.levels:
            self._orders, self._levels = rules.orders, rules.levels
            self._set_addresses()

    def _cycle(self) -> None:
        """Receive what has come, commit and answer it and what follows, and return who is not to be handled here."""
        resident, received, progress = self._resident, self._received, self._progress
        self._learn_topics()
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
        """A commit has failed: what to return each connection with whose batches were part of it."""
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
        """The ids of the frames that a batch came in."""
        found, at = [], int(row["frames_at"])
        for _ in range(int(row["frames"])):
            found.append(self._id_at(at))
            length = self._received.buffer[at + LENGTH_AT :][:4].tobytes()
            at += FRAME_HEADER_SIZE + int.from_bytes(length, "little")
        return found

    def _return(self, attachment: Attachment, returned: Returned | None = None) -> None:
        """Give a connection back to its event loop."""
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
            # Its loop has ended.
            attachment.loop.call_soon_threadsafe(attachment.returned, returned)

    def _returned(self, row: Any, tail: int) -> Returned:
        """What a connection is returned with that nothing unknown is left of."""
        if row["state"] == kernels.RETURNED:
            received = self._received.buffer[int(row["rest_at"]) : int(row["rest_end"])].copy()
        else:
            at = max(tail, 0) * limits.LARGE_BATCH_SIZE
            received = self._tails[at : at + int(row["tail_size"])].copy()
        unsent = self._acks[int(row["unsent_at"]) : int(row["unsent_end"])].tobytes()
        return Returned(int(row["highest"]), received, unsent)
