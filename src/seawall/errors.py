"""Every error Seawall raises, as one tree.

Catch a branch, not a leaf: the branch says what to do next.

    SeawallError
    ├── CallerError              the request is wrong; sending it again changes nothing
    │   ├── ConfigError          a setting is unknown, mistyped or out of range
    │   ├── InvalidInputError    a value, name or argument breaks a stated rule (also a ValueError)
    │   │   └── LimitError       it is larger than its bound in `limits.py`
    │   ├── ConflictError        it contradicts what is there already
    │   ├── FencedError          a newer session or owner has taken over: this one must stop
    │   │   └── SessionExpiredError   the server has forgotten the session: nobody knows what became of its last batches
    │   ├── NotFoundError        what it names is not there
    │   ├── DataLossError        records that it needs are gone, and it said not to go on without them
    │   ├── WrongStateError      the thing is not in a state that allows it
    │   ├── UnsupportedError     this platform or build cannot do it
    │   └── ProtocolError        bytes from a peer break the wire protocol; carries the wire code
    ├── RetryableError           nothing happened; the same request may succeed later
    │   ├── ClockSkewError       a remote clock is too far ahead of ours to be followed
    │   ├── DiskFullError        the disk has no room for what must be reserved before anything is promised
    │   ├── LockedError          another process holds the thing
    │   └── FullError            a bounded queue, ring or table has no room now
    │       └── DescriptorsError the process or the machine has no file descriptor left now
    ├── CorruptionError          stored or received bytes are not what was written
    │   ├── SegmentDamageError   a stretch of a segment is damaged; carries its bytes and seqs, what follows can be read
    │   └── ChecksumError        a checksum does not match
    ├── FatalError               this process must stop using the thing that failed
    │   ├── ReadOnlyError        a write or a sync failed before: nothing was changed, and reading goes on
    │   ├── SyncError            a sync failed: what was written before it is in an unknown state
    │   └── InvariantError       a named invariant does not hold: a bug in Seawall
    └── OutcomeUnknownError      the request may or may not have taken effect

A message names the thing, the value and the way out.
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
    "UnsupportedError",
    "WrongStateError",
]


class SeawallError(Exception):
    """The root: `except SeawallError` catches everything Seawall raises on purpose."""


class CallerError(SeawallError):
    """The request is wrong; sending it again changes nothing."""


class ConfigError(CallerError):
    """A setting is unknown, has the wrong type, or is out of range."""


class InvalidInputError(CallerError, ValueError):
    """A value, name or argument breaks a stated rule."""


class LimitError(InvalidInputError):
    """Something is larger than its bound in `limits.py`."""


class ConflictError(CallerError):
    """The request contradicts what is there already."""


class FencedError(CallerError):
    """A newer session, or a newer owner, has taken over: this one must stop."""


class SessionExpiredError(FencedError):
    """The server has forgotten the session of this publisher, which has sent batches that were not answered.

    They may be stored, and cannot be sent again: nobody could tell a repetition. A new publisher is welcome.
    """


class NotFoundError(CallerError):
    """What the request names is not there."""


class DataLossError(CallerError):
    """Records that the request needs are gone for good, and it said not to go on without them."""


class WrongStateError(CallerError):
    """The thing is not in a state that allows what was asked; it stays as it was."""


class UnsupportedError(CallerError):
    """This platform or build cannot do what was asked."""


class ProtocolError(CallerError):
    """Bytes from a peer break the wire protocol.

    `code` is the wire error code, `closes` whether the connection cannot go on, and `answered` whether the peer is
    told: after bad magic or a bad checksum nothing is sent back, since nothing the peer said can be trusted.
    """

    def __init__(self, message: str, *, code: int, closes: bool, answered: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.closes = closes
        self.answered = answered


class RetryableError(SeawallError):
    """Nothing happened; the same request may succeed later."""


class ClockSkewError(RetryableError):
    """A remote clock is too far ahead of ours to be followed; it passes when the clocks agree again."""


class LockedError(RetryableError):
    """Another process holds the thing; it can be had when that one ends."""


class DiskFullError(RetryableError):
    """The disk has no room for what must be reserved ahead; nothing was promised, and it passes when space returns."""


class FullError(RetryableError):
    """A bounded queue, ring or table has no room now."""


class DescriptorsError(FullError):
    """The process or the machine has no file descriptor left; it passes when others close files or connections."""


class CorruptionError(SeawallError):
    """Stored or received bytes are not what was written."""


class SegmentDamageError(CorruptionError):
    """A stretch of a segment is damaged.

    It takes the bytes `from_at` up to `to_at` of the file and the seqs `first_seq` up to `last_seq`, which is None
    where nothing tells how many records it held. Batches before and behind it can be read.
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
    """The log takes no changes, because a write or a sync of its disk failed before, or its disk is full.

    Nothing of the request was stored. Reading goes on; to write again, start the log anew, and it recovers what the
    disk really holds.
    """


class SyncError(FatalError):
    """A sync failed, so the state of everything written before it is unknown.

    The kernel may have marked the pages clean: a second sync that succeeds proves nothing. The only safe way on
    is to stop, start again and recover from what the disk really holds.
    """


class InvariantError(FatalError):
    """A named invariant does not hold: a bug in Seawall, never the caller's fault."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(f"{name} violated" + (f": {detail}" if detail else ""))
        self.name = name


class OutcomeUnknownError(SeawallError):
    """The request may or may not have taken effect; ask again by its identity to find out."""
