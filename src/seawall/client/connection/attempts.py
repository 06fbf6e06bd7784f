"""Decides after a failed attempt whether to try again, after which pause, and with which error to give up. No I/O.

`RequestAttempts` decides for one request, `SessionAttempts` for the connections of a publisher's session. Threads and
event loops use the same objects: they read the clock, connect and pause.

Both give up after the timeout of the target. An error that another attempt cannot change, such as a wrong token, ends
them at once.
"""

from __future__ import annotations

from seawall.client.connection.retry import Backoff, seconds
from seawall.client.connection.targets import Target
from seawall.errors import OutcomeUnknownError, RetryableError, SeawallError

_NS_PER_S = 1_000_000_000


class RequestAttempts:
    """The attempts of one request."""

    def __init__(self, target: Target, now_ns: int, *, is_repeatable: bool) -> None:
        self._target = target
        self._is_repeatable = is_repeatable
        self._backoff = Backoff()
        self.deadline_ns = now_ns + int(target.timeout_s * _NS_PER_S)

    def pause_ns(self, error: ConnectionError | RetryableError, now_ns: int, *, was_sent: bool) -> int:
        """The pause before the next attempt; raises what the caller gets if there is none.

        `was_sent`: the request may have reached the server. One that must not happen twice is then of unknown outcome,
        unless the server refused it.
        """
        is_refused = isinstance(error, RetryableError)
        if was_sent and not self._is_repeatable and not is_refused:
            raise OutcomeUnknownError(f"the connection was lost before the answer came: {error}") from error
        pause_ns = self._backoff.pause_ns()
        if now_ns + pause_ns < self.deadline_ns:
            return pause_ns
        if is_refused:
            raise error
        raise RetryableError(f"no answer from {self._target}: {error}") from error

    def timed_out(self, error: TimeoutError) -> SeawallError:
        """The error for a request that was sent and not answered in time."""
        kind = RetryableError if self._is_repeatable else OutcomeUnknownError
        return kind(str(error) or f"{self._target} did not answer in time")


class SessionAttempts:
    """The attempts of one session to connect.

    The timeout starts when the session has no connection left, and stops when the server decides a batch: a server that
    accepts connections and closes them without an answer counts as unreachable.
    """

    def __init__(self, target: Target, now_ns: int) -> None:
        self._target = target
        self._backoff = Backoff()
        self._attempt_count = 0
        #: Since when no connection has delivered an answer; 0 while one has.
        self._unreachable_since_ns = now_ns
        #: Earliest time of the next attempt; 0 if it may start at once.
        self.connect_after_ns = 0

    def next_address(self) -> str:
        """The address of the next attempt: all addresses of the target in rotation."""
        address = self._target.addresses[self._attempt_count % len(self._target.addresses)]
        self._attempt_count += 1
        return address

    def connected(self, *, is_idle: bool) -> None:
        """A connection is open and its session is granted. While nothing is in flight no answer can be expected."""
        self.connect_after_ns = 0
        if is_idle:
            self._unreachable_since_ns = 0

    def answered(self) -> None:
        """The server has decided something: pauses start short again."""
        self._unreachable_since_ns = 0
        self._backoff.succeeded()

    def not_granted(self) -> None:
        """The server does not know the session: ask for another one at once."""
        self.connect_after_ns = 0

    def failed(self, error: Exception, address: str, now_ns: int) -> SeawallError | None:
        """An attempt failed. Returns the error of the session if there is no other attempt."""
        self.connect_after_ns = now_ns + self._backoff.pause_ns()
        return self._final_error(error, address, now_ns)

    def lost(self, error: Exception, address: str, now_ns: int, *, others_left: bool) -> SeawallError | None:
        """A connection was lost. Returns the error of the session if there is no other attempt."""
        if self.connect_after_ns == 0:
            self.connect_after_ns = now_ns + self._backoff.pause_ns()
        if others_left:
            return None
        self._unreachable_since_ns = self._unreachable_since_ns or now_ns
        return self._final_error(error, address, now_ns)

    def _final_error(self, error: Exception, address: str, now_ns: int) -> SeawallError | None:
        if isinstance(error, SeawallError) and not isinstance(error, RetryableError):
            return error
        if not self._unreachable_since_ns:
            return None
        unreachable_ns = now_ns - self._unreachable_since_ns
        if unreachable_ns < self._target.timeout_s * _NS_PER_S:
            return None
        return RetryableError(f"no server at {address} for {seconds(unreachable_ns):.1f} s: {error}")
