"""The batches in flight of one connection, and the ACK frames that answer them.

INV-INGEST-THROUGH: an ACK reports client seqs as decided only below the first batch of its connection that waits for
its answer.
INV-INGEST-WINDOW: a connection has at most its window of undecided batches, and one receive beyond its window of bytes.

This module must not know the log, rings or sockets.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from seawall.core.types import ClientId, SessionEpoch
from seawall.kernels.codec.frames import Rows
from seawall.server.connection.budget import Account
from seawall.wire.format.ack_rows import ACK_ROW, encode_ack_rows
from seawall.wire.format.codes import POSITION_UNKNOWN, AckStatus, ErrorCode, Features

_NO_SEQS: Final = np.zeros(0, np.uint64)
_NO_SIZES: Final = np.zeros(0, np.int64)
_OK: Final = int(AckStatus.OK)


class Producer(Protocol):
    """The sender of batches: what the ingest needs of a session."""

    def send_ack(self, frame: bytes) -> None:
        """Send an ACK frame."""
        ...

    def resume(self) -> None:
        """Feed the batches again that were not accepted: there is space now."""
        ...

    def fence(self) -> None:
        """End this session: a newer session of the same client was opened."""
        ...

    def fail(self, error: BaseException) -> None:
        """Report to the peer, once, that the log is read-only; reading continues."""
        ...

    def slow_down(self, retry_ms: int, cause: str) -> None:
        """Report to the peer why batches are not accepted, and for how long to pause, where the protocol can."""
        ...


class ProducerSession:
    """The undecided batches and unsent answers of one connection."""

    __slots__ = (
        *("_rows", "_seqs", "_size", "_sizes", "client_id", "codecs", "features", "highest", "owner", "session"),
        *("checked", "is_checking", "is_failure_reported", "memory", "session_epoch"),
        *("window_batches", "window_bytes"),
    )

    def __init__(
        self,
        session: Producer,
        owner: int,
        client_id: ClientId,
        session_epoch: SessionEpoch,
        features: int,
        window_batches: int,
        window_bytes: int,
    ) -> None:
        self.session = session
        self.owner = owner
        self.client_id = client_id
        self.session_epoch = session_epoch
        self.features = features
        #: One bit for each codec that its blocks may use.
        self.codecs = (2 if features & Features.LZ4 else 0) | (4 if features & Features.ZSTD else 0)
        self.window_batches = window_batches
        self.window_bytes = window_bytes
        #: Undecided batches, their sizes and the sum of these, and the highest client seq received.
        self._seqs: npt.NDArray[np.uint64] = _NO_SEQS
        self._sizes: npt.NDArray[np.int64] = _NO_SIZES
        self._size = 0
        self.highest = 0
        #: Answers not sent yet.
        self._rows: list[Rows] = []
        #: True once it was reported to the peer that the log is read-only.
        self.is_failure_reported = False
        #: Verdicts on the next compressed batches, and whether a thread is checking more.
        self.checked: list[int] = []
        self.is_checking = False
        #: Account for the memory of compressed batches; None if it is not counted.
        self.memory: Account | None = None

    @property
    def undecided(self) -> int:
        """Batches without a decision."""
        return len(self._seqs)

    @property
    def is_answered(self) -> bool:
        """True if every batch is decided, and every answer sent."""
        return not (len(self._seqs) or self._rows)

    @property
    def space(self) -> int:
        """Batches that the window has space for."""
        return 0 if self._size >= self.window_bytes else self.window_batches - len(self._seqs)

    @property
    def through(self) -> int:
        """The client seq up to which every received batch is decided."""
        return self.highest if not len(self._seqs) else int(self._seqs.min()) - 1

    def sent(self, seqs: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Record batches that need an answer."""
        # The arguments are slices of arrays that are reused.
        self._seqs = np.concatenate((self._seqs, seqs)) if len(self._seqs) else seqs.copy()
        self._sizes = np.concatenate((self._sizes, sizes)) if len(self._sizes) else sizes.copy()
        self._size += sizes.item() if len(sizes) == 1 else int(sizes.sum())

    def decided(self, rows: Rows) -> None:
        """Record answers; the next `flush` sends them."""
        self._rows.append(rows)
        seqs = rows["client_seq"]
        if len(seqs) == len(self._seqs) == 1 and seqs.item() == self._seqs.item():
            self._seqs, self._sizes, self._size = _NO_SEQS, _NO_SIZES, 0
        elif np.array_equal(self._seqs[: len(seqs)], seqs):
            # Fast path: batches are usually decided in the order in which they were sent.
            self._size -= int(self._sizes[: len(seqs)].sum())
            self._seqs, self._sizes = self._seqs[len(seqs) :], self._sizes[len(seqs) :]
        elif len(self._seqs):
            left = ~np.isin(self._seqs, seqs)
            self._seqs, self._sizes = self._seqs[left], self._sizes[left]
            self._size = int(self._sizes.sum())

    def give_up(self) -> None:
        """Answer all undecided batches with an unknown outcome, and send all answers."""
        if len(self._seqs):
            rows = np.zeros(len(self._seqs), ACK_ROW)
            rows["client_seq"] = self._seqs
            rows["position"] = POSITION_UNKNOWN
            rows["run"] = 1
            rows["status"] = int(AckStatus.UNKNOWN)
            rows["reason"] = int(ErrorCode.OUTCOME_UNKNOWN)
            self.decided(rows)
        self.flush()

    def _send(self, rows: Rows) -> None:
        self.session.send_ack(
            encode_ack_rows(
                rows,
                session_epoch=self.session_epoch,
                window_batches=self.window_batches,
                window_bytes=self.window_bytes,
                through=self.through,
            )
        )

    def flush(self) -> None:
        """Send all recorded answers as one frame."""
        if not self._rows:
            return
        rows = np.concatenate(self._rows) if len(self._rows) > 1 else self._rows[0]
        self._rows = []
        if len(rows) > 1:
            rows = rows[np.argsort(rows["client_seq"], kind="stable")]
            if self.features & Features.ACK_RUNS:
                rows = _in_runs(rows)
        self._send(rows)


def _in_runs(rows: Rows) -> Rows:
    """The same answers, with runs of consecutive batches of one topic merged into their last row."""
    seqs = rows["client_seq"]
    joins = (rows["status"][1:] == _OK) & (rows["status"][:-1] == _OK) & (seqs[1:] == seqs[:-1] + np.uint64(1))
    joins &= (rows["topic_id"][1:] == rows["topic_id"][:-1]) & (rows["level"][1:] == rows["level"][:-1])
    lasts = np.flatnonzero(np.append(~joins, True))
    runs = rows[lasts]
    runs["run"] = np.diff(lasts, prepend=-1)
    return runs
