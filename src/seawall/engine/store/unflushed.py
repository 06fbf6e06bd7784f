"""The unflushed batches of a segment: the index entry of each, and its address in the log.

Batches get their segment positions in log order, so entries and addresses rise together. Flushes take the oldest
batches first: the front.

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

#: The address of an entry that is already flushed.
FLUSHED: Final = -1


class UnflushedBatches:
    """The unflushed batches of one segment. Sixteen bytes each: there may be hundreds of thousands."""

    __slots__ = ("_addresses", "_entries")

    def __init__(self, entries: Iterable[int] = (), addresses: Iterable[int] = ()) -> None:
        self._entries = array("q", entries)
        self._addresses = array("q", addresses)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: int, address: WalAddress) -> None:
        """Add one entry."""
        if self._entries and (entry <= self._entries[-1] or address <= self._addresses[-1]):
            raise InvariantError("INV-WAL-ORDER", f"entry {entry} at {address} is not above the last one")
        self._entries.append(entry)
        self._addresses.append(address)

    def extend(self, first_entry: int, addresses: npt.NDArray[np.unsignedinteger | np.signedinteger]) -> None:
        """Add consecutive entries from the first on."""
        if addresses.size:
            self.add(first_entry, WalAddress(int(addresses[0])))
            self._entries.extend(range(first_entry + 1, first_entry + addresses.size))
            self._addresses.frombytes(addresses[1:].astype(np.int64).tobytes())

    def append(self, other: UnflushedBatches, entries_before: int) -> None:
        """Add the unflushed batches of another segment, whose entries follow `entries_before` entries of this one."""
        for entry, address in zip(other._entries, other._addresses, strict=True):
            self.add(entries_before + entry, WalAddress(address))

    def drop(self, count: int) -> None:
        """Remove the oldest `count` batches, which are flushed."""
        del self._entries[:count]
        del self._addresses[:count]

    def copy(self) -> UnflushedBatches:
        """An independent copy."""
        return UnflushedBatches(self._entries, self._addresses)

    @property
    def entries(self) -> Numbers:
        """All entries, as a copy."""
        return np.array(self._entries, np.int64)

    @property
    def addresses(self) -> Numbers:
        """The address of each entry, as a copy."""
        return np.array(self._addresses, np.int64)

    def addresses_of(self, numbers: Sequence[int]) -> Numbers:
        """The log address of each of some entries; `FLUSHED` for an entry that is flushed."""
        wanted = np.asarray(numbers, np.int64)
        if not self._entries:
            return np.full(wanted.size, FLUSHED, np.int64)
        entries = np.frombuffer(self._entries, np.int64)
        near = np.minimum(np.searchsorted(entries, wanted), entries.size - 1)
        return np.where(entries[near] == wanted, np.frombuffer(self._addresses, np.int64)[near], FLUSHED)
