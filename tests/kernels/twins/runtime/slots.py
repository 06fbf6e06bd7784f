"""Slots seen as a table: row = absolute index modulo rows, one column is the token. One caller at a time."""

from __future__ import annotations

from itertools import takewhile

from seawall.kernels.runtime.rings import SLOT_WORDS, Words


def _rows(slots: Words) -> Words:
    return slots.reshape(-1, SLOT_WORDS)


def slot_base(capacity: int, index: int) -> int:
    """The first word of the row of an index."""
    return divmod(index, capacity)[1] * SLOT_WORDS


def publish_slot(slots: Words, token_word: int, index: int, content: Words) -> None:
    """Fill the row, with index + 1 in the token column."""
    row = content.tolist()
    row[token_word] = index + 1
    rows = _rows(slots)
    rows[index % len(rows)] = row


def read_slot(slots: Words, token_word: int, index: int, content: Words) -> int:
    """Copy the row if its token matches the index."""
    rows = _rows(slots)
    row = rows[index % len(rows)]
    if row[token_word] != index + 1:
        return 0
    content[:] = row
    return 1


def ready_slots(slots: Words, token_word: int, first: int, limit: int) -> int:
    """Length of the run of rows with a matching token, starting at `first`."""
    rows = _rows(slots)
    indexes = range(first, first + min(limit, len(rows)))
    return len(list(takewhile(lambda index: rows[index % len(rows)][token_word] == index + 1, indexes)))


def load_words(words: Words, first: int, target: Words) -> None:
    """A plain copy."""
    target[:] = words[first : first + target.size]
