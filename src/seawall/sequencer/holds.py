"""Creates the empty arrays in which a worker holds batches; `kernels.ordering.holding` has their layout."""

from __future__ import annotations

import numpy as np

from seawall.fabric import records
from seawall.fabric.records import Words
from seawall.kernels.ordering import holding

assert (holding.TAIL_BLOG_CLAIMED, holding.TAIL_BLOG_WANTED) == (records.TAIL_BLOG_CLAIMED, records.TAIL_BLOG_WANTED)
assert records.PBR_ENTRY.fields is not None
assert records.PBR_ENTRY.fields["blog_offset"][1] == holding.PBR_BLOG_OFFSET * 8


def empty_holds(count: int) -> Words:
    """Empty lists of all brokers, and `count` free rows in a linked list."""
    holds = np.zeros((holding.BROKERS + count, holding.HOLD_WORDS), np.int64)
    numbers = np.arange(len(holds))
    holds[:, holding.HOLD_NEWER] = numbers + 1
    heads = numbers[: holding.BROKERS]
    holds[heads, holding.HOLD_NEWER] = holds[heads, holding.HOLD_OLDER] = heads
    return holds.reshape(-1)


def empty_pages(count: int) -> Words:
    """Free pages in a linked list that ends with −1."""
    pages = np.zeros((count, holding.PAGE_WORDS), np.int64)
    pages[:, holding.PAGE_NEXT_FREE] = [*range(1, count), -1]
    return pages.reshape(-1)


def empty_state(hold_max: int, pbr_entries: int, blog_size: int, high_percent: int, silence_ns: int) -> Words:
    """The initial state of a worker; `high_percent` bounds held batches and how much of a ring they may pin."""
    state = np.zeros(holding.STATE_WORDS, np.int64)
    state[holding.HOLD_FREE] = holding.BROKERS
    state[holding.NEXT_DEADLINE] = holding.NEVER
    state[holding.HOLD_HIGH] = hold_max * high_percent // 100
    state[holding.PIN_LIMIT] = max(1, pbr_entries * high_percent // 100)
    state[holding.SILENCE_NS] = silence_ns
    state[holding.BLOG_SIZE] = blog_size
    state[holding.BLOG_RESERVE] = blog_size * (100 - high_percent) // 100
    return state
