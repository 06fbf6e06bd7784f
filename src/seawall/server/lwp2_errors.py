"""What a version 2 peer is told when something goes wrong: errors of the tree as ERROR frames.

This module must not know connections.
"""

from __future__ import annotations

from typing import Final

from seawall.core.types import TopicId
from seawall.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    DiskFullError,
    FatalError,
    FencedError,
    FullError,
    LimitError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    RetryableError,
    SeawallError,
    WrongStateError,
)
from seawall.limits import ERROR_TEXT_SIZE_MAX
from seawall.wire.codes import ErrorClass, ErrorCode
from seawall.wire.lwp2 import encode_control
from seawall.wire.lwp2_session import Error

#: The first that fits counts.
_CODES: Final[tuple[tuple[type[SeawallError], ErrorCode], ...]] = (
    (NotFoundError, ErrorCode.TOPIC_NOT_FOUND),
    (ConflictError, ErrorCode.TOPIC_EXISTS),
    (FencedError, ErrorCode.FENCED),
    (LimitError, ErrorCode.LIMIT),
    (ConfigError, ErrorCode.INVALID_PAYLOAD),
    (WrongStateError, ErrorCode.WRONG_STATE),
    (DiskFullError, ErrorCode.READ_ONLY),
    (FullError, ErrorCode.LIMIT),
    (RetryableError, ErrorCode.BACKPRESSURE),
    (CorruptionError, ErrorCode.STORAGE),
    (FatalError, ErrorCode.STORAGE),
    (OutcomeUnknownError, ErrorCode.OUTCOME_UNKNOWN),
)

_NO_TOPIC: Final = TopicId(0)


def code_of(error: BaseException) -> ErrorCode:
    """The wire code of an error."""
    if isinstance(error, ProtocolError):
        return ErrorCode(error.code)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.INVALID_PAYLOAD if isinstance(error, SeawallError) else ErrorCode.INTERNAL


def error_frame(
    error: BaseException, *, request_id: int = 0, closes: bool = False, ref: int = 0, topic_id: TopicId = _NO_TOPIC
) -> bytes:
    """The ERROR frame about something that went wrong."""
    code = code_of(error)
    # What is no error of the tree is a defect, and its text is nobody's business.
    text = str(error) if isinstance(error, SeawallError) else "an internal error: see the server's log"
    if isinstance(error, ProtocolError):
        closes = closes or error.closes
    return refusal(code, text, request_id=request_id, closes=closes, ref=ref, topic_id=topic_id)


def refusal(
    code: ErrorCode,
    text: str,
    *,
    request_id: int = 0,
    closes: bool = False,
    ref: int = 0,
    topic_id: TopicId = _NO_TOPIC,
    retry_after_ms: int = 0,
) -> bytes:
    """An ERROR frame."""
    text = text.encode()[: ERROR_TEXT_SIZE_MAX - 4].decode(errors="ignore")
    kind = code.error_class
    wait = retry_after_ms if kind is ErrorClass.RETRYABLE else 0
    return encode_control(Error(code, kind, closes, text, wait, ref, topic_id), request_id=request_id)
