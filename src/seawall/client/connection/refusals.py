"""Maps the error codes of a server to exceptions of `seawall.errors`.

A known code has its own exception. An unknown code gets the exception of its error class, which tells the caller
whether to correct the request, to send it again, or to find out its outcome.
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

#: Codes with another meaning for a batch than for a request: a full topic is no reason to give up on the server.
_BY_CODE_OF_BATCH: Final[dict[int, type[SeawallError]]] = {ErrorCode.READ_ONLY: FullError}

_BY_CLASS: Final[dict[int, type[SeawallError]]] = {
    ErrorClass.CALLER: CallerError,
    ErrorClass.RETRYABLE: RetryableError,
    ErrorClass.CORRUPTION: CorruptionError,
    ErrorClass.FATAL: FatalError,
    ErrorClass.OUTCOME_UNKNOWN: OutcomeUnknownError,
}

#: Reasons for refusing a batch before its client seq was used: the next batch must take that client seq.
CLIENT_SEQ_UNUSED: Final = frozenset(
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

_REASONS: Final = {
    int(ErrorCode.TOPIC_NOT_FOUND): "the topic does not exist any more",
    int(ErrorCode.TOPIC_DELETED): "the topic was deleted",
    int(ErrorCode.OUTSIDE_SESSION_WINDOW): "it arrived too late to find out whether an earlier copy is stored",
    int(ErrorCode.CLIENT_SEQ_SKIPPED): "its client seq was abandoned before it arrived, and it is not stored",
    int(ErrorCode.NOT_ALLOWED_BY_TOPIC): "the topic does not allow its order or ack level",
    int(ErrorCode.PAYLOAD_MISMATCH): "another batch was stored under its client seq",
    int(ErrorCode.READ_ONLY): "the topic is full, or the disk of the server is full or has failed",
}

#: Errors after which a publisher must stop.
SESSION_ENDING: Final = (FencedError, ReadOnlyError)

#: Codes that report backpressure, not a fault.
BACKPRESSURE: Final = frozenset({int(ErrorCode.BACKPRESSURE), int(ErrorCode.RATE_LIMITED)})


def error_of(refusal: Error) -> SeawallError:
    """The exception for an ERROR frame."""
    kind = _BY_CODE.get(refusal.code, _BY_CLASS[refusal.error_class])
    if (refusal.code, refusal.error_class) == (ErrorCode.READ_ONLY, ErrorClass.RETRYABLE):
        # The disk is full, not broken: nothing was stored, and a retry may succeed.
        kind = DiskFullError
    return kind(f"{refusal.text or name_of(refusal.code)} (code {refusal.code:02x})")


def rejection(reason: int, topic: str, client_seq: int) -> SeawallError:
    """The exception of a batch that the server refused and did not store."""
    kind = _BY_CODE_OF_BATCH.get(reason) or _BY_CODE.get(reason)
    if kind is None:
        known = reason in ErrorCode.__members__.values()
        kind = _BY_CLASS[ErrorCode(reason).error_class if known else ErrorClass.CALLER]
    why = _REASONS.get(reason, name_of(reason))
    return kind(f"batch {client_seq} for {topic!r} was refused: {why} (code {reason:02x})")


def unknown_outcome(topic: str, client_seq: int, why: str | Exception) -> OutcomeUnknownError:
    """The exception of a batch that may or may not be stored."""
    error = OutcomeUnknownError(f"batch {client_seq} for {topic!r} may be stored or not: {why}")
    error.__cause__ = why if isinstance(why, Exception) else None
    return error


def name_of(code: int) -> str:
    """The name of an error code as words."""
    try:
        return ErrorCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "an error code that this client does not know"
