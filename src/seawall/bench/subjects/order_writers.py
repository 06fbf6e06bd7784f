"""Writers of suite `order`: processes that publish batches over a stream, within their in-flight window.

A writer renumbers prepared batches, sends them, and receives ACK frames. It records when it sent each batch and reports
to its parent, through shared memory, the number of acknowledged batches and the latest latencies. No Python runs per
batch, so the figures measure the pod and not its load.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.core.types import ClientId, ClientSeq, TimestampNs, TopicId
from seawall.errors import InvariantError
from seawall.io.network.sockets import OsStream
from seawall.io.process.wakeups import WakeUpEvent
from seawall.kernels.codec import frames
from seawall.kernels.codec.renumbering import renumber_batches
from seawall.limits import FRAME_HEADER_SIZE, MIB, PAYLOAD_SIZE_MIN
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckStatus
from seawall.wire.format.records import encode_raw

#: Number of latest latencies kept, and of send times of batches in flight: more than any window.
SAMPLES: Final = 1 << 16

_ACKED: Final = 0
_PUBLISHES: Final = 8
_SAMPLED: Final = 16
_WORDS: Final = 24


@dataclass(frozen=True, slots=True)
class WriterLoad:
    """The load of a writer. One that leaves a gap never sends its first batch and repeats the next ones forever."""

    client_id: int
    topic_id: TopicId
    value_size: int
    window: int
    batches_at_once: int
    session_epoch: int = 1
    leaves_gap: bool = False


class WriterBoard:
    """Memory shared by a writer and its parent; made before the fork."""

    __slots__ = ("_memory", "_samples", "_words")

    def __init__(self) -> None:
        self._memory: Final = mmap.mmap(-1, (_WORDS + SAMPLES) * 8)
        words = np.frombuffer(self._memory, np.int64)
        self._words: Final = words[:_WORDS]
        self._samples: Final = words[_WORDS:]

    @property
    def acked(self) -> int:
        """Acknowledged batches."""
        return int(self._words[_ACKED])

    @property
    def publishes(self) -> bool:
        """True while the writer should publish."""
        return bool(self._words[_PUBLISHES])

    @publishes.setter
    def publishes(self, wanted: bool) -> None:
        self._words[_PUBLISHES] = wanted

    def add(self, latencies: npt.NDArray[np.int64]) -> None:
        """Record acknowledged batches with their latencies in nanoseconds."""
        first = int(self._words[_SAMPLED])
        self._samples[(first + np.arange(latencies.size)) % SAMPLES] = latencies
        self._words[_SAMPLED] = first + latencies.size
        self._words[_ACKED] += latencies.size

    def forget_latencies(self) -> None:
        """Discard the recorded latencies."""
        self._words[_SAMPLED] = 0

    def latencies(self) -> npt.NDArray[np.int64]:
        """The latest latencies in nanoseconds."""
        return self._samples[: min(SAMPLES, int(self._words[_SAMPLED]))].copy()


class Writer:
    """One writer; `step` sends and receives without blocking."""

    def __init__(self, stream: OsStream, board: WriterBoard, load: WriterLoad, wakeup: WakeUpEvent) -> None:
        self._stream: Final = stream
        self._wakeup: Final = wakeup
        wakeup.watch(stream.fileno())
        self._wants_writable = False
        self._board: Final = board
        self._load: Final = load
        block = encode_raw(os.urandom(load.value_size))
        header = batch_header(
            block,
            topic_id=load.topic_id,
            client_id=ClientId(load.client_id),
            client_seq=ClientSeq(1),
            session_epoch=load.session_epoch,
            record_count=1,
            timestamp_ns=TimestampNs(0),
        )
        batch = encode_batch(header, block)
        self.batch_size: Final = len(batch)
        self._batches: Final = np.frombuffer(batch * load.batches_at_once, np.uint8).copy()
        self._unsent = self._batches.data[:0]
        self._next_seq = 2 if load.leaves_gap else 1
        self._in_flight = 0
        self._sent_ns: Final = np.zeros(SAMPLES, np.int64)
        self._received: Final = np.zeros(MIB, np.uint8)
        self._end = 0
        self._rows: Final = np.zeros(1_024, frames.FRAME_ROW)
        self._state: Final = np.zeros(frames.STATE_SIZE, np.int64)

    def step(self) -> int:
        """Send and receive once; return the number of batches started or acknowledged."""
        acked = self._receive()
        started = self._start_batches() if self._board.publishes and not self._unsent else 0
        while self._unsent and (sent := self._stream.send(self._unsent)):
            self._unsent = self._unsent[sent:]
        if bool(self._unsent) != self._wants_writable:
            self._wants_writable = bool(self._unsent)
            self._wakeup.watch(self._stream.fileno(), has_space=self._wants_writable)
        return acked + started

    def _start_batches(self) -> int:
        """Number the next batches, if the window has space for enough of them; return how many."""
        load = self._load
        space = load.window - self._in_flight
        # Sending few batches costs as much as sending many: wait until half of a full send fits the window.
        if space < min(load.window, load.batches_at_once) // 2 + 1:
            return 0
        count = min(space, load.batches_at_once)
        renumber_batches(self._batches, self.batch_size, count, self._next_seq)
        self._sent_ns[(self._next_seq + np.arange(count)) % SAMPLES] = monotonic_ns()
        if not load.leaves_gap:
            self._next_seq += count
        self._in_flight += count
        self._unsent = self._batches.data[: count * self.batch_size]
        return count

    def _receive(self) -> int:
        count = self._stream.receive_into(self._received.data[self._end :])
        if not count:
            return 0
        self._end += count
        frames.split_frames(self._received, 0, self._end, PAYLOAD_SIZE_MIN, self._rows, self._state)
        acked = 0
        for row in self._rows[: int(self._state[frames.STATE_FRAMES])]:
            first = int(row["at"]) + FRAME_HEADER_SIZE
            acked += self._handle_acks(self._received[first : first + int(row["payload_length"])])
        rest = self._received[int(self._state[frames.STATE_CONSUMED]) : self._end].copy()
        self._received[: rest.size] = rest
        self._end = rest.size
        return acked

    def _handle_acks(self, payload: npt.NDArray[np.uint8]) -> int:
        rows = ack_rows(payload.data)
        if not self._load.leaves_gap and (rows["status"] != int(AckStatus.OK)).any():
            raise InvariantError("INV-BENCH-OK", f"a batch was acknowledged with status {rows['status'].max()}")
        self._in_flight -= rows.size
        sent = self._sent_ns[(rows["client_seq"] % np.uint64(SAMPLES)).astype(np.int64)]
        self._board.add(monotonic_ns() - sent)
        return rows.size
