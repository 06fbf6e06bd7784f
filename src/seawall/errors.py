"""Every error that Seawall raises, as one tree.

Catch a branch, not a leaf: the branch says what to do next.

    SeawallError
    ├── CallerError              the request is wrong; sending it again changes nothing
    │   ├── ConfigError          a setting is unknown, mistyped or out of range
    │   ├── InvalidInputError    a value, name or argument breaks a stated rule (also a ValueError)
    │   │   └── LimitError       it is larger than its bound in `limits.py`
    │   ├── ConflictError        it contradicts the existing state
    │   ├── FencedError          a newer session or owner has taken over: this one must stop
    │   │   └── SessionExpiredError   the server no longer has the session: the outcome of its last batches is unknown
    │   ├── NotFoundError        the thing that it names does not exist
    │   ├── DataLossError        records that it needs are lost, and it asked to fail instead of skipping them
    │   ├── WrongStateError      the current state does not allow it
    │   ├── UnsupportedError     this platform or build cannot do it
    │   └── ProtocolError        bytes from a peer break the wire protocol; carries the wire code
    ├── RetryableError           nothing happened; the same request may succeed later
    │   ├── ClockSkewError       a remote clock is too far ahead of ours to be accepted
    │   ├── DiskFullError        the disk has no space to reserve for the request
    │   ├── LockedError          another process holds the lock
    │   └── FullError            a bounded queue, ring or table is full
    │       └── DescriptorsError the process or the machine has no free file descriptor
    ├── CorruptionError          stored or received bytes are not what was written
    │   ├── SegmentDamageError   a range of a segment is damaged; carries its bytes and seqs, the rest can be read
    │   └── ChecksumError        a checksum does not match
    ├── FatalError               this process must stop using the thing that failed
    │   ├── ReadOnlyError        an earlier write or sync failed: nothing was changed, and reads continue
    │   ├── SyncError            a sync failed: the state of earlier writes is unknown
    │   └── InvariantError       a named invariant does not hold: a bug in Seawall
    ├── OutcomeUnknownError      the request may or may not have taken effect
    └── TaskFailedError          a background task has failed for good; carries the seq of its job

A message names the thing, the value and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "CallerError",
    "ChecksumError",
    "ClockSkewError",
    "ConfigError",
    "ConflictError",
    "CorruptionError",
    "DataLossError",
    "DescriptorsError",
    "DiskFullError",
    "FatalError",
    "FencedError",
    "FullError",
    "InvalidInputError",
    "InvariantError",
    "LimitError",
    "LockedError",
    "NotFoundError",
    "OutcomeUnknownError",
    "ProtocolError",
    "ReadOnlyError",
    "RetryableError",
    "SeawallError",
    "SegmentDamageError",
    "SessionExpiredError",
    "SyncError",
    "TaskFailedError",
    "UnsupportedError",
    "WrongStateError",
]


class SeawallError(Exception):
    """The root: `except SeawallError` catches every error that Seawall raises on purpose."""


class CallerError(SeawallError):
    """The request is wrong; sending it again changes nothing."""


class ConfigError(CallerError):
    """A setting is unknown, has the wrong type, or is out of range."""


class InvalidInputError(CallerError, ValueError):
    """A value, name or argument breaks a stated rule."""


class LimitError(InvalidInputError):
    """Something is larger than its bound in `limits.py`."""


class ConflictError(CallerError):
    """The request contradicts the existing state."""


class FencedError(CallerError):
    """A newer session, or a newer owner, has taken over: this one must stop."""


class SessionExpiredError(FencedError):
    """The session of this publisher expired on the server while batches were still unacknowledged.

    These batches may be stored. They cannot be sent again, because the server could no longer detect a duplicate. Open
    a new publisher.
    """


class NotFoundError(CallerError):
    """The thing that the request names does not exist."""


class DataLossError(CallerError):
    """Records that the request needs are lost for good, and the request asked to fail instead of skipping them."""


class WrongStateError(CallerError):
    """The current state does not allow the request; nothing was changed."""


class UnsupportedError(CallerError):
    """This platform or build does not support the request."""


class ProtocolError(CallerError):
    """Bytes from a peer break the wire protocol.

    `code` is the wire error code. `closes` is True if the connection must close. `answered` is True if the peer gets
    the error: after bad magic or a bad checksum nothing is sent back, since nothing from the peer can be trusted.
    """

    def __init__(self, message: str, *, code: int, closes: bool, answered: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.closes = closes
        self.answered = answered


class RetryableError(SeawallError):
    """Nothing happened; the same request may succeed later."""


class ClockSkewError(RetryableError):
    """A remote clock is too far ahead of ours to be accepted; retry when the clocks agree again."""


class LockedError(RetryableError):
    """Another process holds the lock; retry when it has ended."""


class DiskFullError(RetryableError):
    """The disk has no space to reserve for the request; nothing was stored. Retry when space is free again."""


class FullError(RetryableError):
    """A bounded queue, ring or table is full."""


class DescriptorsError(FullError):
    """The process or the machine has no free file descriptor; retry when files or connections were closed."""


class CorruptionError(SeawallError):
    """Stored or received bytes are not what was written."""


class SegmentDamageError(CorruptionError):
    """A range of a segment is damaged.

    The range covers the bytes `from_at` up to `to_at` of the file and the seqs `first_seq` up to `last_seq`, which is
    None if the number of lost records is unknown. Batches before and after the range can be read.
    """

    def __init__(
        self, message: str, *, path: str, from_at: int, to_at: int, first_seq: int, last_seq: int | None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.from_at = from_at
        self.to_at = to_at
        self.first_seq = first_seq
        self.last_seq = last_seq


class ChecksumError(CorruptionError):
    """A checksum does not match its bytes."""


class FatalError(SeawallError):
    """This process must stop using the thing that failed."""


class ReadOnlyError(FatalError):
    """The log is read-only, because an earlier write or sync failed, or the disk is full.

    Nothing of the request was stored. Reads continue. To write again, reopen the log: it recovers the state that is
    really on disk.
    """


class SyncError(FatalError):
    """A sync failed, so the state of everything written before it is unknown.

    The kernel may have marked the pages clean, so a second sync that succeeds proves nothing. The only safe reaction is
    to stop, restart and recover from what is really on disk.
    """


class InvariantError(FatalError):
    """A named invariant does not hold: a bug in Seawall, never the caller's fault."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(f"{name} violated" + (f": {detail}" if detail else ""))
        self.name = name


class OutcomeUnknownError(SeawallError):
    """The request may or may not have taken effect; repeat it with the same identity to find out."""


class TaskFailedError(SeawallError):
    """A background task has failed and is not tried again: the message has the error that it raised in the worker.

    `seq` is the seq of its job. `traceback` is the traceback of the error as text, if the worker sent one.
    """

    def __init__(self, message: str, *, seq: int, traceback: str = "") -> None:
        super().__init__(message)
        self.seq = seq
        self.traceback = traceback
