"""A data directory opened for looking at it: not a byte is changed.

An opening makes what is missing, writes its pid into the lock and restores the ballast. Whoever only reads must
leave all that as it is: it may be evidence, a copy, on a disk that cannot be written, or another process may be at it.

    open_for_reading   holds the lock: nobody changes what is read. For those who judge
    look_at            holds nothing: a writer may be at work. For those who can tell what moved (`engine/api/view.py`)

Both refuse what is no whole data directory.
"""

from __future__ import annotations

from seawall.errors import LockedError, NotFoundError
from seawall.io.interfaces import File, Files
from seawall.storage.directory import FORMAT_NAME, LOCK_NAME, DataDirectory, lock_holder, read_format

__all__ = ["look_at", "open_for_reading"]


def open_for_reading(files: Files, path: str) -> DataDirectory:
    """A data directory, its lock held; nothing in it is touched."""
    path = _whole_path(files, path)
    # A copy may lack the lock, and then nobody has it open.
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
    """A data directory, whoever has it open; nothing in it is touched, and nothing is held."""
    path = _whole_path(files, path)
    file = files.open(f"{path}/{FORMAT_NAME}", read_only=True)
    try:
        return _opened(files, path, file)
    except BaseException:
        file.close()
        raise


def _whole_path(files: Files, path: str) -> str:
    path = path.rstrip("/") or path[:1]
    if not files.exists(f"{path}/{FORMAT_NAME}"):
        raise NotFoundError(
            f"{path} is no data directory of Seawall: it has no {FORMAT_NAME}; name another, or restore that file if "
            "it is lost"
        )
    return path


def _opened(files: Files, path: str, held: File) -> DataDirectory:
    return DataDirectory(files, path, held, read_format(files, path), 0)
