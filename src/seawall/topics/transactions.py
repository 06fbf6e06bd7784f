"""The last transaction of every owner: a commit that is repeated gets the answer of the first, an older one none.

    key           an owner's text and an epoch, which rises from transaction to transaction of the owner
    remembered    the last epoch of an owner, with its position, its time, and the seqs its records got in each topic
    bounded       `TRANSACTION_OWNERS_MAX` owners; the one that committed longest ago is forgotten first

Which owner is forgotten follows from the order of commits alone, so replay and snapshots come to the same. An owner
that is forgotten can begin anywhere again; what it committed stays committed once, since a commit deletes what was
staged for it, at its position.

The remembered epoch of an owner never goes down. This module must not know what a transaction does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from seawall import limits
from seawall.core.transactions import CommittedTransaction
from seawall.errors import FencedError


class TransactionMemory:
    """What is remembered, the owner that committed last at the end."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, CommittedTransaction] = {}

    def __len__(self) -> int:
        """How many owners are remembered."""
        return len(self._last)

    def __iter__(self) -> Iterator[CommittedTransaction]:
        """The last transaction of each owner, the oldest first."""
        return iter(self._last.values())

    def last(self, owner: str) -> CommittedTransaction | None:
        """The last transaction of an owner; None if none is remembered."""
        return self._last.get(owner)

    def repeated(self, owner: str, epoch: int) -> CommittedTransaction | None:
        """What the transaction of a key became, if it was the owner's last; `FencedError` if that was a later one."""
        last = self._last.get(owner)
        if last is None or last.epoch < epoch:
            return None
        if last.epoch > epoch:
            raise FencedError(
                f"transaction {epoch} of {owner!r} comes too late: {last.epoch} was committed at position "
                f"{last.position}, and epochs of an owner rise; stop, or go on behind it"
            )
        return replace(last, is_repeated=True)

    def remember(self, committed: CommittedTransaction) -> None:
        """A transaction of the log, in its order."""
        before = self._last.pop(committed.owner, None)
        # A damaged log may have lost what was between.
        self._last[committed.owner] = committed if before is None or before.epoch <= committed.epoch else before
        while len(self._last) > limits.TRANSACTION_OWNERS_MAX:
            del self._last[next(iter(self._last))]
