"""Encodes errors as ERROR frames of version 2.

This module must not know connections.
"""

from __future__ import annotations

from typing import Final

from seawall.core.types import TopicId
from seawall.errors import (
    ConfigError,
    ConflictError,
    DiskFullError,
    FencedError,
    LimitError,
    OutcomeUnknownError,
    ProtocolError,
    ReadOnlyError,
    WrongStateError,
)
from seawall.limits import ERROR_TEXT_SIZE_MAX
from seawall.server.lwp2.refusals import refusal as refusal_of
from seawall.wire.format.codes import ErrorClass, ErrorCode
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.session import Error

#: Exceptions with an error code of version 2 only.
_OWN_CODES: Final = (
    (ConfigError, ErrorCode.TOPIC_SETTINGS),
    (ConflictError, ErrorCode.TOPIC_CONFLICT),
    (FencedError, ErrorCode.FENCED),
    (LimitError, ErrorCode.LIMIT),
    (WrongStateError, ErrorCode.WRONG_STATE),
    (DiskFullError, ErrorCode.READ_ONLY),
    (ReadOnlyError, ErrorCode.READ_ONLY),
    (OutcomeUnknownError, ErrorCode.OUTCOME_UNKNOWN),
)

_NO_TOPIC: Final = TopicId(0)


def error_frame(
    error: BaseException, *, request_id: int = 0, closes: bool = False, ref: int = 0, topic_id: TopicId = _NO_TOPIC
) -> bytes:
    """The ERROR frame for an exception."""
    refused = refusal_of(error)
    code = next((own for kind, own in _OWN_CODES if isinstance(error, kind)), ErrorCode(refused.code))
    closes = closes or (isinstance(error, ProtocolError) and error.closes)
    # A full disk and a failed one have the same code: the class says whether a retry helps.
    error_class = ErrorClass.RETRYABLE if isinstance(error, DiskFullError) else code.error_class
    return refusal(
        *(code, str(refused)), request_id=request_id, closes=closes, ref=ref, topic_id=topic_id, error_class=error_class
    )


def refusal(
    code: ErrorCode,
    text: str,
    *,
    request_id: int = 0,
    closes: bool = False,
    ref: int = 0,
    topic_id: TopicId = _NO_TOPIC,
    retry_after_ms: int = 0,
    error_class: ErrorClass | None = None,
) -> bytes:
    """An ERROR frame, with the class of its code unless another is given."""
    text = text.encode()[: ERROR_TEXT_SIZE_MAX - 4].decode(errors="ignore")
    error = Error(
        code, code.error_class if error_class is None else error_class, closes, text, retry_after_ms, ref, topic_id
    )
    return encode_control(error, request_id=request_id)
