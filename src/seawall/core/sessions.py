"""The public description of a publisher's session: its client, its progress, and when it was last seen."""

from __future__ import annotations

from dataclasses import dataclass

from seawall.core.types import ClientId, ClientSeq, SessionEpoch


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The session of one publisher."""

    client_id: ClientId
    session_epoch: SessionEpoch
    #: The lowest undecided client seq.
    next_client_seq: ClientSeq
    #: Time of its last frame in milliseconds since the Unix epoch, as exact as the expiry checks (`SESSION_CHECKS`).
    last_seen_ms: int
    #: True if a connection or an open publisher uses it; such a session does not expire.
    is_live: bool
