"""Creates, opens and locks a data directory, and keeps ballast so that deletes still work on a full disk.

    LOCK       locked while a process has the directory open; holds the pid of the last holder, as text
    FORMAT     a preface of kind DIRECTORY and nothing else; names the directory id that every file repeats
    BALLAST    reserved space; `release_ballast` frees it
    FABRIC     the path of the shared memory of the process that has the directory open (`fabric/naming.py`)
    meta/      snapshots        wal/  the log        topics/  a directory of segments for each topic
               that ever had records

Creation: parents and sub-directories first, each name synced in its parent, then the ballast, and FORMAT last, by an
atomic replace. A directory with a FORMAT is complete. One without is empty, or a crash interrupted its creation; it
holds no data, and the next open completes it. A directory with anything else in it is refused and left unchanged.

FORMAT is replaced once more when the log has its first file, before anything is acknowledged; from then on it says that
a log exists (`note_log_begun`). So a directory that lost its log, or all of its content, is not mistaken for a new one.

The lock is an advisory lock of the operating system and ends with its process, however that ends. The pid in LOCK is
for people: it is neither synced nor trusted.

Ballast: a full disk refuses the very deletes that would free space, since a delete is a write. The engine releases the
ballast (`release_ballast`), writes, and reserves it again when there is space (`restore_ballast`). An existing
directory opens without ballast if the disk is full; a new one is not created without it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from seawall import limits
from seawall.core.identifiers import UNIQUE_ID_SIZE, unique_id_bytes, unique_id_from
from seawall.core.types import TopicId
from seawall.errors import CorruptionError, DiskFullError, InvalidInputError, LockedError, NotFoundError
from seawall.fabric.naming import RECORD_NAME
from seawall.io.disk.files import NO_SPACE, REPLACEMENT_SUFFIX, parent_directory, replace_file, write_all
from seawall.io.interfaces import File, Files
from seawall.storage.preface import DATA_START, FileKind, Preface

#: Names in a data directory that other modules use too.
LOCK_NAME: Final = "LOCK"
FORMAT_NAME: Final = "FORMAT"
BALLAST_NAME: Final = "BALLAST"
_META: Final = "meta"
_WAL: Final = "wal"
_TOPICS: Final = "topics"
_SUBDIRECTORIES: Final = (_META, _WAL, _TOPICS)

#: Every name that a data directory may contain.
DIRECTORY_NAMES: Final = frozenset({LOCK_NAME, FORMAT_NAME, BALLAST_NAME, RECORD_NAME, *_SUBDIRECTORIES})

#: Names that an interrupted creation may leave behind.
_UNFINISHED: Final = DIRECTORY_NAMES - {FORMAT_NAME} | {FORMAT_NAME + REPLACEMENT_SUFFIX}

#: Length of the text in LOCK: a pid and blanks.
_PID_SIZE: Final = 20

#: The field `first` in the preface of FORMAT once there is a log.
_LOG_BEGUN: Final = 1

_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class DataDirectory:
    """An open data directory. Made by `open_directory`; closing it releases the lock."""

    __slots__ = ("_ballast_size", "_files", "_lock", "_preface", "directory_id", "has_ballast", "path")

    def __init__(self, files: Files, path: str, lock: File, preface: Preface, ballast_size: int) -> None:
        self._files = files
        self._lock = lock
        self._ballast_size = ballast_size
        self._preface = preface
        self.path = path
        self.directory_id = preface.directory_id
        #: True if the ballast is reserved, as far as this process knows.
        self.has_ballast = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def format_path(self) -> str:
        """Path of FORMAT, the file that makes it a data directory."""
        return f"{self.path}/{FORMAT_NAME}"

    @property
    def meta(self) -> str:
        """The directory of snapshots."""
        return f"{self.path}/{_META}"

    @property
    def wal(self) -> str:
        """The directory of the log."""
        return f"{self.path}/{_WAL}"

    @property
    def topics(self) -> str:
        """The parent of the topic directories."""
        return f"{self.path}/{_TOPICS}"

    def topic(self, topic_id: TopicId) -> str:
        """The directory with the segments of a topic."""
        return f"{self.topics}/{topic_id:08x}"

    @property
    def log_has_begun(self) -> bool:
        """True if FORMAT says that a log exists; if it is missing then, it was lost."""
        return self._preface.first == _LOG_BEGUN

    def note_log_begun(self) -> None:
        """Record durably in FORMAT that a log exists; does nothing if it already does.

        On a full disk it does nothing; the next open for writing tries again.
        """
        if self.log_has_begun:
            return
        preface = replace(self._preface, first=_LOG_BEGUN)
        try:
            replace_file(self._files, self.format_path, preface.encode())
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        else:
            self._preface = preface

    def release_ballast(self) -> None:
        """Free the reserved space. The file keeps its name, so this needs no space for a directory change."""
        with _opened(self._files, f"{self.path}/{BALLAST_NAME}") as ballast:
            ballast.truncate(0)
            ballast.sync()
        self.has_ballast = False

    def restore_ballast(self) -> bool:
        """Reserve the ballast again if the disk has twice that space, which avoids repeated release and restore.

        Returns true if the ballast is reserved now.
        """
        if not self.has_ballast and self._files.free_bytes(self.path) >= 2 * self._ballast_size:
            self.has_ballast = self._reserve_ballast()
        return self.has_ballast

    def close(self) -> None:
        """Release the lock; closing twice is fine."""
        self._lock.close()

    def _reserve_ballast(self) -> bool:
        try:
            _write_ballast(self._files, self.path, self._ballast_size)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        return True


def open_directory(
    files: Files,
    path: str,
    *,
    pid: int,
    now_ns: int,
    random_bytes: Callable[[int], bytes],
    create: bool = True,
    ballast_size: int = limits.BALLAST_SIZE,
) -> DataDirectory:
    """Open a data directory and take its lock; with `create`, create it if it is missing or empty.

    In an existing directory this writes only the text in LOCK; the caller checks the content and then calls
    `restore_ballast`.

    `pid` is the caller's; another process that finds the directory locked reports it. `random_bytes` draws the id of a
    new directory.
    """
    path = path.rstrip("/") or path[:1] or "."
    with _explained(path):
        if not _is_complete(files, path):
            if not create:
                raise NotFoundError(f"{path} is no data directory of Seawall; name one, or let it be created")
            _create_path(files, path)
        lock = _take_lock(files, path, pid)
        try:
            # Check again under the lock: another process may have created it meanwhile.
            if _is_complete(files, path):
                # Its creator may have been killed before the name was durable; from now on data depends on it.
                files.sync_directory(path)
                preface = read_format(files, path)
            else:
                directory_id = unique_id_bytes(unique_id_from(random_bytes(UNIQUE_ID_SIZE)))
                preface = _create_content(files, path, directory_id, now_ns, ballast_size)
            directory = DataDirectory(files, path, lock, preface, ballast_size)
            directory.has_ballast = _ballast_size(files, path) >= ballast_size
        except BaseException:
            lock.close()
            raise
    return directory


def _is_complete(files: Files, path: str) -> bool:
    """True if a path is a complete data directory; `InvalidInputError` if it holds foreign files."""
    if not files.exists(path):
        return False
    names = files.list(path)
    if FORMAT_NAME in names:
        return True
    foreign = [name for name in names if name not in _UNFINISHED]
    for name in _SUBDIRECTORIES:
        if name in names:
            foreign += (f"{name}/{inner}" for inner in files.list(f"{path}/{name}"))
    if foreign:
        raise InvalidInputError(
            f"{path} is not empty and has no {FORMAT_NAME}: {', '.join(foreign[:3])}{' …' if foreign[3:] else ''}. It "
            f"is not a data directory of Seawall, or its {FORMAT_NAME} is lost; name another directory, or restore "
            "that file"
        )
    return False


def _create_path(files: Files, path: str) -> None:
    """Create a directory and its missing parents; each name is durable before the next one is created inside it.

    This also syncs the names of existing parents: a killed process may have created them without a sync. Parents that
    this process may not sync were not created by Seawall.
    """
    ancestors = [path]
    while (parent := parent_directory(ancestors[-1])) not in ancestors:
        ancestors.append(parent)
    for ancestor in reversed(ancestors[:-1]):
        if not files.exists(ancestor):
            _create_durably(files, ancestor)
        else:
            with suppress(PermissionError):
                files.sync_directory(parent_directory(ancestor))


def _create_durably(files: Files, path: str) -> None:
    """Create one directory if it is missing; its name is durable in either case."""
    files.make_directory(path)
    files.sync_directory(parent_directory(path))


def _create_content(files: Files, path: str, directory_id: bytes, now_ns: int, ballast_size: int) -> Preface:
    """Fill an empty directory, FORMAT last; reuses the files of an interrupted attempt."""
    for name in _SUBDIRECTORIES:
        files.make_directory(f"{path}/{name}")
    _write_ballast(files, path, ballast_size)
    # The names must be durable before FORMAT says that the directory is complete.
    files.sync_directory(path)
    preface = Preface(FileKind.DIRECTORY, directory_id, created_ns=now_ns)
    replace_file(files, f"{path}/{FORMAT_NAME}", preface.encode())
    return preface


def _write_ballast(files: Files, path: str, size: int) -> None:
    with _opened(files, f"{path}/{BALLAST_NAME}") as ballast:
        ballast.allocate(size)
        ballast.sync()


def _ballast_size(files: Files, path: str) -> int:
    """Size of the ballast; 0 if it does not exist."""
    name = f"{path}/{BALLAST_NAME}"
    if not files.exists(name):
        return 0
    ballast = files.open(name, read_only=True)
    try:
        return ballast.size()
    finally:
        ballast.close()


def _take_lock(files: Files, path: str, pid: int) -> File:
    lock = files.open(f"{path}/{LOCK_NAME}", create=True)
    try:
        if not lock.try_lock():
            raise LockedError(
                f"{path} is in use by {lock_holder(lock)}: a data directory is open in one process at a time; stop "
                "that one, or name another directory"
            )
        # Always the same length: opening a directory on a full disk must need no space.
        write_all(lock, [str(pid).ljust(_PID_SIZE).encode()], 0)
    except BaseException:
        lock.close()
        raise
    return lock


def lock_holder(lock: File) -> str:
    """Describe the holder of a lock; its text may not be written yet."""
    text = lock.read(_PID_SIZE, 0).strip()
    return f"process {text.decode()}" if text.isdigit() else "another process"


def read_format(files: Files, path: str) -> Preface:
    """The preface in FORMAT; `CorruptionError` if it is damaged or the directory is incomplete."""
    name = f"{path}/{FORMAT_NAME}"
    file = files.open(name, read_only=True)
    try:
        preface = Preface.parse(file.read(DATA_START, 0), kind=FileKind.DIRECTORY, path=name)
        if file.size() != DATA_START:
            raise CorruptionError(f"{name}: {file.size()} bytes, must have {DATA_START}")
    except CorruptionError as error:
        raise type(error)(
            f"{error}; restore the file from a copy: without it the owner of the other files is unknown"
        ) from error
    finally:
        file.close()
    missing = [each for each in _SUBDIRECTORIES if not files.exists(f"{path}/{each}")]
    if missing:
        raise CorruptionError(f"{path}: {', '.join(missing)} is missing; restore the directory from a copy")
    return preface


@contextmanager
def _opened(files: Files, path: str) -> Iterator[File]:
    """Open a file, creating it if it is missing; close it at the end."""
    file = files.open(path, create=True)
    try:
        yield file
    finally:
        file.close()


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Translate refusals of the operating system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFullError(f"{path}: the disk is full; free some space on it") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            raise InvalidInputError(f"{path}: {error.filename} is a file, not a directory; name another") from error
        if error.errno in _READ_ONLY:
            raise InvalidInputError(
                f"{path} cannot be written ({error.strerror}: {error.filename}): a data directory needs a file system "
                "that is not read-only, and permission to write; correct that, or name another directory"
            ) from error
        raise
