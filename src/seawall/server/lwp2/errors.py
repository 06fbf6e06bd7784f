"""What a version 2 peer is told when something goes wrong: errors of the tree as ERROR frames.

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
from seawall.server.lwp2.refusals import refusal as refused
from seawall.wire.format.codes import ErrorClass, ErrorCode
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.session import Error

#: Errors that version 2 has codes of its own for.
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
    """The ERROR frame about something that went wrong."""
    told = refused(error)
    code = next((own for kind, own in _OWN_CODES if isinstance(error, kind)), ErrorCode(told.code))
    closes = closes or (isinstance(error, ProtocolError) and error.closes)
    # A full disk and a failed one have the same code: whether trying again helps is told by the class.
    error_class = ErrorClass.RETRYABLE if isinstance(error, DiskFullError) else code.error_class
    return refusal(
        *(code, str(told)), request_id=request_id, closes=closes, ref=ref, topic_id=topic_id, error_class=error_class
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
    """An ERROR frame; of the class that its code has, unless another is given."""
    text = text.encode()[: ERROR_TEXT_SIZE_MAX - 4].decode(errors="ignore")
    error = Error(
        code, code.error_class if error_class is None else error_class, closes, text, retry_after_ms, ref, topic_id
    )
    return encode_control(error, request_id=request_id)
