"""The write guard of a data directory: decides which failures change nothing, and which end all writing.

Every change of the directory runs inside a context of the one guard: `preparing` while nothing is promised yet,
`changing` once numbers are assigned and files written.

INV-STORE-FAILED: after a failed write or sync the store refuses every change with the reason, and reads go on. The
content of the disk is unknown until the directory is opened again.

This module must not know what is written. The state of a guard is in memory only; a crash loses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seawall.errors import CallerError, DiskFullError, ReadOnlyError, RetryableError
from seawall.io.disk.files import NO_SPACE
from seawall.io.process.descriptors import descriptors_error, is_exhausted


def refusal_of(error: BaseException) -> RetryableError | None:
    """The retryable error to raise if the system refused space or a descriptor; None for any other error.

    Valid only for failures before anything was promised: then nothing has changed.
    """
    if not isinstance(error, OSError):
        return None
    if error.errno in NO_SPACE:
        return DiskFullError(f"{error.filename}: the disk is full; free some space on it")
    return descriptors_error(error, error.filename) if is_exhausted(error) else None


class WriteGuard:
    """Allows changes to one data directory until the first failure."""

    __slots__ = ("_path", "failure", "on_failed")

    def __init__(self, path: str) -> None:
        self._path = path
        #: The failure that ended all writing; None before one.
        self.failure: BaseException | None = None
        #: Called once with that failure, on the thread that hit it.
        self.on_failed: Callable[[BaseException], None] | None = None

    @property
    def is_failed(self) -> bool:
        """True after a failure: nothing may change any more."""
        return self.failure is not None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A context in which numbers are assigned and files written: any failure ends all writing."""
        try:
            yield
        except BaseException as error:
            self.refuse(error)
            raise

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """A context in which no numbers are assigned: the caller may retry after a refusal, even by a full disk."""
        try:
            yield
        except (CallerError, RetryableError):
            raise
        except BaseException as error:
            refusal = refusal_of(error)
            if refusal is not None:
                raise refusal from error
            self.refuse(error)
            raise

    def require_usable(self) -> None:
        """Raise `ReadOnlyError` after a failure: INV-STORE-FAILED."""
        if self.failure is not None:
            raise ReadOnlyError(
                f"{self._path} is read-only: an earlier change failed ({self.failure}); close it and open it again"
            ) from self.failure

    def refuse(self, error: BaseException) -> None:
        """Refuse every change from now on (INV-STORE-FAILED). The first failure is kept as the reason."""
        if self.failure is None:
            self.failure = error
            if self.on_failed is not None:
                self.on_failed(error)
