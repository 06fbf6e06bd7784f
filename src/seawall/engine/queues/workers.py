"""Numbers for the names of workers: lease views hold a number for each lease.

A worker is a digest of its name, 63 bits. The table gives each digest a small number. When it is full, it forgets the
workers that hold no lease. This module must not know leases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import count
from typing import Final

#: Names after which the table looks for those that hold no lease: a few megabytes.
_NAMES_MAX: Final = 50_000


class WorkerNumbers:
    """The numbers of the workers of one store."""

    def __init__(self, in_use: Callable[[], Iterable[int]]) -> None:
        """`in_use` returns the numbers that leases have."""
        self._in_use = in_use
        self._numbers: dict[int, int] = {}
        self._next = count(1)
        self._check_at = _NAMES_MAX

    def of(self, node: str) -> int:
        """The number of a worker."""
        return self.of_digest(digest_of(node))

    def of_digest(self, digest: int) -> int:
        """The number of the worker with a digest."""
        number = self._numbers.get(digest)
        if number is None:
            if len(self._numbers) >= self._check_at:
                held = set(self._in_use())
                self._numbers = {digest: number for digest, number in self._numbers.items() if number in held}
                self._check_at = len(self._numbers) + _NAMES_MAX
            number = self._numbers[digest] = next(self._next)
        return number


def digest_of(node: str) -> int:
    """The digest of a worker's name."""
    return int.from_bytes(blake2b(node.encode(), digest_size=8).digest(), "little") >> 1
