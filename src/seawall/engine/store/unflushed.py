"""Batches of a segment that lie in the log only: which entries of its index they are, and at which address each.

Batches get their places in the order of the log, so entries and addresses rise together, and what is brought to its
place first is what has waited longest: the front.

Each entry, and each address, is above the one before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.errors import InvariantError
from seawall.storage.wal.epochs import WalAddress

Numbers: TypeAlias = npt.NDArray[np.int64]

#: The address of an entry that does not wait.
IN_PLACE: Final = -1


class Waiting:
    """What waits for one segment. Sixteen bytes each: there may be hundreds of thousands."""

    __slots__ = ("_addresses", "_entries")

    def __init__(self, entries: Iterable[int] = (), addresses: Iterable[int] = ()) -> None:
        self._entries = array("q", entries)
        self._addresses = array("q", addresses)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: int, address: WalAddress) -> None:
        """One more."""
        if self._entries and (entry <= self._entries[-1] or address <= self._addresses[-1]):
            raise InvariantError("INV-WAL-ORDER", f"entry {entry} at {address} comes too late")
        self._entries.append(entry)
        self._addresses.append(address)

    def extend(self, first_entry: int, addresses: npt.NDArray[np.unsignedinteger | np.signedinteger]) -> None:
        """Some more: a row of entries from the first on."""
        if addresses.size:
            self.add(first_entry, WalAddress(int(addresses[0])))
            self._entries.extend(range(first_entry + 1, first_entry + addresses.size))
            self._addresses.frombytes(addresses[1:].astype(np.int64).tobytes())

    def append(self, other: Waiting, behind: int) -> None:
        """All that waits for another segment, whose entries come behind so many of this one."""
        for entry, address in zip(other._entries, other._addresses, strict=True):
            self.add(behind + entry, WalAddress(address))

    def drop(self, count: int) -> None:
        """So many at the front wait no more."""
        del self._entries[:count]
        del self._addresses[:count]

    def copy(self) -> Waiting:
        """The same, to be changed apart."""
        return Waiting(self._entries, self._addresses)

    @property
    def entries(self) -> Numbers:
        """All entries, as a copy."""
        return np.array(self._entries, np.int64)

    @property
    def addresses(self) -> Numbers:
        """Their addresses, as a copy."""
        return np.array(self._addresses, np.int64)

    def addresses_of(self, numbers: Sequence[int]) -> Numbers:
        """Where in the log each of some entries is; `IN_PLACE` where it does not wait."""
        wanted = np.asarray(numbers, np.int64)
        if not self._entries:
            return np.full(wanted.size, IN_PLACE, np.int64)
        entries = np.frombuffer(self._entries, np.int64)
        near = np.minimum(np.searchsorted(entries, wanted), entries.size - 1)
        return np.where(entries[near] == wanted, np.frombuffer(self._addresses, np.int64)[near], IN_PLACE)
