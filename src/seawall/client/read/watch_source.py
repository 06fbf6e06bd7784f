"""The source of a watch of a log on a server, for threads: a connection of its own, to which the server pushes.

After a lost connection the watch continues where it was. Steps that were received stay with the source until they are
returned, so an interrupted call loses none; a new connection is opened only when all were.
"""

from __future__ import annotations

from seawall.api.watch_items import Step, WatchProgress, has_item
from seawall.client.connection.connection import Connection
from seawall.client.connection.requests import Requests
from seawall.client.connection.retry import Backoff, deadline_ns, seconds
from seawall.client.read.push_subscription import FRAME_SIZE
from seawall.client.read.pushed_watch import PushedWatch
from seawall.errors import RetryableError
from seawall.io.network.waitable_streams import await_streams
from seawall.io.process.own_process import OwnProcess


class RemoteWatchSource:
    """Receives the steps of one watch."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._clock = requests.clock
        self._process = OwnProcess("watch")
        self._backoff = Backoff()
        self._connection: Connection | None = None
        self._pushed: PushedWatch | None = None
        self._steps: list[Step] = []
        self._frame_size = FRAME_SIZE
        self._is_careful = False
        self._has_begun = False
        #: Since when no server was reached; None while one is.
        self._unreachable_since_ns: int | None = None

    def receive(self, progress: WatchProgress, timeout_s: float | None) -> list[Step]:
        """The next steps; waits up to `timeout_s` until they include an item, None without limit.

        The first call waits until the watch has begun.
        """
        self._process.check()
        end_ns = deadline_ns(self._clock.monotonic_ns(), timeout_s)
        try:
            while not self._is_enough:
                if self._connection is None and self._steps:
                    # The watch has to move past them before it continues elsewhere.
                    break
                left_s = self._left_s(end_ns if self._has_begun else None)
                self._try_receive(progress, left_s)
                if left_s is not None and left_s <= 0:
                    break
        except BaseException:
            self.close()
            raise
        steps, self._steps = self._steps, []
        return steps

    def close(self) -> None:
        """Close the connection. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def _is_enough(self) -> bool:
        return self._has_begun and has_item(self._steps)

    def _left_s(self, end_ns: int | None) -> float | None:
        return None if end_ns is None else max(0.0, seconds(end_ns - self._clock.monotonic_ns()))

    def _try_receive(self, progress: WatchProgress, left_s: float | None) -> None:
        """Receive what has arrived, or wait for it; connect first if there is no connection."""
        try:
            connection = self._connected(progress)
            if not self._take_arrived(connection) and self._connection is not None and left_s != 0:
                due_s = seconds(connection.keep_alive(self._clock.monotonic_ns()) - self._clock.monotonic_ns())
                connection.wait(due_s if left_s is None else min(due_s, left_s))
        except (ConnectionError, RetryableError) as error:
            self._pause_after(error, left_s)

    def _connected(self, progress: WatchProgress) -> Connection:
        """The connection of the watch; a new one starts it where it is."""
        if self._connection is None:
            timeout_ns = int(self._requests.target.timeout_s * 1e9)
            connection = self._requests.open_connection(self._clock.monotonic_ns() + timeout_ns)
            self._frame_size = self._requests.response_size.at_most(FRAME_SIZE)
            self._connection = connection
            self._pushed = PushedWatch(connection.new_id(), self._frame_size, is_careful=self._is_careful)
            connection.send(self._pushed.request(progress))
            self._unreachable_since_ns = None
        return self._connection

    def _take_arrived(self, connection: Connection) -> bool:
        """Take the frames that have arrived; False if there were none."""
        pushed = self._pushed
        assert pushed is not None, "set with the connection"
        frames = connection.receive()
        for frame in frames:
            self._steps += pushed.take(frame)
            self._has_begun |= pushed.has_begun
            self._backoff.succeeded()
            self._requests.response_size.arrived(frame.header.payload_length)
            credit = pushed.credit()
            if credit is not None:
                connection.send(credit)
            if pushed.is_over:
                self._is_careful = True
                self.close()
                break
        return bool(frames)

    def _pause_after(self, error: Exception, left_s: float | None) -> None:
        """Drop a lost connection and wait before the next attempt; raises if no server was reached for too long."""
        connection, now_ns = self._connection, self._clock.monotonic_ns()
        if connection is not None and connection.has_partial_frame:
            self._requests.response_size.lost(self._frame_size)
        self.close()
        if self._unreachable_since_ns is None:
            self._unreachable_since_ns = now_ns
        pause_ns = self._backoff.pause_ns()
        if now_ns + pause_ns - self._unreachable_since_ns >= self._requests.target.timeout_s * 1e9:
            raise RetryableError(f"no server at {self._requests.target}: {error}") from error
        await_streams([], None, seconds(pause_ns) if left_s is None else min(seconds(pause_ns), left_s))
