"""File descriptors: how many this process may have, who may have how many of them, and what to do when they run out.

    raise_descriptor_limit()     at the start of a server: take what the system grants
    DescriptorBudget.of(…)       shares: connections, segment files, everything else
    is_exhausted(error)          whether the system refused a descriptor; then nothing was changed
    open_from_reserve(…)         for a short open without which a change could not be completed

Running out of descriptors is a refusal for a while and never a failure: whatever needs one asks before it changes
anything, or takes one that is kept in reserve.

The descriptors in reserve are lent for single short operations, one operation at a time.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

from seawall import limits
from seawall.errors import DescriptorsError

__all__ = [
    "MANY_DESCRIPTORS",
    "NO_DESCRIPTORS",
    "DescriptorBudget",
    "descriptor_limit",
    "is_exhausted",
    "no_descriptor",
    "open_from_reserve",
    "raise_descriptor_limit",
    "segment_file_share",
]

#: Codes of errors by which a system says that a process, or the machine, has no descriptor left.
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

#: What "any number" of descriptors counts as.
MANY_DESCRIPTORS: Final = 1 << 20


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that there was no descriptor left, in this process or on this machine."""
    return isinstance(error, OSError) and error.errno in NO_DESCRIPTORS


def no_descriptor(error: OSError, path: str) -> DescriptorsError:
    """What somebody is told for whom a file could not be opened because there is no descriptor left."""
    return DescriptorsError(
        f"{path}: no file descriptor is left to open it ({error.strerror}); try again, close connections, or raise "
        "the limit (ulimit -n)"
    )


def descriptor_limit() -> int:
    """Descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; how many this process may have then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where the system has a lower limit of its own (macOS), the soft one stays.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """How the descriptors of a server are shared out. The shares together never exceed the limit."""

    limit: int
    #: Connections that may be open at the same time; each counts `limits.CONNECTION_DESCRIPTORS`.
    connections: int
    #: Files of segments that are kept open.
    segment_files: int

    @classmethod
    def of(cls, limit: int, connections_wanted: int) -> Self:
        """The shares of a server under a limit: a part for segment files, the rest for connections, up to what is
        wanted."""
        shared = max(0, limit - limits.OTHER_DESCRIPTORS)
        segment_files = segment_file_share(limit)
        space = (shared - segment_files) // limits.CONNECTION_DESCRIPTORS - limits.CONNECTIONS_REFUSED_AT_ONCE
        return cls(limit, max(1, min(connections_wanted, space)), segment_files)

    def __str__(self) -> str:
        return (
            f"{self.connections} connections of {limits.CONNECTION_DESCRIPTORS} descriptors each, "
            f"{self.segment_files} segment files, {limits.OTHER_DESCRIPTORS} for everything else"
        )


def segment_file_share(limit: int) -> int:
    """Segment files that may be open at the same time in a process with so many descriptors."""
    share = max(0, limit - limits.OTHER_DESCRIPTORS) // limits.SEGMENT_FILES_PART
    return min(max(share, limits.SEGMENT_FILES_OPEN_MIN), limits.SEGMENT_FILES_OPEN_MAX)


class _Reserve:
    """Open descriptors that mean nothing, to be closed when a real one is needed and there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[int] = []

    def fill(self) -> None:
        """Take descriptors into the reserve, as many as it lacks and can be had."""
        with self._lock:
            self._fill()

    @contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """A file, opened in place of a descriptor of the reserve; closed at the end."""
        with self._lock:
            descriptor = self._open(path, flags)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
                self._fill()

    def _open(self, path: str, flags: int) -> int:
        while True:
            if self._kept:
                os.close(self._kept.pop())
            try:
                return os.open(path, flags)
            except OSError as error:
                # Another thread may take what was given up; the next one is tried then.
                if not is_exhausted(error) or not self._kept:
                    raise

    def _fill(self) -> None:
        with suppress(OSError):
            while len(self._kept) < limits.DESCRIPTORS_IN_RESERVE:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


_RESERVE: Final = _Reserve()


@contextmanager
def open_from_reserve(path: str, flags: int) -> Iterator[int]:
    """Open a file for one short operation, also where the system has no descriptor left; closed at the end."""
    _RESERVE.fill()
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if not is_exhausted(error):
            raise
        with _RESERVE.opened(path, flags) as lent:
            yield lent
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
