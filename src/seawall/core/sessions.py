"""A session as people and tools see it: whose it is, how far it has come, and when its publisher was last there."""

from __future__ import annotations

from dataclasses import dataclass

from seawall.core.types import ClientId, ClientSeq, SessionEpoch


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The session of one publisher."""

    client_id: ClientId
    session_epoch: SessionEpoch
    #: The lowest client seq that is not decided.
    next_client_seq: ClientSeq
    #: Milliseconds since the Unix epoch of its last frame, as exactly as sessions are looked at (`SESSION_LOOKS`).
    last_seen_ms: int
    #: Whether a connection or an open publisher has it; such a session does not expire.
    is_live: bool
