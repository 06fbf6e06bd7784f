"""A data directory opened for looking at it: the lock is held, and not a byte is changed.

`open_directory` makes what is missing, writes its pid into the lock and restores the ballast. Whoever only reads must
leave all that as it is: it may be evidence, a copy, or on a disk that cannot be written.
"""

from __future__ import annotations

from seawall.errors import CorruptionError, LockedError, NotFoundError
from seawall.io.interfaces import Files
from seawall.storage.directory import DataDirectory
from seawall.storage.preface import DATA_START, FileKind, Preface

__all__ = ["open_for_reading"]


def open_for_reading(files: Files, path: str) -> DataDirectory:
    """A data directory, its lock held; nothing in it is touched."""
    path = path.rstrip("/") or path[:1]
    format_path, lock_path = f"{path}/FORMAT", f"{path}/LOCK"
    if not files.exists(format_path):
        raise NotFoundError(f"{path} is no data directory of Seawall: it has no FORMAT; name another")
    # A copy may lack the lock, and then nobody has it open.
    lock = files.open(lock_path if files.exists(lock_path) else format_path, read_only=True)
    try:
        if not lock.try_lock():
            raise LockedError(f"{path} is in use by another process; stop that one, or verify a copy")
        file = files.open(format_path, read_only=True)
        try:
            preface = Preface.parse(file.read(DATA_START, 0), kind=FileKind.DIRECTORY, path=format_path)
        except CorruptionError as error:
            raise CorruptionError(
                f"{error}; restore the file from a copy: without it nothing else can be judged"
            ) from error
        finally:
            file.close()
        directory = DataDirectory(files, path, lock, preface.directory_id, 0)
        for needed in (directory.meta, directory.wal, directory.topics):
            if not files.exists(needed):
                raise CorruptionError(f"{needed} is missing; restore the directory from a copy")
    except BaseException:
        lock.close()
        raise
    return directory
