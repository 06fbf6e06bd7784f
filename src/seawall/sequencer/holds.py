"""The arrays in which a worker holds batches, as they are when nothing is held; `kernels.holding` has their layout."""

from __future__ import annotations

import numpy as np

from seawall.fabric.records import Words
from seawall.kernels import holding


def empty_holds(count: int) -> Words:
    """Rings of brokers that hold nothing, and `count` free rows in a chain."""
    holds = np.zeros((holding.BROKERS + count, holding.HOLD_WORDS), np.int64)
    numbers = np.arange(len(holds))
    holds[:, holding.HOLD_NEWER] = numbers + 1
    ends = numbers[: holding.BROKERS]
    holds[ends, holding.HOLD_NEWER] = holds[ends, holding.HOLD_OLDER] = ends
    return holds.reshape(-1)


def empty_pages(count: int) -> Words:
    """Free pages in a chain; the last one is followed by −1."""
    pages = np.zeros((count, holding.PAGE_WORDS), np.int64)
    pages[:, holding.PAGE_NEXT_FREE] = [*range(1, count), -1]
    return pages.reshape(-1)
