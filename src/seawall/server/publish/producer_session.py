"""The batches of one connection that are under way, and the ACK frames that answer them.

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
    """Whose batches they are: a session, as far as ingest has to know it."""

    def send_ack(self, frame: bytes) -> None:
        """Batches are decided: send this."""
        ...

    def resume(self) -> None:
        """There is room again for batches that were not taken."""
        ...

    def fence(self) -> None:
        """A newer session of the same client was opened."""
        ...

    def fail(self, error: BaseException) -> None:
        """Nothing more can be written: tell the peer so, once; reading goes on."""
        ...

    def slow_down(self, retry_ms: int, cause: str) -> None:
        """Batches are not taken for now: tell the peer why, and to send no more for so long, where the protocol can."""
        ...


class ProducerSession:
    """The batches of one connection."""

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
        #: A bit for each codec that its blocks may have.
        self.codecs = (2 if features & Features.LZ4 else 0) | (4 if features & Features.ZSTD else 0)
        self.window_batches = window_batches
        self.window_bytes = window_bytes
        #: Batches that are not decided, with their sizes and those in all, and the highest that came.
        self._seqs: npt.NDArray[np.uint64] = _NO_SEQS
        self._sizes: npt.NDArray[np.int64] = _NO_SIZES
        self._size = 0
        self.highest = 0
        #: Answers that are to be sent.
        self._rows: list[Rows] = []
        #: Whether its peer knows that nothing more can be written.
        self.is_failure_reported = False
        #: Verdicts about the compressed batches that come next, and whether some are being found out.
        self.checked: list[int] = []
        self.is_checking = False
        #: Where memory is counted that its batches take on the way; None if nobody counts it.
        self.memory: Account | None = None

    @property
    def undecided(self) -> int:
        """Batches that wait for their answer."""
        return len(self._seqs)

    @property
    def is_answered(self) -> bool:
        """Whether everything that came is decided, and its peer was told."""
        return not (len(self._seqs) or self._rows)

    @property
    def space(self) -> int:
        """Batches that the window has room for."""
        return 0 if self._size >= self.window_bytes else self.window_batches - len(self._seqs)

    @property
    def through(self) -> int:
        """Up to where everything that came is decided."""
        return self.highest if not len(self._seqs) else int(self._seqs.min()) - 1

    def sent(self, seqs: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Batches are on their way, and are to be answered."""
        # What is given is part of arrays that are used again.
        self._seqs = np.concatenate((self._seqs, seqs)) if len(self._seqs) else seqs.copy()
        self._sizes = np.concatenate((self._sizes, sizes)) if len(self._sizes) else sizes.copy()
        self._size += sizes.item() if len(sizes) == 1 else int(sizes.sum())

    def decided(self, rows: Rows) -> None:
        """Answers, which are sent with the next `flush`."""
        self._rows.append(rows)
        seqs = rows["client_seq"]
        if len(seqs) == len(self._seqs) == 1 and seqs.item() == self._seqs.item():
            self._seqs, self._sizes, self._size = _NO_SEQS, _NO_SIZES, 0
        elif np.array_equal(self._seqs[: len(seqs)], seqs):
            # Mostly what was sent first is decided first.
            self._size -= int(self._sizes[: len(seqs)].sum())
            self._seqs, self._sizes = self._seqs[len(seqs) :], self._sizes[len(seqs) :]
        elif len(self._seqs):
            left = ~np.isin(self._seqs, seqs)
            self._seqs, self._sizes = self._seqs[left], self._sizes[left]
            self._size = int(self._sizes.sum())

    def give_up(self) -> None:
        """Nobody knows what becomes of the batches that are not decided: answer that, and send all answers."""
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
        """Send the answers there are, as one frame."""
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
    """The same answers, with those that follow each other in one topic told by the last of them."""
    seqs = rows["client_seq"]
    joins = (rows["status"][1:] == _OK) & (rows["status"][:-1] == _OK) & (seqs[1:] == seqs[:-1] + np.uint64(1))
    joins &= (rows["topic_id"][1:] == rows["topic_id"][:-1]) & (rows["level"][1:] == rows["level"][:-1])
    lasts = np.flatnonzero(np.append(~joins, True))
    runs = rows[lasts]
    runs["run"] = np.diff(lasts, prepend=-1)
    return runs
