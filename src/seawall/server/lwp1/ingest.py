"""Publishes ingest frames of version 1 as batches, for one connection.

    take      one kernel call turns a run of frames into batches (`kernels/codec/v1_payloads.py`), another publishes
              them: small frames of records are joined to one batch, an opaque payload becomes a batch of its own
    decided   records the outcome of batches: once all batches of a run are decided, so are its frames

A batch of several frames is stored completely or not at all, so its frames share one outcome. The session decompresses
compressed frames first, one by one.

A run has one answer for each of its frames, in their order, once all its batches are decided.

A crash loses what was not acknowledged. This module must not know connections, commands, or the order of answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.engine.commit.appends import LARGE_BLOCK_SIZE
from seawall.engine.serving.served_log import ServedLog
from seawall.kernels.codec import v1_payloads as kernel
from seawall.kernels.codec.frames import FRAME_ROW, Rows
from seawall.server.connection.session import Bytes
from seawall.server.lwp2.refusals import refuse, v1_error_frame
from seawall.server.publish.ingest import Ingest
from seawall.server.publish.producer_session import ProducerSession
from seawall.server.publish.publish_thread import Returned
from seawall.topics.state import TopicState
from seawall.wire.format.codes import AckStatus, ErrorCode, V1Flags
from seawall.wire.format.fields import Buffer
from seawall.wire.lwp1.frames import encode_acks, plain_payload

_HEADER: Final = limits.FRAME_HEADER_SIZE
_LZ4: Final = int(V1Flags.LZ4)

#: Error codes that version 1 does not have, and their replacements.
_CODES: Final = {
    ErrorCode.READ_ONLY: ErrorCode.STORAGE,
    ErrorCode.OUTCOME_UNKNOWN: ErrorCode.STORAGE,
    ErrorCode.LIMIT: ErrorCode.BACKPRESSURE,
}


class EncodeBuffer:
    """Buffers for encoding frames as batches; the connections of a loop share them."""

    __slots__ = ("batches", "frame_counts", "rows")

    def __init__(self) -> None:
        self.batches: Bytes = np.zeros(2 * limits.SERVER_RECEIVE_SIZE, np.uint8)
        self.rows: Rows = np.zeros(limits.SERVER_FRAME_ROWS, FRAME_ROW)
        self.frame_counts = np.zeros(limits.SERVER_FRAME_ROWS, np.int64)


class Run:
    """Frames that were accepted together, and the batches made of them."""

    __slots__ = ("_frame_counts", "_left", "_reasons", "batch_ids", "first_seq", "size")

    def __init__(
        self,
        batch_ids: npt.NDArray[np.uint64],
        size: int,
        first_seq: int,
        frame_counts: npt.NDArray[np.int64],
    ) -> None:
        self.batch_ids = batch_ids
        #: Bytes of its batches.
        self.size = size
        self.first_seq = first_seq
        self._frame_counts = frame_counts
        self._left = len(frame_counts)
        #: The error code of each refused batch; 0 for others.
        self._reasons = np.zeros(len(frame_counts), np.int64)

    @property
    def is_decided(self) -> bool:
        """True if all of its batches are decided."""
        return self._left <= 0

    @property
    def end_seq(self) -> int:
        """The client seq after its last batch."""
        return self.first_seq + len(self._reasons)

    def decide(self, seqs: npt.NDArray[np.int64], reasons: npt.NDArray[np.int64]) -> None:
        """Record the outcome of some of its batches."""
        self._reasons[seqs - self.first_seq] = reasons
        self._left -= len(seqs)

    def fail(self) -> None:
        """Record a write error: the outcome of all batches is unknown."""
        self._reasons[:] = ErrorCode.STORAGE
        self._left = 0

    def frames(self) -> bytes:
        """The answers: an ack for each frame, or an error in its place."""
        if not self._reasons.any():
            return encode_acks(self.batch_ids)
        each = np.repeat(self._reasons, self._frame_counts).tolist()
        return b"".join(
            _refused(reason, batch_id) if reason else encode_acks(self.batch_ids[index : index + 1])
            for index, (reason, batch_id) in enumerate(zip(each, self.batch_ids.tolist(), strict=True))
        )


def _refused(reason: int, batch_id: int) -> bytes:
    code = ErrorCode(reason)
    error = refuse(_CODES.get(code, code), _TEXTS.get(code, "the batch was refused: nothing of it was stored"))
    return v1_error_frame(error, {"batch_id": batch_id})


_TEXTS: Final = {
    ErrorCode.TOPIC_DELETED: "the topic was deleted before the batch was stored",
    ErrorCode.READ_ONLY: "the disk of the server is full, or failed: nothing was stored",
    ErrorCode.STORAGE: "the storage of the server failed: it has to be started again",
}


class _Batches(ProducerSession):
    """The producer session of one connection; the version 1 session bounds its unacknowledged frames."""

    __slots__ = ()

    @property
    def space(self) -> int:
        """Unbounded here: only the ring limits it."""
        return limits.SERVER_FRAME_ROWS

    def sent(self, seqs: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Do nothing: `Lwp1Ingest` records runs instead."""

    def decided(self, rows: Rows) -> None:
        """Record answers; the next `flush` delivers them."""
        self._rows.append(rows)

    def flush(self) -> None:
        """Deliver all recorded answers."""
        rows, self._rows = self._rows, []
        session = self.session
        assert isinstance(session, Lwp1Ingest)
        if rows:
            session.decided(np.concatenate(rows))


class Lwp1Ingest:
    """The batches of one connection.

    Calls `on_decided` when runs are decided, and `resume` when the ring has space again.
    """

    def __init__(
        self,
        log: ServedLog,
        ingest: Ingest,
        buffers: EncodeBuffer,
        on_decided: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        self._log = log
        self._ingest = ingest
        self._buffers = buffers
        self._on_decided = on_decided
        self.resume = resume
        self._batches: ProducerSession | None = None
        self._next_seq = 1
        #: Undecided runs, in their order.
        self._runs: deque[Run] = deque()

    def take(self, buffer: Bytes, rows: Rows, first: int, topic: TopicState, plain: Buffer | None = None) -> Run | None:
        """Publish a run of frames starting at `first`, at least one; None if the ring has no space.

        `plain` is the decompressed payload of the first one, if it is compressed. Raises `ProtocolError` for an empty
        frame.
        """
        at, size, _, _, _, length, _, _, _, flags, _, _ = rows[first].item()
        if flags & _LZ4 or not length or size > limits.SERVER_RECEIVE_SIZE:
            payload = plain_payload(0, buffer[at + _HEADER : at + size].tobytes()) if plain is None else plain
            return self._take_one(payload, rows[first : first + 1], topic)
        return self._publish(buffer, rows, first, topic, self._buffers.batches)

    def attachable(self) -> ProducerSession | None:
        """The producer session for the publish thread, if everything is decided; else None."""
        batches = self._batches
        if batches is None or self._runs or not self._ingest.may_attach(batches):
            return None
        batches.highest = self._next_seq - 1
        return batches

    def returned(self, returned: Returned) -> Run | None:
        """Take the connection back from the publish thread; returns the frames of unknown outcome, or None."""
        assert self._batches is not None, "only a producer is attached"
        self._next_seq = returned.highest + 1
        self._ingest.returned(self._batches, returned)
        if not returned.seqs.size:
            return None
        unknown = Run(returned.seqs, 0, self._next_seq, np.ones(returned.seqs.size, np.int64))
        unknown.fail()
        return unknown

    def end(self) -> None:
        """End the producer session: the connection is closed."""
        if self._batches is not None:
            self._ingest.end(self._batches)

    # --- for the ingest ----------------------------------------------------------------------------------------------

    def decided(self, answers: Rows) -> None:
        """Record the outcome of batches."""
        seqs = answers["client_seq"].astype(np.int64)
        order = np.argsort(seqs, kind="stable")
        seqs = seqs[order]
        is_refused = answers["status"] >= int(AckStatus.REJECTED)
        reasons = np.where(is_refused, answers["reason"].astype(np.int64), 0)[order]
        for run in self._runs:
            first, last = seqs.searchsorted((run.first_seq, run.end_seq)).tolist()
            if first < last:
                run.decide(seqs[first:last], reasons[first:last])
        self._report_decided()

    def fail(self, _error: BaseException) -> None:
        """Record a write error for all undecided runs."""
        for run in self._runs:
            run.fail()
        self._report_decided()

    def send_ack(self, _frame: bytes) -> None:
        """Do nothing: version 1 has acks of its own."""

    def fence(self) -> None:
        """Do nothing: the client id is unique."""

    def slow_down(self, _retry_ms: int, _cause: str) -> None:
        """Do nothing: the server stops reading, and version 1 clients would take a frame for a failure."""

    def _report_decided(self) -> None:
        while self._runs and self._runs[0].is_decided:
            self._runs.popleft()
        self._on_decided()

    # --- batches -----------------------------------------------------------------------------------------------------

    def _take_one(self, payload: Buffer, rows: Rows, topic: TopicState) -> Run | None:
        """Publish one frame that is compressed or large."""
        plain = rows.copy()
        plain["at"], plain["payload_length"], plain["kind"] = 0, len(payload), int(V1Flags.BATCH)
        framed = np.frombuffer(b"".join((bytes(_HEADER), payload)), np.uint8)
        out: Bytes = np.empty(limits.BATCH_HEADER_SIZE + len(payload), np.uint8)
        return self._publish(framed, plain, 0, topic, out)

    def _publish(self, buffer: Bytes, rows: Rows, first: int, topic: TopicState, out: Bytes) -> Run | None:
        if self._batches is None:
            self._batches = self._ingest.begin_sessionless(self, _Batches)
        batches, buffers = self._batches, self._buffers
        self._log.rules.require(topic)
        client_id = batches.client_id - (1 << 64)
        numbers = (first, topic.topic_id, client_id, self._next_seq, LARGE_BLOCK_SIZE - 1)
        made = kernel.make_batches(buffer, rows, *numbers, out, buffers.rows, buffers.frame_counts)
        taken = self._ingest.publish(batches, out, buffers.rows[:made])
        if not taken:
            return None
        frame_counts = buffers.frame_counts[:taken].copy()
        batch_ids = rows["id"][first : first + int(frame_counts.sum())].copy()
        run = Run(batch_ids, int(buffers.rows["size"][:taken].sum()), self._next_seq, frame_counts)
        self._next_seq += taken
        self._runs.append(run)
        return run
