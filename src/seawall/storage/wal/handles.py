"""The list of files of a write-ahead log, and the open handles of those that were read.

A file is opened at the first read of a batch from it, and stays open until it is dropped. The writer decides which
files to drop. This module must not know epochs, nor what is durable.
"""

from __future__ import annotations

from bisect import bisect_right

from seawall.errors import InvalidInputError
from seawall.io.disk.files import remove_if_there
from seawall.io.interfaces import File, Files
from seawall.storage.preface import DATA_START
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.files import WalFile, open_to_read, wal_addresses, wal_path


class WalHandles:
    """The files of one log, by their first addresses."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        #: First addresses of all files, in order.
        self.starts = wal_addresses(files, directory)
        self._open: dict[WalAddress, File] = {}

    def add(self, current: WalFile) -> None:
        """Add the file that is written next; it replaces a file of the same address."""
        if self.starts and self.starts[-1] == current.first_at:
            self._close(current.first_at)
        else:
            self.starts.append(current.first_at)
        self._open[current.first_at] = current.file

    def locate(self, at: WalAddress, end_at: WalAddress) -> tuple[File, int]:
        """The file that holds an address, and the position there; the log ends at `end_at`."""
        index = bisect_right(self.starts, at) - 1
        if index < 0 or at >= end_at:
            first_at = self.starts[0] if self.starts else end_at
            raise InvalidInputError(f"WAL address {at} is not kept; kept are {first_at} up to {end_at}")
        first_at = self.starts[index]
        file = self._open.get(first_at)
        if file is None:
            file = self._open[first_at] = open_to_read(self._files, self._directory, first_at)
        return file, DATA_START + at - first_at

    def drop_oldest(self) -> None:
        """Remove the oldest file; that is durable once the directory is synced."""
        first_at = self.starts[0]
        self._close(first_at)
        remove_if_there(self._files, wal_path(self._directory, first_at))
        del self.starts[0]

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()

    def _close(self, first_at: WalAddress) -> None:
        file = self._open.pop(first_at, None)
        if file is not None:
            file.close()
