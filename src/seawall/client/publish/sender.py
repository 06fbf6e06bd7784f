"""The session of a publisher for threads, over its own connections: a waiting thread sends and receives for all.

    sender.offer(topic, topic_id, blocks)     queues records, and sends them at once if nothing is in flight
    delivery.result()                         leads: sends, receives and reconnects until the delivery is decided
    sender.drive()                            the same on a background thread, while no caller waits

One thread is the *leader* at a time. It alone waits for sockets, connects and receives acks, and releases the lock
meanwhile. It wakes other threads when what they wait for is done. A single publishing thread needs no other thread (see
also `waiting_sender`).

After a lost connection the sender reconnects with exponential backoff and joins the session; undecided batches are sent
again under their numbers. If no server answers for the target's timeout, everything in flight fails: batches that were
sent have an unknown outcome, the others were not stored. The same happens after an unexpected error (`failing`).

Only the leader opens, reads and closes connections; sending needs the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from seawall.api.publishable import Records
from seawall.client.connection.attempts import SessionAttempts
from seawall.client.connection.connection import Connection
from seawall.client.connection.refusals import SESSION_ENDING
from seawall.client.connection.retry import deadline_ns, seconds
from seawall.client.connection.session import Session
from seawall.client.connection.targets import Target
from seawall.client.publish.ack_handler import AckHandler
from seawall.client.publish.delivery import Batch, Delivery, undelivered
from seawall.client.publish.fail_guard import FailAll
from seawall.client.publish.outgoing import Outgoing
from seawall.core.types import TopicId
from seawall.errors import FencedError, FullError, ProtocolError, RetryableError, SeawallError, WrongStateError
from seawall.io.interfaces import Clock
from seawall.io.network.waitable_streams import Waker, await_streams
from seawall.io.process.clocks import OsClock
from seawall.io.process.exits import finish_at_exit
from seawall.io.process.own_process import disown_on_fork, inherited_error
from seawall.wire.format.codes import Kind
from seawall.wire.format.decoder import Frame

_MS: Final = 1_000_000
#: A caller that finds the in-flight window full waits until one part in this many is free.
_FREE_PART: Final = 4
#: The longest wait of a leader before it checks all timers again.
POLL_NS: Final = 1_000_000_000


class _Waiter:
    """A thread that waits while another one leads."""

    __slots__ = ("is_done", "is_over", "ready")

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self.is_done = is_done
        #: Set by the leader when it finds the wait done.
        self.is_over = False
        #: Locked until the thread is woken.
        self.ready = threading.Lock()
        self.ready.acquire()


class Sender:
    """A session and its connections. Threads may share it."""

    def __init__(self, target: Target, outgoing: Outgoing, *, client_id: int = 0, connections: int = 1) -> None:
        self._target = target
        self._outgoing = outgoing
        self._session = Session(target, outgoing, client_id)
        self._wanted = connections
        self._clock: Clock = OsClock()
        self._connections: list[Connection] = []
        #: Counts up to rotate over the connections, and over the addresses of the target.
        self._rotation = 0
        #: The lock, and a condition on it. `join` takes the bare lock, which costs no Python call.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._waker = Waker()
        self._has_leader = False
        #: Threads that wait while another one leads.
        self._waiters: list[_Waiter] = []
        #: Set when `close` starts, and when all records are failed.
        self._is_closed = self._is_over = False
        self._attempts = SessionAttempts(target, self._clock.monotonic_ns())
        self._acks = AckHandler(outgoing, self._clock)
        #: The error that ended the session.
        self.failure: SeawallError | None = None
        self._fail_guard = FailAll(self._fail)
        disown_on_fork(self)
        finish_at_exit(self)

    def disown(self) -> None:
        """Run in a forked child: the session, its connections and its records in flight are the parent's."""
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._has_leader, self._is_closed, self._is_over = False, True, True
        self._connections.clear()
        self._waker.close()
        self.failure = inherited_error("publisher")
        self._outgoing.fail(self.failure)
        self._outgoing.take_decided()

    def open(self) -> None:
        """Connect and open the session; raises the error that prevents it."""
        self._wait_until(lambda: bool(self._connections) or self.failure is not None, None)
        if self.failure is not None:
            self.close()
            raise self.failure

    # --- called by publishers --------------------------------------------------------------------------------------

    def offer(
        self, topic: str, topic_id: TopicId, blocks: Sequence[Records], client_seq: int | None = None
    ) -> Delivery:
        """Queue records; they are sent at once if nothing is in flight."""
        record_count = sum(block.record_count for block in blocks)
        with self._change:
            self._check_usable()
            now_ns = self._clock.monotonic_ns()
            was_empty = self._outgoing.is_empty
            if client_seq is None:
                batches, offset = self._outgoing.add(topic, topic_id, blocks, now_ns)
            else:
                batches, offset = self._outgoing.add_numbered(topic, topic_id, blocks, client_seq, now_ns), 0
            self._push(now_ns)
            if was_empty:
                # The thread in `drive` has work now.
                self._change.notify_all()
        return Delivery(self, batches, offset, record_count)

    def join(self, topic_id: TopicId, value: bytes, size_max: int) -> Delivery | None:
        """Add one small record to the open batch; None if it does not fit: use `offer`."""
        # A hot path of millions of records: a `with` statement for the lock would be its most expensive part.
        lock = self._lock
        lock.acquire()
        try:
            batch = self._outgoing.join(topic_id, value, size_max)
            if batch is None:
                return None
            offset = batch.record_count - 1
        finally:
            lock.release()
        return Delivery(self, (batch,), offset, 1)

    @property
    def next_number(self) -> int:
        """The client seq of the next batch."""
        with self._change:
            return self._outgoing.next_number

    def wait_for_space(self, size: int, size_max: int, *, may_wait: bool) -> None:
        """Wait until `size` more bytes fit into the in-flight window, or raise `FullError`.

        A single call always fits if nothing else is in flight.
        """
        in_flight = self._outgoing.size
        if not in_flight or in_flight + size <= size_max:
            return
        if not may_wait:
            raise FullError(f"{in_flight} bytes are in flight, the limit is {size_max}; wait for some of them")
        self.seal()
        # Wait for more than the needed space: a wake-up for each batch would dominate the cost.
        wanted = max(0, size_max - size_max // _FREE_PART - size)
        self._wait_until(lambda: self._outgoing.size <= wanted, None)

    def seal(self) -> None:
        """Seal the open batch and send it."""
        with self._change:
            self._outgoing.seal()
            self._push(self._clock.monotonic_ns())

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until everything is decided; False after `timeout_s`."""
        self.seal()
        return self._wait_until(lambda: self._outgoing.is_empty, timeout_s)

    def finish(self, timeout_s: float) -> int:
        """At interpreter exit: flush for at most `timeout_s`; returns the number of records that are not stored."""
        with self._change:
            batches = self._outgoing.undecided()
        if batches:
            self.flush(timeout_s)
        return undelivered(batches)

    def take_error(self) -> Exception | None:
        """Return the first error since the last call, or None."""
        with self._change:
            return self._outgoing.take_error()

    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> bool:
        """Wait until a delivery is decided; False after `timeout_s`.

        The records of several waiting threads share a batch while another one is in flight.
        """
        if self._outgoing.is_lingering:
            self.seal()
        return self._wait_until(lambda: delivery.done, timeout_s)

    def add_callback(self, batch: Batch, callback: Callable[[], object]) -> bool:
        """Call `callback` once the batch is decided; False, without a call, if it already is."""
        with self._change:
            if batch.is_done:
                return False
            batch.callbacks.append(callback)
            return True

    def drive(self) -> None:
        """Send and receive until the sender is closed: the body of the background thread."""
        while not self._is_closed and self.failure is None:
            with self._change, self._fail_guard:
                if self._outgoing.is_empty and not self._is_closed:
                    self._change.wait(seconds(self._keep_alive()))
                    if not self._has_leader and not self._is_closed:
                        self._receive()
            self._wait_until(lambda: self._outgoing.is_empty or self._is_closed, None)
        self._run_callbacks()

    def close(self) -> None:
        """Close the connections; undecided records fail. Idempotent."""
        with self._change:
            if self._is_closed:
                return
            self._is_closed = True
            self._waker.wake()
            while self._has_leader:
                self._change.wait()
            self._outgoing.fail(RetryableError("the publisher was closed before it was sent"))
            self._is_over = True
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._waker.close()
            self._wake_all()
        self._run_callbacks()

    # --- leading ---------------------------------------------------------------------------------------------------

    def _wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until `is_done`, leading while no other thread does, and running callbacks; False after `timeout_s`."""
        until_ns = deadline_ns(self._clock.monotonic_ns(), timeout_s)
        outcome: bool | None = None
        while outcome is None:
            outcome = self._wait_once(is_done, until_ns)
            if self._outgoing.decided:
                self._run_callbacks()
        return outcome

    def _wait_once(self, is_done: Callable[[], bool], until_ns: int | None) -> bool | None:
        """Lead once, or wait for the leader once. True if done, False after the deadline, None to continue."""
        with self._lock:
            left_ns = POLL_NS if until_ns is None else until_ns - self._clock.monotonic_ns()
            if is_done():
                return True
            if left_ns <= 0 or self._is_over:
                return False
            if not (self._has_leader or self._is_closed):
                self._has_leader = True
                try:
                    with self._fail_guard:
                        self._lead_until(is_done, until_ns)
                finally:
                    self._stop_leading()
                return None
            waiter = _Waiter(is_done)
            self._waiters.append(waiter)
        if not waiter.ready.acquire(timeout=seconds(left_ns)):
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        # Set by the leader before the wake-up, so no lock is needed to read it.
        return True if waiter.is_over else None

    def _wake_done(self) -> None:
        """Wake only the threads whose wait is over: others would compete for the GIL."""
        waiting: list[_Waiter] = []
        for waiter in self._waiters:
            if waiter.is_done():
                waiter.is_over = True
                waiter.ready.release()
            else:
                waiting.append(waiter)
        self._waiters = waiting

    def _wake_all(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.ready.release()
        self._change.notify_all()

    def _stop_leading(self) -> None:
        """Release leadership, and wake a waiting thread to take it."""
        self._has_leader = False
        self._wake_done()
        if self._waiters:
            self._waiters.pop(0).ready.release()
        self._change.notify_all()

    def _lead_until(self, is_done: Callable[[], bool], until_ns: int | None) -> None:
        """Lead until `is_done`, the deadline, or until there are callbacks to run.

        Wakes other threads when what they wait for is done, not for every decided batch.
        """
        outgoing = self._outgoing
        while not (is_done() or self._is_closed):
            left_ns = None if until_ns is None else until_ns - self._clock.monotonic_ns()
            if left_ns is not None and left_ns <= 0:
                return
            self._lead_once(left_ns)
            if outgoing.decided:
                self._wake_done()
                outgoing.drop_without_callbacks()
                if outgoing.decided:
                    return

    def _run_callbacks(self) -> None:
        """Run the callbacks of decided batches, without the lock: callbacks may publish."""
        with self._change:
            decided = self._outgoing.take_decided()
        for batch in decided:
            batch.run_callbacks()

    def _lead_once(self, left_ns: int | None) -> None:
        """One round of connecting, sending and receiving, for at most `left_ns`; None for no deadline.

        Called with the lock, and releases it while waiting.
        """
        now_ns = self._clock.monotonic_ns()
        if len(self._connections) < self._wanted and now_ns >= self._attempts.connect_after_ns:
            # Return to the caller, which may wait for this connection.
            self._connect(left_ns)
            self._push(self._clock.monotonic_ns())
            return
        self._push(now_ns, is_leader=True)
        pause_ns = min(self._next_timer_ns(now_ns) - now_ns, self._keep_alive())
        self._wait_and_receive(pause_ns if left_ns is None else min(left_ns, pause_ns))
        self._push(self._clock.monotonic_ns(), is_leader=True)

    def _wait_and_receive(self, pause_ns: int) -> None:
        """Wait for a socket without the lock, then receive."""
        streams = [connection.stream for connection in self._connections]
        self._lock.release()
        try:
            await_streams(streams, self._waker, seconds(pause_ns))
        finally:
            self._lock.acquire()
        self._receive()

    def _receive(self) -> None:
        """Receive from all connections. Called by the leader, or while there is none."""
        for connection in list(self._connections):
            try:
                connection.flush()
                for frame in connection.receive():
                    self._handle(frame)
            except (ConnectionError, ProtocolError) as error:
                self._drop(connection, error)

    def _next_timer_ns(self, now_ns: int) -> int:
        """When the next timer is due."""
        due_ns = now_ns + POLL_NS
        if len(self._connections) < self._wanted:
            due_ns = min(due_ns, self._attempts.connect_after_ns)
        outgoing_ns = self._outgoing.due_ns()
        if outgoing_ns is not None and outgoing_ns > now_ns:
            due_ns = min(due_ns, outgoing_ns)
        return due_ns

    def _keep_alive(self) -> int:
        """Ping quiet servers; returns the nanoseconds until the next ping is due."""
        now_ns = self._clock.monotonic_ns()
        due_ns = now_ns + POLL_NS
        for connection in list(self._connections):
            try:
                due_ns = min(due_ns, connection.keep_alive(now_ns))
            except ConnectionError as error:
                self._drop(connection, error)
        return max(_MS, due_ns - now_ns)

    def _push(self, now_ns: int, *, is_leader: bool = False) -> None:
        """Send what may be sent, round-robin over writable connections; wakes the leader for unsent data."""
        with self._fail_guard:
            while open_ones := [
                each for each in self._connections if not each.is_write_blocked and each.goodbye is None
            ]:
                batch = self._outgoing.next_batch(now_ns)
                if batch is None:
                    break
                self._rotation += 1
                connection = open_ones[self._rotation % len(open_ones)]
                try:
                    self._send(connection, batch)
                except ConnectionError:
                    # The leader notices the loss and drops the connection.
                    self._waker.wake()
                    break
                if connection.is_write_blocked and not is_leader:
                    self._waker.wake()

    def _send(self, connection: Connection, batch: Batch) -> None:
        self._outgoing.sent(batch, connection)
        wall_ns = self._clock.wall_ns()
        held = self._outgoing.held_frame_of(batch, wall_ns) if connection.can_stream_values else None
        if held is not None:
            connection.send_values(*held)
        else:
            connection.send(*self._outgoing.frame_of(batch, wall_ns))

    def _handle(self, frame: Frame) -> None:
        if frame.header.kind == Kind.ACK:
            self._attempts.answered()
        try:
            self._acks.apply(frame)
        except SESSION_ENDING as error:
            self._fail(error)

    # --- connections -----------------------------------------------------------------------------------------------

    def _connect(self, left_ns: int | None) -> None:
        """Open one more connection, without the lock meanwhile."""
        address, hello = self._attempts.next_address(), self._session.hello()
        timeout_s = self._target.connect_timeout_s
        if left_ns is not None:
            timeout_s = min(timeout_s, seconds(left_ns))
        problem: Exception | None = None
        connection = None
        self._change.release()
        try:
            tls = self._target.tls
            connection = Connection.open(address, hello, timeout_s=timeout_s, clock=self._clock, tls=tls)
        except (ConnectionError, SeawallError) as error:
            problem = error
        finally:
            self._change.acquire()
        try:
            if connection is not None and self._session.is_granted(connection.welcome):
                self._connections.append(connection)
                self._attempts.connected(is_idle=self._outgoing.is_empty)
                return
        except FencedError as error:
            problem = error
        if connection is not None:
            connection.close()
        if problem is None:
            self._attempts.not_granted()
        else:
            self._fail_if(self._attempts.failed(problem, address, self._clock.monotonic_ns()))

    def _drop(self, connection: Connection, error: Exception) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        connection.close()
        self._outgoing.lost(connection)
        if self.failure is not None:
            self._outgoing.fail(self.failure)
        now_ns = self._clock.monotonic_ns()
        self._fail_if(self._attempts.lost(error, connection.address, now_ns, others_left=bool(self._connections)))

    def _fail_if(self, error: SeawallError | None) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: SeawallError) -> None:
        self.failure = error
        self._outgoing.fail(error)
        self._wake_all()

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._is_closed:
            raise WrongStateError("this publisher is closed")
