"""What a peer is told when something cannot be done: any error of the tree as one of the codes of the wire.

Both protocol versions refuse by `ProtocolError`, which has the code; each writes it in its own form. Texts of the
caller's own mistakes go out as they are. What failed inside is told by its kind alone: paths and states of this machine
are for its own log, and words that published clients look for must not come about by chance.

This module must not know who asked, or for what.
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

#: Characters of a text that says what is wrong: names in it may be long.
_TEXT_SIZE_MAX: Final = 500

_NO_DESCRIPTOR: Final = "the server has no file descriptor left for this: nothing was changed, try again"


def refusal(error: BaseException) -> ProtocolError:
    """What a peer is told of an error; the connection goes on."""
    if isinstance(error, ProtocolError):
        return error
    code, text = _refused(error)
    return refuse(code, text)


def refuse(code: ErrorCode, text: str) -> ProtocolError:
    """A refusal after which the connection goes on."""
    return ProtocolError(text[:_TEXT_SIZE_MAX], code=code, closes=False)


def read_only_text(failure: BaseException | None) -> str:
    """What a peer is told that wants to write after a write or a sync failed: what the system said, without paths."""
    return f"the server is read-only: {reason_of(failure)}; reading goes on, and writing when it is started again"


def reason_of(failure: BaseException | None) -> str:
    """Why a log is read-only, in words for peers: the error of the system behind a failure, else its kind."""
    cause = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    if cause is not None and cause.strerror:
        return f"a write or a sync failed ({cause.strerror})"
    return f"writing failed ({type(failure).__name__})"


def v1_error_frame(error: ProtocolError, details: dict[str, JsonValue] | None = None) -> bytes:
    """A refusal as version 1 is told it."""
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
