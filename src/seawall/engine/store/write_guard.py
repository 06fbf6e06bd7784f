"""The guard of a data directory: which failures leave everything as it was, and which end all writing.

Whoever changes the directory does it inside a stretch of the one guard: `preparing` where nothing is promised yet,
`changing` where numbers are given and files written.

INV-STORE-FAILED: after a failed write or sync the store refuses every change with the reason, and reads go on. What the
disk holds is unknown until it is opened again.

This module must not know what is written. A crash takes the state of a guard with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seawall.errors import CallerError, DiskFullError, ReadOnlyError, RetryableError
from seawall.io.disk.files import NO_SPACE
from seawall.io.process.descriptors import is_exhausted, no_descriptor


def refusal_of(error: BaseException) -> RetryableError | None:
    """The error to report if the system has refused space or a descriptor; None for all other errors.

    Only for what happened before anything was promised: then nothing was changed.
    """
    if not isinstance(error, OSError):
        return None
    if error.errno in NO_SPACE:
        return DiskFullError(f"{error.filename}: the disk is full; free some space on it")
    return no_descriptor(error, error.filename) if is_exhausted(error) else None


class WriteGuard:
    """Lets one data directory be changed as long as nothing has failed."""

    __slots__ = ("_path", "failure", "on_failed")

    def __init__(self, path: str) -> None:
        self._path = path
        #: The failure that ended the writing; None while there was none.
        self.failure: BaseException | None = None
        #: Called once, by whoever finds it, with that failure.
        self.on_failed: Callable[[BaseException], None] | None = None

    @property
    def is_failed(self) -> bool:
        """Whether nothing is changed any more."""
        return self.failure is not None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A stretch in which numbers are given and files are written: whatever fails in it ends the writing."""
        try:
            yield
        except BaseException as error:
            self.refuse(error)
            raise

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """A stretch in which no numbers are given: what is refused in it, by a full disk too, may be tried again."""
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
        """Refuse every change from now on (INV-STORE-FAILED). The first failure is the reason."""
        if self.failure is None:
            self.failure = error
            if self.on_failed is not None:
                self.on_failed(error)
