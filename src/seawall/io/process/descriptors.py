"""File descriptors: the limit of this process, how the server divides it, and what happens when they run out.

    raise_descriptor_limit()     at the start of a server: raise the soft limit to the hard one
    DescriptorBudget.of(…)       the parts for connections, segment files and everything else
    is_exhausted(error)          true if the system refused a descriptor; nothing was changed then
    open_from_reserve(…)         a short open that is needed to complete a change

Running out of descriptors is a temporary refusal, never a failure: code opens its descriptor before it changes
anything, or uses one of the reserve.

The reserve serves single short operations, one at a time.
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
    "descriptors_error",
    "is_exhausted",
    "open_from_reserve",
    "raise_descriptor_limit",
    "segment_file_limit",
]

#: Error codes for a process, or a machine, without a free descriptor.
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

#: The number that stands for an unlimited number of descriptors.
MANY_DESCRIPTORS: Final = 1 << 20


def is_exhausted(error: BaseException) -> bool:
    """True if an error means that this process or this machine has no descriptor left."""
    return isinstance(error, OSError) and error.errno in NO_DESCRIPTORS


def descriptors_error(error: OSError, path: str) -> DescriptorsError:
    """The error to raise when a file cannot be opened because no descriptor is left."""
    return DescriptorsError(
        f"{path}: no file descriptor is left to open it ({error.strerror}); try again, close connections, or raise "
        "the limit (ulimit -n)"
    )


def descriptor_limit() -> int:
    """The number of descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where the system has a lower limit of its own (macOS), the soft one stays.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """How a server divides its descriptors. The parts together never exceed the limit."""

    limit: int
    #: Connections that may be open at the same time; each counts `limits.CONNECTION_DESCRIPTORS`.
    connections: int
    #: Segment files that may stay open.
    segment_files: int

    @classmethod
    def of(cls, limit: int, connections_wanted: int) -> Self:
        """Divide a limit: a part for segment files, the rest for connections, at most `connections_wanted`."""
        available = max(0, limit - limits.OTHER_DESCRIPTORS)
        segment_files = segment_file_limit(limit)
        affordable = (available - segment_files) // limits.CONNECTION_DESCRIPTORS - limits.CONNECTIONS_REFUSED_AT_ONCE
        return cls(limit, max(1, min(connections_wanted, affordable)), segment_files)

    def __str__(self) -> str:
        return (
            f"{self.connections} connections of {limits.CONNECTION_DESCRIPTORS} descriptors each, "
            f"{self.segment_files} segment files, {limits.OTHER_DESCRIPTORS} for everything else"
        )


def segment_file_limit(limit: int) -> int:
    """Segment files that may be open at the same time in a process with this descriptor limit."""
    part = max(0, limit - limits.OTHER_DESCRIPTORS) // limits.SEGMENT_FILES_PART
    return min(max(part, limits.SEGMENT_FILES_OPEN_MIN), limits.SEGMENT_FILES_OPEN_MAX)


class _Reserve:
    """Placeholder descriptors; one is closed when a real descriptor is needed and none is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[int] = []

    def fill(self) -> None:
        """Open placeholders until the reserve is full or the system refuses."""
        with self._lock:
            self._fill()

    @contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """Open a file in place of a descriptor of the reserve; close it at the end."""
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
                # Another thread may have taken the freed descriptor; try the next one.
                if not is_exhausted(error) or not self._kept:
                    raise

    def _fill(self) -> None:
        with suppress(OSError):
            while len(self._kept) < limits.DESCRIPTORS_IN_RESERVE:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


_RESERVE: Final = _Reserve()


@contextmanager
def open_from_reserve(path: str, flags: int) -> Iterator[int]:
    """Open a file for one short operation, even if no descriptor is left; close it at the end."""
    _RESERVE.fill()
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if not is_exhausted(error):
            raise
        with _RESERVE.opened(path, flags) as reserved:
            yield reserved
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
