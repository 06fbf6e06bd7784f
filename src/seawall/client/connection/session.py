"""The session state of a publisher: which HELLO to send, and how to handle each WELCOME. No I/O.

    start       OPEN: fences older sessions of the same client id
    continue    JOIN, on each further connection and after a connection loss: fences no session
    forgotten   OPEN again, with the lowest undecided client seq
    expired     OPEN again if nothing that was sent is undecided; otherwise the session ends, because a repetition
                could be stored twice

`outgoing` sends undecided batches again. If the server has stored one already, it acknowledges it with the seqs of the
original. A server that lost acknowledged batches (ack level 1, or a durability class below fsync, and a crash) refuses
to continue after the hole: the session reports the loss and abandons the missing client seqs.
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
    """The client side of a publisher's session."""

    def __init__(self, target: Target, outgoing: Outgoing, client_id: int) -> None:
        self._target = target
        self._outgoing = outgoing
        self._client_id = ClientId(client_id)
        self._flags = HelloFlags.OPEN
        self._is_forgotten = False
        #: The term of the server at the last WELCOME; 0 before the first.
        self._term = 0

    def hello(self) -> Hello:
        """The HELLO for the next connection."""
        outgoing = self._outgoing
        start = outgoing.lowest_unused
        return Hello(
            flags=self._flags,
            max_payload=PAYLOAD_SIZE_MIN,
            features=int(Features.TRAILING_CHECKSUM | CODEC_FEATURES.get(outgoing.codec, 0)),
            client_id=outgoing.client_id or self._client_id,
            session_epoch=SessionEpoch(0) if self._is_forgotten else outgoing.session_epoch,
            start_seq=start,
            window_batches=SESSION_WINDOW_BATCHES,
            token=self._target.token,
            name=self._target.name,
        )

    def is_granted(self, welcome: Welcome) -> bool:
        """Apply a WELCOME. False if another HELLO must be sent; raises `FencedError` if the session is over."""
        outgoing = self._outgoing
        if welcome.status in _GRANTED:
            if self._term not in (0, welcome.term) and welcome.next_seq < outgoing.lowest_unused:
                # The server restarted and lost batches that it had acknowledged.
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
        """Raise unless the server has merely expired the session and nothing that was sent is undecided."""
        client_id = self._outgoing.client_id or self._client_id
        if welcome.next_seq:
            raise FencedError(f"client {client_id} has a newer session: this publisher must stop")
        if self._outgoing.lowest_undecided < self._outgoing.next_seq:
            raise SessionExpiredError(
                f"the session of client {client_id} has expired on the server: batches that were sent and not "
                "acknowledged may be stored, and cannot be sent again; check the topic, then open a new publisher"
            )

    def _give_up_lost(self, welcome: Welcome) -> bool:
        first, last = welcome.next_seq, self._outgoing.lowest_unused - 1
        self._outgoing.report(
            OutcomeUnknownError(f"the server has lost batches {first} to {last}, which it had acknowledged")
        )
        self._flags = HelloFlags.OPEN | HelloFlags.ABANDON
        return False
