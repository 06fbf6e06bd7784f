"""Opens a data directory read-only: it changes not a byte.

A normal open creates missing parts, writes its pid into the lock and restores the ballast. A reader must do none of
that: the directory may be evidence, a copy, on a read-only disk, or open in another process.

    open_for_reading   takes the lock, so the content cannot change; for verification
    look_at            takes no lock, so a writer may be active; for readers that handle concurrent changes
                       (`engine/api/view.py`)

Both refuse a path that is not a complete data directory.
"""

from __future__ import annotations

from seawall.errors import LockedError, NotFoundError
from seawall.io.interfaces import File, Files
from seawall.storage.directory import FORMAT_NAME, LOCK_NAME, DataDirectory, lock_holder, read_format

__all__ = ["look_at", "open_for_reading"]


def open_for_reading(files: Files, path: str) -> DataDirectory:
    """Open a data directory read-only and take its lock."""
    path = _complete_path(files, path)
    # A copy may lack the LOCK file; then no process has it open.
    name = LOCK_NAME if files.exists(f"{path}/{LOCK_NAME}") else FORMAT_NAME
    lock = files.open(f"{path}/{name}", read_only=True)
    try:
        if not lock.try_lock():
            raise LockedError(f"{path} is in use by {lock_holder(lock)}; stop that one, or verify a copy")
        return _opened(files, path, lock)
    except BaseException:
        lock.close()
        raise


def look_at(files: Files, path: str) -> DataDirectory:
    """Open a data directory read-only without a lock, even if another process has it open."""
    path = _complete_path(files, path)
    file = files.open(f"{path}/{FORMAT_NAME}", read_only=True)
    try:
        return _opened(files, path, file)
    except BaseException:
        file.close()
        raise


def _complete_path(files: Files, path: str) -> str:
    path = path.rstrip("/") or path[:1]
    if not files.exists(f"{path}/{FORMAT_NAME}"):
        raise NotFoundError(
            f"{path} is no data directory of Seawall: it has no {FORMAT_NAME}; name another, or restore that file if "
            "it is lost"
        )
    return path


def _opened(files: Files, path: str, held: File) -> DataDirectory:
    return DataDirectory(files, path, held, read_format(files, path), 0)
