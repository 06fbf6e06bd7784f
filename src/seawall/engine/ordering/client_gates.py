"""Whose turn it is among the batches of a client, for topics that store them in turn (order 5).

Within one commit the store has not heard yet of what was published before: so the next seq of each client is counted
on here, from what the store knows.

Only the next batch of a client that is not decided is in turn, or one that was decided before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.commit.appends import Append
from seawall.errors import WrongStateError
from seawall.sequencer.client_window import WindowCode

if TYPE_CHECKING:
    from seawall.engine.store.sessions import Sessions

#: What a client seq is that needs no batch any more.
_DECIDED: Final = (WindowCode.DUPLICATE, WindowCode.MISMATCH, WindowCode.REFUSED, WindowCode.SKIPPED)


class ClientGates:
    """The turns of one commit."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._turns: dict[ClientId, ClientSeq] = {}

    def clear(self) -> None:
        """The store knows all: a new commit begins."""
        self._turns.clear()

    def check(self, append: Append) -> bool:
        """Whether nothing is missing before a batch; else it has its error."""
        window, client_id = self._sessions.window, append.client_id
        if client_id not in window:
            return True
        turn = self._turns.setdefault(client_id, window.state(client_id).next_expected)
        if append.client_seq <= turn or self._known(append, append.client_seq) is not WindowCode.NEW:
            return True
        append.error = WrongStateError(
            f"batch {append.client_seq} of client {client_id:016x} is ahead of batch {turn}, which was not stored: "
            f"order 5 takes the batches of a client in turn; publish {turn} first, then this one again"
        )
        return False

    def published(self, append: Append) -> None:
        """A batch is on its way: the next that is not decided is in turn."""
        turn = self._turns.get(append.client_id)
        if turn is not None and append.client_seq == turn and self._known(append, turn) is WindowCode.NEW:
            turn = ClientSeq(turn + 1)
            while self._known(append, turn) in _DECIDED:
                turn = ClientSeq(turn + 1)
            self._turns[append.client_id] = turn

    def _known(self, append: Append, client_seq: ClientSeq) -> WindowCode:
        """What the store knows of a batch of the same session."""
        epoch = SessionEpoch(append.session_epoch)
        return self._sessions.window.check(append.client_id, epoch, client_seq, 0).code
