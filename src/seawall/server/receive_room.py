"""Memory that the connections of one loop receive into, one at a time, and where their frames are found."""

from __future__ import annotations

import numpy as np

from seawall import limits
from seawall.kernels import frames


class ReceiveRoom:
    """What all connections of a loop share: bytes are lent to one of them until its session returns."""

    __slots__ = ("rows", "slab")

    def __init__(self) -> None:
        self.slab = np.zeros(limits.SERVER_RECEIVE_SIZE, np.uint8)
        self.rows = np.zeros(limits.SERVER_FRAME_ROWS, frames.FRAME_ROW)
