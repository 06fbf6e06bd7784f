"""Version 2 payloads to list and retire the sessions of publishers. Version 1 has no such frames.

| code | frame          | bytes | payload                                               |
|------|----------------|-------|-------------------------------------------------------|
| 6E   | SESSION_LIST   | 16    | after client_id u64, at most count u32, 0 u32         |
| 6F   | SESSIONS       | …     | a JSON object: `sessions`, an array of objects, below |
| 70   | SESSION_RETIRE | 8     | client_id u64                                         |

    client_id          the client of the session
    session_epoch      epoch of the session
    next_client_seq    the lowest undecided client seq
    last_seen_ms       time of the last frame in milliseconds since the Unix epoch, as exact as the server's checks
    live               true if a connection uses it

The answer to both requests is SESSIONS. For 6E: the sessions of clients above `after` by ascending id, at most `count`
of them and at most `SESSIONS_LISTED_MAX`. For 70: the session as it was before it was retired.

A payload is valid if it has exactly this length, zeros in fields specified as 0, a `count` of at least 1, and client
ids below 2^63, not 0 in 70. Other payloads are refused with error 04; the connection stays open.

This module must not know what a request does.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, TypeAlias

from seawall.core.sessions import SessionInfo
from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.wire.format.codes import Command
from seawall.wire.format.fields import (
    Buffer,
    JsonValue,
    json_unsigned,
    malformed,
    pack,
    read_json_object,
    require_exact,
    require_zero,
    write_json,
)

_LIST: Final = Struct("<QII")
_RETIRE: Final = Struct("<Q")
_WHAT: Final = "SESSIONS"


@dataclass(frozen=True, slots=True)
class SessionList:
    """Ask for a list of sessions."""

    COMMAND: ClassVar[Command] = Command.SESSION_LIST
    after: int
    count: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_LIST, "SESSION_LIST", self.after, self.count, 0)


@dataclass(frozen=True, slots=True)
class SessionRetire:
    """Retire a session."""

    COMMAND: ClassVar[Command] = Command.SESSION_RETIRE
    client_id: ClientId

    def encode(self) -> bytes:
        """The payload."""
        return pack(_RETIRE, "SESSION_RETIRE", self.client_id)


@dataclass(frozen=True, slots=True)
class SessionsReply:
    """A list of sessions."""

    COMMAND: ClassVar[Command] = Command.SESSIONS
    sessions: tuple[SessionInfo, ...]

    def encode(self) -> bytes:
        """The payload."""
        return write_json({"sessions": [session_document(session) for session in self.sessions]})


SessionRequest: TypeAlias = SessionList | SessionRetire


def parse_session_list(payload: Buffer) -> SessionList:
    """Parse a client's SESSION_LIST."""
    require_exact(_LIST, "SESSION_LIST", payload)
    after, count, reserved = _LIST.unpack(payload)
    require_zero("SESSION_LIST", reserved)
    if not count or after >> 63:
        raise malformed(f"SESSION_LIST: {count} sessions after client {after}; at least 1, and ids are below 2^63")
    return SessionList(after, count)


def parse_session_retire(payload: Buffer) -> SessionRetire:
    """Parse a client's SESSION_RETIRE."""
    require_exact(_RETIRE, "SESSION_RETIRE", payload)
    (client_id,) = _RETIRE.unpack(payload)
    if not client_id or client_id >> 63:
        raise malformed(f"SESSION_RETIRE: client {client_id}; ids are from 1 to 2^63 - 1")
    return SessionRetire(ClientId(client_id))


def parse_sessions_reply(payload: Buffer) -> SessionsReply:
    """Parse a server's SESSIONS."""
    found = read_json_object(payload, _WHAT).get("sessions")
    if not isinstance(found, list):
        raise malformed(f"{_WHAT}: sessions must be an array")
    return SessionsReply(tuple(_session(each) for each in found))


def session_document(session: SessionInfo) -> dict[str, JsonValue]:
    """A session as JSON, on the wire and on the command line."""
    return {
        "client_id": session.client_id,
        "session_epoch": session.session_epoch,
        "next_client_seq": session.next_client_seq,
        "last_seen_ms": session.last_seen_ms,
        "live": session.is_live,
    }


def _session(document: JsonValue) -> SessionInfo:
    if not isinstance(document, dict) or not isinstance(is_live := document.get("live"), bool):
        raise malformed(f"{_WHAT}: a session must be an object with a boolean live")
    return SessionInfo(
        ClientId(json_unsigned(document, "client_id", _WHAT)),
        SessionEpoch(json_unsigned(document, "session_epoch", _WHAT)),
        ClientSeq(json_unsigned(document, "next_client_seq", _WHAT)),
        json_unsigned(document, "last_seen_ms", _WHAT),
        is_live,
    )
