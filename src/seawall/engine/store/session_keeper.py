"""Opens, expires and retires the sessions of a store.

A control batch retires a session (`storage.control.sessions`), so replay retires it at the same point of the log. A
session expires `session_ttl_ms` after its last frame. Expiry is checked when a session opens, and by callers that have
a timer (`is_expiry_due`). When `sessions_max` is reached and another session opens, the longest idle ones are retired.

Expiry and `sessions_max` never retire a session that a connection or an open publisher uses, or that has a batch in
flight. `retire`, which names a client, first opens its session once more, which fences the current users.

Sessions open and retire at a position that the orderer assigns. This module must not know connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.ordering.orderer import Opened, Orderer, SessionSpec
from seawall.engine.store.parts import StoreParts
from seawall.errors import FullError, NotFoundError, WrongStateError
from seawall.limits import SESSIONS_RETIRED_MAX

#: The fraction of all sessions to retire at once when there are too many: finding them costs a sort of all.
_RETIRED_PART: Final = 64


class SessionKeeper:
    """Opens and retires the sessions of one store."""

    def __init__(self, parts: StoreParts, orderer: Orderer) -> None:
        self._sessions = parts.sessions
        self._settings = parts.settings
        self._guard = parts.guard
        self._controls = parts.controls
        self._clock = parts.machine.clock
        self._orderer = orderer

    def open(self, wanted: SessionSpec) -> Opened:
        """Open a session of a publisher and end the earlier ones: returns its epoch and the first undecided client seq.

        Durable when this returns.
        """
        self._guard.require_usable()
        self._make_space(wanted.client_id)
        return self._orderer.open_session(wanted, partial(self._log_session, wanted))

    def _log_session(self, wanted: SessionSpec) -> Opened:
        epoch, next_seq, row = self._sessions.open(wanted.client_id, wanted.start_seq, is_drawn=wanted.is_drawn)
        self._controls.commit(row)
        with self._guard.changing():
            self._sessions.apply(row, self._now_ms())
        return epoch, next_seq

    # --- time and space ------------------------------------------------------------------------------------------

    @property
    def is_expiry_due(self) -> bool:
        """True if it is time to call `expire`."""
        return self._sessions.is_check_due(self._now_ms())

    def expire(self) -> bool:
        """Retire expired sessions, as many as fit one control batch; true if there may be more."""
        now_ms = self._now_ms()
        live = self._sessions.live()
        self._sessions.note_activity(now_ms, live)
        silent = self._sessions.window.silent(now_ms - self._settings.session_ttl_ms)
        expired = [client_id for client_id in silent if client_id not in live]
        retired = self._retire(expired[:SESSIONS_RETIRED_MAX]) if expired else ()
        return bool(retired) and len(expired) > len(retired)

    def _make_space(self, client_id: ClientId) -> None:
        if client_id in self._sessions.window:
            return
        if self.is_expiry_due:
            self.expire()
        sessions_max = self._settings.sessions_max
        if len(self._sessions) < sessions_max:
            return
        live = self._sessions.live()
        self._sessions.note_activity(self._now_ms(), live)
        excess = len(self._sessions) - sessions_max + max(1, sessions_max // _RETIRED_PART)
        idle = [each for each in self._sessions.window.longest_silent() if each not in live]
        while excess > 0 and idle:
            count = min(excess, SESSIONS_RETIRED_MAX)
            excess -= len(self._retire(idle[:count]))
            del idle[:count]
        if len(self._sessions) >= sessions_max:
            raise FullError(
                f"{sessions_max} sessions are open, each with a connection or a batch in flight: close some "
                "publishers, or raise storage.sessions_max"
            )

    def _retire(self, client_ids: Sequence[ClientId]) -> Sequence[ClientId]:
        """Retire sessions durably; returns those that had nothing in flight."""
        return self._orderer.retire(client_ids, self._log_retired)

    def _log_retired(self, client_ids: Iterable[ClientId]) -> None:
        control = self._sessions.retire(client_ids)
        if control is not None:
            self._controls.commit(control)
            with self._guard.changing():
                self._sessions.apply_retired(control)

    def retire(self, client_id: ClientId) -> SessionEpoch:
        """End and forget a session, even if it is in use; returns the epoch below which its connections are fenced.

        Durable when this returns. `NotFoundError` if there is no such session.
        """
        if client_id not in self._sessions.window:
            raise NotFoundError(f"client {client_id} has no session here; `seawall session list` names those that have")
        epoch, _ = self.open(SessionSpec(client_id, ClientSeq(1)))
        if not self._retire([client_id]):
            raise WrongStateError(f"client {client_id} has batches in flight: its session was ended; retire it again")
        return epoch

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000
