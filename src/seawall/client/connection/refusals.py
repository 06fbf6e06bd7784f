"""What a server refuses, as errors of the one tree.

A code that is known has its own error; one that is not has the error of its class, which says all that a caller needs
to know: whether to correct the request, to send it again, or to find out what became of it.
"""

from __future__ import annotations

from typing import Final

from seawall.errors import (
    CallerError,
    ConfigError,
    ConflictError,
    CorruptionError,
    DiskFullError,
    FatalError,
    FencedError,
    FullError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RetryableError,
    SeawallError,
    UnsupportedError,
    WrongStateError,
)
from seawall.wire.format.codes import ErrorClass, ErrorCode
from seawall.wire.lwp2.session import Error

_BY_CODE: Final[dict[int, type[SeawallError]]] = {
    ErrorCode.PAYLOAD_TOO_LARGE: LimitError,
    ErrorCode.INVALID_PAYLOAD: InvalidInputError,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedError,
    ErrorCode.UNKNOWN_COMMAND: UnsupportedError,
    ErrorCode.WRONG_STATE: WrongStateError,
    ErrorCode.LIMIT: LimitError,
    ErrorCode.TOPIC_NOT_FOUND: NotFoundError,
    ErrorCode.TOPIC_EXISTS: ConflictError,
    ErrorCode.TOPIC_NAME: InvalidInputError,
    ErrorCode.TOPIC_DELETED: NotFoundError,
    ErrorCode.TOPIC_SETTINGS: ConfigError,
    ErrorCode.TOPIC_CONFLICT: ConflictError,
    ErrorCode.FENCED: FencedError,
    ErrorCode.OUTSIDE_SESSION_WINDOW: OutcomeUnknownError,
    ErrorCode.CLIENT_SEQ_SKIPPED: ConflictError,
    ErrorCode.NOT_ALLOWED_BY_TOPIC: InvalidInputError,
    ErrorCode.PAYLOAD_MISMATCH: ConflictError,
    ErrorCode.BACKPRESSURE: FullError,
    ErrorCode.INVALID_OFFSET: InvalidInputError,
    ErrorCode.OFFSET_OUT_OF_RANGE: InvalidInputError,
    ErrorCode.READ_ONLY: ReadOnlyError,
}

#: What batches are refused for and requests are not: a topic that is full is no reason to give a server up.
_OF_BATCHES: Final[dict[int, type[SeawallError]]] = {ErrorCode.READ_ONLY: FullError}

_BY_CLASS: Final[dict[int, type[SeawallError]]] = {
    ErrorClass.CALLER: CallerError,
    ErrorClass.RETRYABLE: RetryableError,
    ErrorClass.CORRUPTION: CorruptionError,
    ErrorClass.FATAL: FatalError,
    ErrorClass.OUTCOME_UNKNOWN: OutcomeUnknownError,
}

#: Reasons for which a batch was refused before its number was used, so that another batch may have it.
NUMBER_IS_FREE: Final = frozenset(
    {
        int(ErrorCode.PAYLOAD_TOO_LARGE),
        int(ErrorCode.INVALID_PAYLOAD),
        int(ErrorCode.TOPIC_NOT_FOUND),
        int(ErrorCode.TOPIC_DELETED),
        int(ErrorCode.NOT_ALLOWED_BY_TOPIC),
        int(ErrorCode.ACCESS_DENIED),
        int(ErrorCode.READ_ONLY),
    }
)

_WORDS: Final = {
    int(ErrorCode.TOPIC_NOT_FOUND): "there is no such topic any more",
    int(ErrorCode.TOPIC_DELETED): "the topic was deleted",
    int(ErrorCode.OUTSIDE_SESSION_WINDOW): "it came too late to tell whether an earlier copy is stored",
    int(ErrorCode.CLIENT_SEQ_SKIPPED): "it was given up before it came, and is not stored",
    int(ErrorCode.NOT_ALLOWED_BY_TOPIC): "the topic does not allow its order or ack level",
    int(ErrorCode.PAYLOAD_MISMATCH): "another batch was stored under its number",
    int(ErrorCode.READ_ONLY): "the topic is full, or the disk of the server is, or has failed",
}

#: Errors after which a publisher has to stop.
ENDING: Final = (FencedError, ReadOnlyError)

#: Codes that tell of pressure and not of a fault.
PRESSURE: Final = frozenset({int(ErrorCode.BACKPRESSURE), int(ErrorCode.RATE_LIMITED)})


def error_of(refusal: Error) -> SeawallError:
    """The error that an ERROR frame tells of."""
    kind = _BY_CODE.get(refusal.code, _BY_CLASS[refusal.error_class])
    if (refusal.code, refusal.error_class) == (ErrorCode.READ_ONLY, ErrorClass.RETRYABLE):
        # The disk is full and not broken: nothing was stored, and it passes.
        kind = DiskFullError
    return kind(f"{refusal.text or name_of(refusal.code)} (code {refusal.code:02x})")


def rejection(reason: int, topic: str, client_seq: int) -> SeawallError:
    """The error of a batch that is not stored."""
    kind = _OF_BATCHES.get(reason) or _BY_CODE.get(reason)
    if kind is None:
        known = reason in ErrorCode.__members__.values()
        kind = _BY_CLASS[ErrorCode(reason).error_class if known else ErrorClass.CALLER]
    why = _WORDS.get(reason, name_of(reason))
    return kind(f"batch {client_seq} for {topic!r} was refused: {why} (code {reason:02x})")


def unknown_outcome(topic: str, client_seq: int, why: str | Exception) -> OutcomeUnknownError:
    """The error of a batch that may be stored or not."""
    error = OutcomeUnknownError(f"batch {client_seq} for {topic!r} may be stored or not: {why}")
    error.__cause__ = why if isinstance(why, Exception) else None
    return error


def name_of(code: int) -> str:
    """A code in words."""
    try:
        return ErrorCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "a code that this client does not know"
