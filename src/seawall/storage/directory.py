"""The data directory: whose it is, that nobody else has it open, and that a delete still works when the disk is full.

    LOCK       locked while a process has the directory open; holds the pid of the last holder, as text
    FORMAT     a preface of kind DIRECTORY and nothing else; names the directory id that every file repeats
    BALLAST    reserved space, given back by `release_ballast`
    FABRIC     where the shared memory of the process that has the directory open is (`fabric/naming.py`)
    meta/      snapshots        wal/  the log        topics/  a directory of segments for each topic
               that ever had records

Creation: parents and sub-directories first, each name synced in its parent, the ballast, and FORMAT last, by atomic
replace. A directory with a FORMAT is whole; one without is empty or the rest of a creation that a crash cut short,
holds nothing anybody wrote, and is completed by the next open. A directory with anything else in it is refused,
untouched.

FORMAT is replaced once more when the log has its first file, before anything is acknowledged, and says so from then on
(`note_log_begun`). So a directory that lost its log, or all of its content, is not taken for a new one.

The lock is the operating system's and ends with its process, however that ends. The pid in LOCK is for people: it is
neither synced nor trusted.

Ballast: a full disk refuses the very deletes that would empty it, since a delete is a write. Its owner gives the
ballast back (`release_ballast`), writes, and takes it again when there is room (`restore_ballast`). A directory opens
without its ballast where the disk is full; it is not created without.
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

#: Names in a data directory that others ask for, too.
LOCK_NAME: Final = "LOCK"
FORMAT_NAME: Final = "FORMAT"
BALLAST_NAME: Final = "BALLAST"
_META: Final = "meta"
_WAL: Final = "wal"
_TOPICS: Final = "topics"
_SUBDIRECTORIES: Final = (_META, _WAL, _TOPICS)

#: Every name a data directory has.
DIRECTORY_NAMES: Final = frozenset({LOCK_NAME, FORMAT_NAME, BALLAST_NAME, RECORD_NAME, *_SUBDIRECTORIES})

#: What a creation that a crash cut short may have left behind.
_UNFINISHED: Final = DIRECTORY_NAMES - {FORMAT_NAME} | {FORMAT_NAME + REPLACEMENT_SUFFIX}

#: Bytes of the text in LOCK: a pid and blanks.
_PID_SIZE: Final = 20

#: What the preface of FORMAT has as its `first` once there is a log.
_LOG_BEGUN: Final = 1

_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class DataDirectory:
    """An open data directory. Made by `open_directory`; closing it lets the next process in."""

    __slots__ = ("_ballast_size", "_files", "_lock", "_preface", "directory_id", "has_ballast", "path")

    def __init__(self, files: Files, path: str, lock: File, preface: Preface, ballast_size: int) -> None:
        self._files = files
        self._lock = lock
        self._ballast_size = ballast_size
        self._preface = preface
        self.path = path
        self.directory_id = preface.directory_id
        #: Whether the ballast is there, as far as this process knows.
        self.has_ballast = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def format_path(self) -> str:
        """The file that makes it a data directory."""
        return f"{self.path}/{FORMAT_NAME}"

    @property
    def meta(self) -> str:
        """Where snapshots are."""
        return f"{self.path}/{_META}"

    @property
    def wal(self) -> str:
        """Where the files of the log are."""
        return f"{self.path}/{_WAL}"

    @property
    def topics(self) -> str:
        """Where the directories of the topics are."""
        return f"{self.path}/{_TOPICS}"

    def topic(self, topic_id: TopicId) -> str:
        """Where the segments of a topic are."""
        return f"{self.topics}/{topic_id:08x}"

    @property
    def log_has_begun(self) -> bool:
        """Whether there was a log once, as FORMAT says: then a directory without one has lost it."""
        return self._preface.first == _LOG_BEGUN

    def note_log_begun(self) -> None:
        """Have FORMAT say that there is a log, durably; once is enough.

        A full disk puts it off to the next opening that writes.
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
        """Give the reserved space back to the disk. Its name stays, so this needs no room for a change of names."""
        with _opened(self._files, f"{self.path}/{BALLAST_NAME}") as ballast:
            ballast.truncate(0)
            ballast.sync()
        self.has_ballast = False

    def restore_ballast(self) -> bool:
        """Reserve the space again if the disk has twice as much, so that it does not go to and fro.

        Returns whether the ballast is there now.
        """
        if not self.has_ballast and self._files.free_bytes(self.path) >= 2 * self._ballast_size:
            self.has_ballast = self._reserve_ballast()
        return self.has_ballast

    def close(self) -> None:
        """Give the lock back; closing twice is fine."""
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
    """Open a data directory and hold its lock; make it first where it is missing or empty, if `create` says so.

    Nothing but the text in LOCK is written in one that is there: whoever finds its content sound goes on with
    `restore_ballast`.

    `pid` is the caller's, for whoever finds the directory locked; `random_bytes` gives the id of a new directory.
    """
    path = path.rstrip("/") or path[:1] or "."
    with _explained(path):
        if not _is_made(files, path):
            if not create:
                raise NotFoundError(f"{path} is no data directory of Seawall; name one, or let it be created")
            _make_path(files, path)
        lock = _take_lock(files, path, pid)
        try:
            # Asked again, now under the lock: another process may have made it meanwhile.
            if _is_made(files, path):
                # Whoever made it may have been killed before its name was durable, and now somebody will rely on it.
                files.sync_directory(path)
                preface = read_format(files, path)
            else:
                directory_id = unique_id_bytes(unique_id_from(random_bytes(UNIQUE_ID_SIZE)))
                preface = _make_content(files, path, directory_id, now_ns, ballast_size)
            directory = DataDirectory(files, path, lock, preface, ballast_size)
            directory.has_ballast = _ballast_size(files, path) >= ballast_size
        except BaseException:
            lock.close()
            raise
    return directory


def _is_made(files: Files, path: str) -> bool:
    """Whether a directory is one of ours and whole; `InvalidInputError` if it belongs to somebody else."""
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


def _make_path(files: Files, path: str) -> None:
    """Make a directory and its missing parents, each one's name durable before the next is made inside it.

    The names of parents that are there are synced too: a process that was killed may have made them and not synced
    them. Where that is not permitted they are not of our making.
    """
    ancestors = [path]
    while (parent := parent_directory(ancestors[-1])) not in ancestors:
        ancestors.append(parent)
    for ancestor in reversed(ancestors[:-1]):
        if not files.exists(ancestor):
            _make_durable(files, ancestor)
        else:
            with suppress(PermissionError):
                files.sync_directory(parent_directory(ancestor))


def _make_durable(files: Files, path: str) -> None:
    """Make one directory if it is not there; its name is durable in either case."""
    files.make_directory(path)
    files.sync_directory(parent_directory(path))


def _make_content(files: Files, path: str, directory_id: bytes, now_ns: int, ballast_size: int) -> Preface:
    """Fill an empty directory, FORMAT last; what an earlier attempt left is used again."""
    for name in _SUBDIRECTORIES:
        files.make_directory(f"{path}/{name}")
    _write_ballast(files, path, ballast_size)
    # Durable before FORMAT says that they are there.
    files.sync_directory(path)
    preface = Preface(FileKind.DIRECTORY, directory_id, created_ns=now_ns)
    replace_file(files, f"{path}/{FORMAT_NAME}", preface.encode())
    return preface


def _write_ballast(files: Files, path: str, size: int) -> None:
    with _opened(files, f"{path}/{BALLAST_NAME}") as ballast:
        ballast.allocate(size)
        ballast.sync()


def _ballast_size(files: Files, path: str) -> int:
    """Bytes of the ballast that is there; nothing is made where there is none."""
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
        # Always the same length: a directory on a full disk must open without asking for space.
        write_all(lock, [str(pid).ljust(_PID_SIZE).encode()], 0)
    except BaseException:
        lock.close()
        raise
    return lock


def lock_holder(lock: File) -> str:
    """Who holds a lock, as far as its text can be read: it may be about to be written."""
    text = lock.read(_PID_SIZE, 0).strip()
    return f"process {text.decode()}" if text.isdigit() else "another process"


def read_format(files: Files, path: str) -> Preface:
    """What FORMAT says of a directory that is whole; `CorruptionError` if it is not."""
    name = f"{path}/{FORMAT_NAME}"
    file = files.open(name, read_only=True)
    try:
        preface = Preface.parse(file.read(DATA_START, 0), kind=FileKind.DIRECTORY, path=name)
        if file.size() != DATA_START:
            raise CorruptionError(f"{name}: {file.size()} bytes, must have {DATA_START}")
    except CorruptionError as error:
        raise type(error)(
            f"{error}; restore the file from a copy: without it nobody knows whose the other files are"
        ) from error
    finally:
        file.close()
    missing = [each for each in _SUBDIRECTORIES if not files.exists(f"{path}/{each}")]
    if missing:
        raise CorruptionError(f"{path}: {', '.join(missing)} is missing; restore the directory from a copy")
    return preface


@contextmanager
def _opened(files: Files, path: str) -> Iterator[File]:
    """A file that is made where it is missing, closed at the end."""
    file = files.open(path, create=True)
    try:
        yield file
    finally:
        file.close()


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Refusals of the operating system as errors that say what to do."""
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
