"""The life of a publisher's session: what it says in HELLO, and what a WELCOME means for it. No I/O.

    begins         OPEN: fences older sessions of the client, if it has one
    goes on        JOIN, on every further connection and after a loss: it fences nobody
    was forgotten  OPEN again, naming the lowest number that is not decided
    has expired    OPEN again if nothing sent is undecided; else it is over: a repetition could be stored twice

What the server has not decided is sent again by `outgoing`, also where the server has: it answers with the numbers of
the original. A server that lost what it had acknowledged (ack level 1, or a class below fsync, and a crash) refuses to
go on behind the hole: that is told, and the hole is given up.
"""

from __future__ import annotations

from typing import Final

from seawall.client.connection.targets import Target
from seawall.client.publish.outgoing import Outgoing
from seawall.core.types import ClientId, SessionEpoch
from seawall.errors import FencedError, OutcomeUnknownError, SessionExpiredError
from seawall.limits import PAYLOAD_SIZE_MIN, SESSION_WINDOW_BATCHES
from seawall.wire.format.codes import Codec, Features, HelloFlags, SessionStatus
from seawall.wire.lwp2.session import Hello, Welcome

_GRANTED: Final = frozenset({SessionStatus.NEW, SessionStatus.RESUMED, SessionStatus.JOINED})

CODEC_FEATURES: Final = {Codec.LZ4: Features.LZ4, Codec.ZSTD: Features.ZSTD}


class Session:
    """What a publisher knows of its session."""

    def __init__(self, target: Target, outgoing: Outgoing, client_id: int) -> None:
        self._target = target
        self._outgoing = outgoing
        self._client_id = ClientId(client_id)
        self._flags = HelloFlags.OPEN
        self._is_forgotten = False
        #: The term of the server that we know, 0 before there is one.
        self._term = 0

    def hello(self) -> Hello:
        """What to say on the next connection."""
        outgoing = self._outgoing
        start = outgoing.lowest_unused
        return Hello(
            flags=self._flags,
            max_payload=PAYLOAD_SIZE_MIN,
            features=int(Features.SUM_BEHIND | CODEC_FEATURES.get(outgoing.codec, 0)),
            client_id=outgoing.client_id or self._client_id,
            session_epoch=SessionEpoch(0) if self._is_forgotten else outgoing.session_epoch,
            start_seq=start,
            window_batches=SESSION_WINDOW_BATCHES,
            token=self._target.token,
            name=self._target.name,
        )

    def is_granted(self, welcome: Welcome) -> bool:
        """Take what the server grants; false if another HELLO has to be said, `FencedError` if it is over."""
        outgoing = self._outgoing
        if welcome.status in _GRANTED:
            if self._term not in (0, welcome.term) and welcome.next_seq < outgoing.lowest_unused:
                # Another process, which does not know what the one before it has acknowledged.
                self._term = 0
                return self._give_up_lost(welcome)
            self._term = welcome.term
            outgoing.welcomed(welcome.client_id, welcome.session_epoch, welcome.next_seq)
            outgoing.allow(welcome.window_batches, welcome.window_bytes)
            if outgoing.codec is not Codec.NONE and not welcome.features & CODEC_FEATURES[outgoing.codec]:
                outgoing.codec = Codec.NONE
            self._flags, self._is_forgotten = HelloFlags.JOIN, False
            return True
        if welcome.status is SessionStatus.REFUSED_SUPERSEDED and welcome.session_epoch > outgoing.session_epoch:
            self._require_expired(welcome)
        if welcome.status is SessionStatus.REFUSED_GAP:
            return self._give_up_lost(welcome)
        self._flags, self._is_forgotten = HelloFlags.OPEN, True
        return False

    def _require_expired(self, welcome: Welcome) -> None:
        """Refuse to go on, unless the server only has forgotten the session and nothing sent is undecided."""
        client_id = self._outgoing.client_id or self._client_id
        if welcome.next_seq:
            raise FencedError(f"client {client_id} has a newer session: this publisher must stop")
        if self._outgoing.lowest_undecided < self._outgoing.next_seq:
            raise SessionExpiredError(
                f"the session of client {client_id} has expired at the server: what was sent and not answered may be "
                "stored, and cannot be sent again; look for it in the topic, then go on with a new publisher"
            )

    def _give_up_lost(self, welcome: Welcome) -> bool:
        first, last = welcome.next_seq, self._outgoing.lowest_unused - 1
        self._outgoing.report(
            OutcomeUnknownError(f"the server has lost batches {first} to {last}, which it had acknowledged")
        )
        self._flags = HelloFlags.OPEN | HelloFlags.ABANDON
        return False
