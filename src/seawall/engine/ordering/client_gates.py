"""Checks that the batches of a client are published in client order, for topics of order 5.

The store learns of the batches of a commit only when it is finished. So the next seq of each client is counted here,
within one commit, starting from what the store knows.

A batch passes if it is the next undecided one of its client, or was decided before.
"""

from __future__ import annotations

from typing import Final

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.commit.appends import Append
from seawall.engine.store.sessions import Sessions
from seawall.errors import WrongStateError
from seawall.sequencer.client_window import WindowCode

#: The states of a client seq that is decided.
_DECIDED: Final = (WindowCode.DUPLICATE, WindowCode.MISMATCH, WindowCode.REFUSED, WindowCode.SKIPPED)


class ClientGates:
    """The next seq of each client, within one commit."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._next_seqs: dict[ClientId, ClientSeq] = {}

    def clear(self) -> None:
        """Begin a new commit: the store knows everything that was published before."""
        self._next_seqs.clear()

    def check(self, append: Append) -> bool:
        """True if no earlier batch of the client is missing; else the append gets an error."""
        window, client_id = self._sessions.window, append.client_id
        if client_id not in window:
            return True
        next_seq = self._next_seqs.setdefault(client_id, window.state(client_id).next_expected)
        if append.client_seq <= next_seq or self._known(append, append.client_seq) is not WindowCode.NEW:
            return True
        append.error = WrongStateError(
            f"batch {append.client_seq} of client {client_id:016x} is ahead of batch {next_seq}, which was not stored: "
            f"order 5 stores the batches of a client in their order; publish {next_seq} first, then this one again"
        )
        return False

    def published(self, append: Append) -> None:
        """Record a published batch, and advance to the next undecided seq of its client."""
        next_seq = self._next_seqs.get(append.client_id)
        if next_seq is not None and append.client_seq == next_seq and self._known(append, next_seq) is WindowCode.NEW:
            next_seq = ClientSeq(next_seq + 1)
            while self._known(append, next_seq) in _DECIDED:
                next_seq = ClientSeq(next_seq + 1)
            self._next_seqs[append.client_id] = next_seq

    def _known(self, append: Append, client_seq: ClientSeq) -> WindowCode:
        """What the store knows about a client seq of the same session."""
        epoch = SessionEpoch(append.session_epoch)
        return self._sessions.window.check(append.client_id, epoch, client_seq, 0).code
