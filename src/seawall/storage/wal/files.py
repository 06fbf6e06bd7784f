"""The files of a write-ahead log: their names, prefaces and lengths.

    wal-<first_at:020d>.wal   epochs from address first_at on; address a is at position DATA_START + a − first_at
    wal-next.preparing        space for the next file; not part of the log until it is renamed. Debris after a crash

A file covers addresses from its first_at up to the first_at of the next. It gets its name only when everything before
first_at is durable and its preface is too. So a name proves that all earlier addresses were synced, and a named file
without a valid preface is damage. The space of a file is reserved before it gets its name, and its preface states how
much that is: a shorter file was truncated. This module ignores other names in the directory.

This module must not know epochs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.errors import CorruptionError, DiskFullError, FatalError
from seawall.io.disk.files import NO_SPACE, write_all
from seawall.io.interfaces import File, Files
from seawall.io.process.descriptors import descriptors_error, is_exhausted
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.wal.epochs import WalAddress

#: Name of the preallocated next file.
PREALLOCATED_NAME: Final = "wal-next.preparing"

_NAME: Final = re.compile(r"wal-([0-9]{20})\.wal")


@dataclass(frozen=True, slots=True)
class WalEnd:
    """The end of a log, from which the next epoch continues.

    `epoch` is the number of the last epoch (0 before the first), `position` the next position, `clean` whether the last
    epoch is a clean close with nothing after it, `synced_through` the address below which all is known to be durable,
    `timestamp_ns` that of the last epoch.
    """

    at: WalAddress
    epoch: LaneEpoch
    position: Position
    clean: bool
    synced_through: WalAddress
    timestamp_ns: TimestampNs


@dataclass(frozen=True, slots=True)
class WalFile:
    """One open file of the log."""

    file: File
    first_at: WalAddress
    salt: int
    size: int
    #: Bytes that were reserved for it when it was created.
    reserved_size: int

    @property
    def is_cut(self) -> bool:
        """True if bytes are missing at its end."""
        return self.size < self.reserved_size

    @property
    def limit_at(self) -> WalAddress:
        """The address after its last byte."""
        return WalAddress(self.first_at + self.size - DATA_START)

    def file_position(self, at: WalAddress) -> int:
        """The position of an address in the file."""
        return DATA_START + at - self.first_at


def wal_path(directory: str, first_at: WalAddress) -> str:
    """The path of the file that begins at this address."""
    return f"{directory}/wal-{first_at:020d}.wal"


def preallocated_path(directory: str) -> str:
    """The path of the preallocated next file."""
    return f"{directory}/{PREALLOCATED_NAME}"


def wal_addresses(files: Files, directory: str) -> list[WalAddress]:
    """First addresses of all log files, in order."""
    matches = (_NAME.fullmatch(name) for name in files.list(directory))
    return sorted(WalAddress(int(match[1])) for match in matches if match)


def open_wal_file(
    files: Files, directory: str, first_at: WalAddress, directory_id: bytes, *, read_only: bool
) -> WalFile:
    """Open a log file; `CorruptionError` if its preface is damaged or does not match its name."""
    path = wal_path(directory, first_at)
    file = files.open(path, read_only=read_only)
    try:
        preface = Preface.parse(file.read(DATA_START, 0), kind=FileKind.WAL, directory_id=directory_id, path=path)
        if preface.first != first_at:
            raise CorruptionError(f"{path}: its preface says that it begins at address {preface.first}")
        return WalFile(file, first_at, preface.salt, file.size(), preface.size)
    except BaseException:
        file.close()
        raise


def open_to_read(files: Files, directory: str, first_at: WalAddress) -> File:
    """Open a log file for reading; `DescriptorsError` if there is no descriptor for it."""
    path = wal_path(directory, first_at)
    try:
        return files.open(path, read_only=True)
    except OSError as error:
        if not is_exhausted(error):
            raise
        raise descriptors_error(error, path) from error


def preallocate_file(files: Files, directory: str, size: int) -> File:
    """Create the preallocated next file; its space is reserved but not durable. `DiskFullError` if there is none."""
    path = preallocated_path(directory)
    if files.exists(path):
        files.unlink(path)
    try:
        preallocated = files.open(path, exclusive=True)
        try:
            preallocated.allocate(size)
        except OSError:
            preallocated.close()
            files.unlink(path)
            raise
    except OSError as error:
        if is_exhausted(error):
            raise descriptors_error(error, path) from error
        if error.errno not in NO_SPACE:
            raise
        raise DiskFullError(
            f"{directory}: no space for another WAL file of {size} bytes; "
            "free space, or let a checkpoint drop old files"
        ) from error
    return preallocated


def activate_file(files: Files, directory: str, preallocated: File, preface: Preface) -> WalFile:
    """Turn the preallocated file into the log file that the preface describes; everything before it must be durable."""
    first_at = WalAddress(preface.first)
    path = wal_path(directory, first_at)
    try:
        write_all(preallocated, [preface.encode()], 0)
        preallocated.sync()
        files.rename(preallocated_path(directory), path)
        files.sync_directory(directory)
    except OSError as error:
        raise FatalError(f"{path}: beginning a WAL file failed ({error.strerror}); stop and recover") from error
    try:
        # Open it again, so that messages about it use its new name.
        file = files.open(path)
    except OSError as error:
        if not is_exhausted(error):
            raise FatalError(f"{path}: opening a new WAL file failed ({error.strerror}); stop and recover") from error
        file = preallocated
    else:
        preallocated.close()
    return WalFile(file, first_at, preface.salt, preface.size, preface.size)
