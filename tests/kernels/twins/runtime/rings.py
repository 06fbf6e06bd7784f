"""A slot ring seen as a table: row = absolute index modulo rows, last column = token. One caller at a time."""

from __future__ import annotations

from seawall.kernels.runtime.rings import CONSUMED, PRODUCED, SLOT_WORDS, Words


def _rows(slots: Words) -> Words:
    return slots.reshape(-1, SLOT_WORDS)


def ring_push(slots: Words, counters: Words, content: Words) -> int:
    """Fill the next row, unless all rows are unread."""
    rows = _rows(slots)
    unread = counters[PRODUCED] - counters[CONSUMED]
    if unread >= len(rows):
        return 0
    index = int(counters[PRODUCED])
    rows[index % len(rows)] = [*content[: SLOT_WORDS - 1], index + 1]
    counters[PRODUCED] = index + 1
    return 1


def ring_is_ready(slots: Words, counters: Words) -> int:
    """1 if the next row to read has the token of this lap."""
    rows = _rows(slots)
    index = int(counters[CONSUMED])
    return int(rows[index % len(rows)][-1] == index + 1)


def ring_pop(slots: Words, counters: Words, content: Words) -> int:
    """Read the next row if it is ready, and count it as read."""
    if not ring_is_ready(slots, counters):
        return 0
    rows = _rows(slots)
    content[: SLOT_WORDS - 1] = rows[counters[CONSUMED] % len(rows)][:-1]
    counters[CONSUMED] += 1
    return 1
