"""What the kernels of lone batches are told: of the store and the pod, on a desk, and of a connection, in a turn.

This module must not know where a batch goes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import ClientId, SessionEpoch
from seawall.engine.sessions import Sessions
from seawall.engine.short_way import ShortWay
from seawall.fabric.arrays import FabricArrays
from seawall.kernels import lone_arrival as kernels
from seawall.kernels import lone_turn
from seawall.kernels.frames import FRAME_ROW, STATE_SIZE, STATE_VERSION
from seawall.sequencer.frontier import CommitFrontier
from seawall.sequencer.pod_sequencer import PodSequencer
from seawall.wire.codes import VERSION_2


class LoneTurn:
    """What the kernel has to know of one connection, and the answer that it makes there."""

    __slots__ = ("_ack", "ack", "rows", "state", "words")

    def __init__(
        self,
        client_id: ClientId,
        session_epoch: SessionEpoch,
        codecs: int,
        window_batches: int,
        window_bytes: int,
        payload_max: int,
    ) -> None:
        self.words = np.zeros(lone_turn.TURN_SIZE, np.int64)
        self.words[: lone_turn.HIGHEST] = client_id, session_epoch, codecs, window_batches, window_bytes, payload_max
        self.ack = np.zeros(lone_turn.ACK_SIZE, np.uint8)
        self._ack = self.ack.data
        self.rows = np.zeros(2, FRAME_ROW)
        self.state = np.zeros(STATE_SIZE, np.int64)
        self.state[STATE_VERSION] = VERSION_2

    def begin(self, highest: int, socket: int = -1, others: int = -1) -> None:
        """The highest number that the connection has brought so far; the answer goes to `socket`, if it is not -1.

        The next batch may be waited for there until `others`, a descriptor, is readable; not at all if that is -1, or
        if this one was waited for.
        """
        self.words[lone_turn.HIGHEST] = highest
        self.words[lone_turn.SOCKET] = socket
        self.words[lone_turn.OTHERS] = -1 if self.received else others
        self.words[lone_turn.SENT] = 0
        self.words[lone_turn.RECEIVED] = 0

    def make_haste(self) -> None:
        """Somebody has to be told of the batch: nothing is waited for behind it."""
        self.words[lone_turn.OTHERS] = -1

    def taken(self) -> None:
        """The last batch was taken after all."""
        self.words[lone_turn.RECEIVED] = 0

    @property
    def highest(self) -> int:
        """The highest number that the connection has brought."""
        return self.words.item(lone_turn.HIGHEST)

    @property
    def size(self) -> int:
        """Bytes of the last batch."""
        size: int = self.rows["size"].item(0)
        return size

    @property
    def received(self) -> int:
        """Bytes that have come behind it, into the same buffer, and are still to be taken."""
        return self.words.item(lone_turn.RECEIVED)

    @property
    def entries(self) -> int:
        """Batches that the answer is about."""
        return self.words.item(lone_turn.ENTRIES)

    def unsent(self) -> bytes:
        """What is left to be sent of the answer, which is the caller's now."""
        entries = self.entries
        if not entries:
            return b""
        size = lone_turn.ACK_PREFIX + entries * lone_turn.ACK_ENTRY
        self.words[lone_turn.ENTRIES] = 0
        return bytes(self._ack[self.words.item(lone_turn.SENT) : size])


class LoneDesk:
    """The words that kernels of lone batches read and write, and the arrays that these refer to."""

    __slots__ = ("_referred", "is_complete", "words")

    def __init__(
        self,
        size: int,
        fabric: FabricArrays,
        sequencer: PodSequencer,
        frontier: CommitFrontier,
        short_way: ShortWay,
        sessions: Sessions,
    ) -> None:
        self.words = np.zeros(size, np.int64)
        (worker, *others) = sequencer.workers
        #: Whether it tells of all who order: there is one of them.
        self.is_complete: Final = not others
        counters, state = worker.lone_arrays
        # Kept as long as their addresses lie on the desk.
        self._referred: list[npt.NDArray[Any]] = [
            *(*frontier.arrays, short_way.rows, *worker.window.arrays, *sessions.window.arrays),
            *(fabric.control_words, counters, fabric.replica_words[0], fabric.tail_all_words),
            *(fabric.completion_all_words, state),
        ]
        for place, array in enumerate(self._referred):
            self.words[kernels.KEYS + 2 * place :][:2] = array.ctypes.data, len(array)
        self.words[kernels.TERM] = sequencer.term
        self.words[kernels.CHECKPOINT_AFTER] = limits.GOI_CHECKPOINT_PERCENT * len(fabric.goi) // 100
