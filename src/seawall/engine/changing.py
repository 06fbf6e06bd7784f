"""What a failure does to whoever changes a data directory: some leave everything as it was, all others end the writing.

INV-STORE-FAILED: after a failure in which numbers were given or files written nothing is changed any more, and whoever
tries is told why: what the disk holds is found out by opening it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seawall.errors import CallerError, DiskFullError, ReadOnlyError, RetryableError
from seawall.io.descriptors import is_exhausted, no_descriptor
from seawall.io.files import NO_SPACE


def refusal_of(error: BaseException) -> RetryableError | None:
    """What somebody is told if the system has refused space or a descriptor; None for all other errors.

    Only for what happened before anything was promised: then nothing was changed.
    """
    if not isinstance(error, OSError):
        return None
    if error.errno in NO_SPACE:
        return DiskFullError(f"{error.filename}: the disk is full; free some space on it")
    return no_descriptor(error, error.filename) if is_exhausted(error) else None


class Changeable:
    """Something that is changed as long as nothing has failed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._failure: BaseException | None = None
        #: Called once, by whoever finds it, with the failure that ends the writing.
        self.on_failed: Callable[[BaseException], None] | None = None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A stretch in which numbers are given and files are written: whatever fails in it ends the writing."""
        try:
            yield
        except BaseException as error:
            self.refuse_changes(error)
            raise

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """A stretch in which no numbers are given: what is refused in it, by a full disk too, may be tried again."""
        try:
            yield
        except (CallerError, RetryableError):
            raise
        except BaseException as error:
            refusal = refusal_of(error)
            if refusal is not None:
                raise refusal from error
            self.refuse_changes(error)
            raise

    def _require_usable(self) -> None:
        """INV-STORE-FAILED."""
        if self._failure is not None:
            raise ReadOnlyError(
                f"{self._path} is read-only: an earlier change failed ({self._failure}); close it and open it again"
            ) from self._failure

    @property
    def is_failed(self) -> bool:
        """Whether nothing is changed any more."""
        return self._failure is not None

    @property
    def failure(self) -> BaseException | None:
        """The failure that ended the writing; None while there was none."""
        return self._failure

    def refuse_changes(self, error: BaseException) -> None:
        """Something failed: nothing is changed from now on (INV-STORE-FAILED). The first failure is the reason."""
        if self._failure is None:
            self._failure = error
            if self.on_failed is not None:
                self.on_failed(error)
