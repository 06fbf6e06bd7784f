"""Remembers the last transaction of every owner: a repeated commit gets the first result, an older one is refused.

    key           the text of an owner and an epoch, which rises with each transaction of the owner
    remembered    the last epoch of an owner, with its position, its time, and the seqs of its records in each topic
    limit         `TRANSACTION_OWNERS_MAX` owners; the one with the oldest commit is forgotten first

Only the order of commits decides which owner is forgotten, so replay and snapshots give the same state. A forgotten
owner may start at any epoch again. What it committed is still committed once, since a commit deletes the staged
records, at its position.

The remembered epoch of an owner never goes down. This module must not know what a transaction does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from seawall import limits
from seawall.core.transactions import CommittedTransaction
from seawall.errors import FencedError


class TransactionMemory:
    """The remembered transactions, the most recent commit last."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, CommittedTransaction] = {}

    def __len__(self) -> int:
        """The number of remembered owners."""
        return len(self._last)

    def __iter__(self) -> Iterator[CommittedTransaction]:
        """The last transaction of each owner, oldest first."""
        return iter(self._last.values())

    def last(self, owner: str) -> CommittedTransaction | None:
        """The last transaction of an owner, or None."""
        return self._last.get(owner)

    def repeated(self, owner: str, epoch: int) -> CommittedTransaction | None:
        """The result of a transaction if it was the owner's last; `FencedError` if a later one was committed."""
        last = self._last.get(owner)
        if last is None or last.epoch < epoch:
            return None
        if last.epoch > epoch:
            raise FencedError(
                f"transaction {epoch} of {owner!r} comes too late: {last.epoch} was committed at position "
                f"{last.position}, and epochs of an owner rise; stop, or continue after it"
            )
        return replace(last, is_repeated=True)

    def remember(self, committed: CommittedTransaction) -> None:
        """Remember a logged transaction; calls are in log order."""
        before = self._last.pop(committed.owner, None)
        # In a damaged log the epoch may be lower than a remembered one.
        self._last[committed.owner] = committed if before is None or before.epoch <= committed.epoch else before
        while len(self._last) > limits.TRANSACTION_OWNERS_MAX:
            del self._last[next(iter(self._last))]
