"""Fresh jobs as a plain set of seqs: `view` is a `Queue` of `twins.queues.leases` instead of the kernel's record."""

from __future__ import annotations

from typing import Protocol


class HasFresh(Protocol):
    """Something with a set of fresh seqs."""

    fresh: set[int]


def add_fresh(view: HasFresh, first: int, end: int) -> None:
    """Add all seqs of a range."""
    view.fresh |= set(range(first, end))


def remove_fresh(view: HasFresh, first: int, end: int) -> None:
    """Remove all seqs of a range."""
    view.fresh -= set(range(first, end))


def first_fresh(view: HasFresh) -> int:
    """The lowest seq, or 0."""
    return min(view.fresh, default=0)
