"""The session of a publisher on an event loop: the state machine of `outgoing` with asyncio connections.

Records published in one iteration of the loop share a batch. A task reopens lost connections and joins the session;
undecided batches are sent again under their numbers. Timeouts are those of `sender`. Everything runs on the loop it
was opened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from seawall.api.publishable import Records
from seawall.client.connection.aio_connection import AsyncConnection
from seawall.client.connection.attempts import SessionAttempts
from seawall.client.connection.refusals import SESSION_ENDING
from seawall.client.connection.retry import seconds
from seawall.client.connection.session import Session
from seawall.client.connection.targets import Target
from seawall.client.publish.ack_handler import AckHandler
from seawall.client.publish.delivery import Batch, Delivery, undelivered
from seawall.client.publish.fail_guard import FailAll
from seawall.client.publish.outgoing import Outgoing
from seawall.core.types import TopicId
from seawall.errors import FencedError, ProtocolError, RetryableError, SeawallError, WrongStateError
from seawall.io.process.clocks import OsClock
from seawall.io.process.exits import finish_at_exit, report_undelivered
from seawall.io.process.own_process import disown_on_fork, inherited_error
from seawall.wire.format.codes import Kind
from seawall.wire.format.decoder import Frame


class AsyncSender:
    """A session and its connections on an event loop."""

    def __init__(self, target: Target, outgoing: Outgoing, *, client_id: int = 0, connections: int = 1) -> None:
        self._target = target
        self._outgoing = outgoing
        self._session = Session(target, outgoing, client_id)
        self._wanted = connections
        self._clock = OsClock()
        self._loop = asyncio.get_running_loop()
        self._connections: list[AsyncConnection] = []
        self._rotation = 0
        self._attempts = SessionAttempts(target, self._clock.monotonic_ns())
        self._acks = AckHandler(outgoing, self._clock)
        self._is_closed = False
        self._push_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The error that ended the session.
        self.failure: SeawallError | None = None
        self._fail_guard = FailAll(self._fail)
        #: For received frames: the connection handles the errors that end only itself.
        self._frame_guard = FailAll(self._fail, ConnectionError, ProtocolError)
        disown_on_fork(self)
        finish_at_exit(self)

    def disown(self) -> None:
        """Run in a forked child: the session, its connections and its records in flight are the parent's."""
        self._is_closed = True
        self._connections.clear()
        self._waiters.clear()
        self.failure = inherited_error("publisher")
        self._outgoing.fail(self.failure)
        self._outgoing.take_decided()

    async def open(self) -> None:
        """Connect and open the session; raises the error that prevents it."""
        self._task = self._loop.create_task(self._stay_connected())
        await self._wait_until(lambda: bool(self._connections) or self.failure is not None)
        if self.failure is not None:
            await self.close()
            raise self.failure

    # --- called by publishers --------------------------------------------------------------------------------------

    def offer(
        self, topic: str, topic_id: TopicId, blocks: Sequence[Records], client_seq: int | None = None
    ) -> Delivery:
        """Queue records; they are sent in this iteration of the loop if nothing is in flight."""
        if self.failure is not None:
            raise self.failure
        if self._is_closed:
            raise WrongStateError("this publisher is closed")
        record_count = sum(block.record_count for block in blocks)
        now_ns = self._clock.monotonic_ns()
        if client_seq is None:
            batches, offset = self._outgoing.add(topic, topic_id, blocks, now_ns)
        else:
            batches, offset = self._outgoing.add_numbered(topic, topic_id, blocks, client_seq, now_ns), 0
        self._push_soon()
        return Delivery(self, batches, offset, record_count)

    def join(self, topic_id: TopicId, value: bytes, size_max: int) -> Delivery | None:
        """Add one small record to the open batch; None if it does not fit: use `offer`."""
        batch = self._outgoing.join(topic_id, value, size_max)
        return None if batch is None else Delivery(self, (batch,), batch.record_count - 1, 1)

    @property
    def next_number(self) -> int:
        """The client seq of the next batch."""
        return self._outgoing.next_number

    def has_space(self, size: int, size_max: int) -> bool:
        """True if `size` more bytes fit into the in-flight window; always if nothing is in flight."""
        return not self._outgoing.size or self._outgoing.size + size <= size_max

    async def wait_for_space(self, size: int, size_max: int) -> None:
        """Wait until `size` more bytes fit into the in-flight window."""
        await self._wait_until(lambda: self.has_space(size, size_max))

    async def flush(self) -> None:
        """Wait until everything is decided."""
        self._outgoing.seal()
        self._push()
        await self._wait_until(lambda: self._outgoing.is_empty)

    def finish(self, timeout_s: float) -> int:
        """At interpreter exit, on another thread: flush on the loop; returns the number of records not stored.

        If the loop does not run any more, nothing is sent.
        """
        batches = [] if self._loop.is_running() else self._outgoing.undecided()
        if self._loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._flush_into(batches), self._loop).result(timeout_s)
        count = undelivered(batches)
        # So that `__del__` does not report the same records again.
        self._is_closed = True
        return count

    async def _flush_into(self, batches: list[Batch]) -> None:
        batches += self._outgoing.undecided()
        await self.flush()

    def __del__(self) -> None:
        if not self._is_closed:
            report_undelivered(undelivered(self._outgoing.undecided()))

    def take_error(self) -> Exception | None:
        """Return the first error since the last call, or None."""
        return self._outgoing.take_error()

    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> bool:
        """Raise `WrongStateError`: a blocking wait would stop the loop."""
        raise WrongStateError(f"cannot wait {timeout_s} s on an event loop for {delivery!r}: await it")

    def add_callback(self, batch: Batch, callback: Callable[[], object]) -> bool:
        """Call `callback` once the batch is decided; False, without a call, if it already is."""
        if batch.is_done:
            return False
        batch.callbacks.append(callback)
        return True

    async def close(self) -> None:
        """Close the connections; undecided records fail. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._outgoing.fail(RetryableError("the publisher was closed before it was sent"))
        for connection in list(self._connections):
            connection.close()
        self._run_callbacks()

    # --- sending and receiving -------------------------------------------------------------------------------------

    def _push_soon(self) -> None:
        if not self._push_is_due:
            self._push_is_due = True
            self._loop.call_soon(self._push)

    def _push(self) -> None:
        """Send what may be sent, round-robin over writable connections."""
        self._push_is_due = False
        now_ns = self._clock.monotonic_ns()
        with self._fail_guard:
            while open_ones := [each for each in self._connections if each.is_open and not each.is_write_blocked]:
                batch = self._outgoing.next_batch(now_ns)
                if batch is None:
                    break
                self._rotation += 1
                connection = open_ones[self._rotation % len(open_ones)]
                self._outgoing.sent(batch, connection)
                connection.send(*self._outgoing.frame_of(batch, self._clock.wall_ns()))
        due_ns = self._outgoing.due_ns()
        if due_ns is not None and due_ns > now_ns and not self._is_closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(seconds(due_ns - now_ns), self._push)

    def _handle(self, _connection: AsyncConnection, frame: Frame) -> None:
        with self._frame_guard:
            self._apply(frame)
            self._push()
        self._run_callbacks()

    def _apply(self, frame: Frame) -> None:
        if frame.header.kind == Kind.ACK:
            self._attempts.answered()
        try:
            self._acks.apply(frame)
        except SESSION_ENDING as error:
            self._fail(error)

    def _run_callbacks(self) -> None:
        for batch in self._outgoing.take_decided():
            batch.run_callbacks()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    # --- connections -----------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        with self._fail_guard:
            await self._connect_while_usable()

    async def _connect_while_usable(self) -> None:
        while self.failure is None:
            self._lost.clear()
            pause_ns = self._attempts.connect_after_ns - self._clock.monotonic_ns()
            if len(self._connections) >= self._wanted:
                await self._lost.wait()
            elif pause_ns > 0:
                await asyncio.sleep(seconds(pause_ns))
            else:
                await self._connect()

    async def _connect(self) -> None:
        """Open one more connection."""
        address = self._attempts.next_address()
        try:
            connection = await AsyncConnection.open(
                address, self._session.hello(), timeout_s=self._target.connect_timeout_s, tls=self._target.tls
            )
        except (ConnectionError, SeawallError) as error:
            self._fail_if(self._attempts.failed(error, address, self._clock.monotonic_ns()))
            return
        try:
            is_granted = self._session.is_granted(connection.welcome)
        except FencedError as error:
            connection.close()
            self._fail_if(self._attempts.failed(error, address, self._clock.monotonic_ns()))
            return
        if not is_granted:
            connection.close()
            self._attempts.not_granted()
            return
        connection.on_frame, connection.on_space, connection.on_lost = self._handle, self._push_soon, self._drop
        self._connections.append(connection)
        self._attempts.connected(is_idle=self._outgoing.is_empty)
        if not connection.is_open:
            self._drop(connection, ConnectionError("lost at once"))
        self._push()
        self._run_callbacks()

    def _drop(self, connection: AsyncConnection, error: Exception) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._outgoing.lost(connection)
        if self.failure is not None:
            self._fail(self.failure)
        now_ns = self._clock.monotonic_ns()
        if not self._is_closed:
            self._fail_if(self._attempts.lost(error, connection.address, now_ns, others_left=bool(self._connections)))
            self._push_soon()
        self._lost.set()

    def _fail_if(self, error: SeawallError | None) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: SeawallError) -> None:
        self.failure = error
        self._outgoing.fail(error)
        self._run_callbacks()
