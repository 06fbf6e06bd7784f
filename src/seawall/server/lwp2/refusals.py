"""Maps exceptions to the error codes and texts that peers get.

Both protocol versions refuse requests by `ProtocolError`, which has the code; each encodes it in its own form. Texts
about mistakes of the caller are passed on unchanged. For internal errors a peer gets only their kind: paths and states
of this machine belong in its own log, and the text must not accidentally contain words that published clients search
for.

This module must not know the peer, or its request.
"""

from __future__ import annotations

from typing import Final

from seawall.errors import (
    CallerError,
    DescriptorsError,
    DiskFullError,
    FatalError,
    FullError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    ReadOnlyError,
    SeawallError,
)
from seawall.io.process.descriptors import is_exhausted
from seawall.wire.format.codes import VERSION_1, VERSION_2, ErrorCode
from seawall.wire.format.fields import JsonValue
from seawall.wire.lwp1.frames import encode_reply
from seawall.wire.lwp1.replies import ErrorReply

#: The most characters of an error text: names in it may be long.
_TEXT_SIZE_MAX: Final = 500

_NO_DESCRIPTOR: Final = "the server has no file descriptor left for this: nothing was changed, try again"


def refusal(error: BaseException) -> ProtocolError:
    """The refusal for an exception; the connection stays open."""
    if isinstance(error, ProtocolError):
        return error
    code, text = _refused(error)
    return refuse(code, text)


def refuse(code: ErrorCode, text: str) -> ProtocolError:
    """A refusal that keeps the connection open."""
    return ProtocolError(text[:_TEXT_SIZE_MAX], code=code, closes=False)


def read_only_text(failure: BaseException | None) -> str:
    """The error text for writes after a failed write or sync: the error of the system, without paths."""
    return f"the server is read-only: {reason_of(failure)}; reading goes on, and writing when it is started again"


def reason_of(failure: BaseException | None) -> str:
    """Why a log is read-only: the system error behind a failure, else its kind."""
    cause = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    if cause is not None and cause.strerror:
        return f"a write or a sync failed ({cause.strerror})"
    return f"writing failed ({type(failure).__name__})"


def v1_error_frame(error: ProtocolError, details: dict[str, JsonValue] | None = None) -> bytes:
    """A refusal as a frame of version 1."""
    if error.code == ErrorCode.UNSUPPORTED_VERSION:
        details = {"supported": [VERSION_1, VERSION_2]}
    return encode_reply(ErrorReply(error.code, str(error), details or {}))


def _refused(error: BaseException) -> tuple[ErrorCode, str]:
    match error:
        case NotFoundError():
            return ErrorCode.TOPIC_NOT_FOUND, str(error)
        case CallerError():
            return ErrorCode.INVALID_PAYLOAD, str(error)
        case DiskFullError():
            return ErrorCode.STORAGE, "the disk of the server is full: nothing was stored"
        case DescriptorsError():
            return ErrorCode.BACKPRESSURE, _NO_DESCRIPTOR
        case FullError():
            return ErrorCode.BACKPRESSURE, str(error)
        case ReadOnlyError():
            return ErrorCode.STORAGE, read_only_text(error.__cause__)
        case OSError() if is_exhausted(error):
            return ErrorCode.BACKPRESSURE, _NO_DESCRIPTOR
        case FatalError() | OutcomeUnknownError() | OSError():
            return ErrorCode.STORAGE, "the storage of the server failed: it has to be started again"
        case SeawallError():
            return ErrorCode.STORAGE, "the storage of the server has no sound answer to this: verify it"
        case _:
            return ErrorCode.INTERNAL, "the server failed at this: its own log says why"
