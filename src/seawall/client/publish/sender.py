"""A session of a publisher over sockets of its own, for threads: whoever waits sends and receives, for everybody.

    sender.offer(topic, topic_id, blocks)     queues records, and sends them at once if nothing is on its way
    delivery.result()                         leads: sends, receives and reconnects until it is decided
    sender.drive()                            the same for a thread of its own, where nobody waits

One thread leads at a time; it alone waits for sockets, connects and receives verdicts, and releases the lock meanwhile.
Others are woken when what they wait for is there. A lone publisher needs no other thread (see also `lone_sender`).

Lost connections are made again after a pause that grows, joining the session; what was sent on one and is not decided
is sent again under its number. If for as long as the target's patience lasts there is no server, or none that answers
before its connection is lost, everything under way fails: what was sent is of unknown fate, the rest did not happen.
So it does if sending breaks by an error that nobody expected (`failing`).

Connections are opened, read and closed by the leader only; sending needs the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from seawall.api.publishable import Records
from seawall.client.connection.connection import Connection
from seawall.client.connection.refusals import SESSION_ENDING
from seawall.client.connection.retry import Backoff, deadline_ns, seconds
from seawall.client.connection.session import Session
from seawall.client.connection.targets import Target
from seawall.client.publish.delivery import Batch, Delivery, undelivered
from seawall.client.publish.failing import FailAll
from seawall.client.publish.outgoing import Outgoing
from seawall.client.publish.verdicts import Verdicts
from seawall.core.latency import LatencySummary
from seawall.core.types import TopicId
from seawall.errors import FencedError, FullError, ProtocolError, RetryableError, SeawallError, WrongStateError
from seawall.io.interfaces import Clock
from seawall.io.network.waitable_streams import Waker, await_streams
from seawall.io.process.clocks import OsClock
from seawall.io.process.exits import finish_at_exit
from seawall.io.process.own_process import disown_on_fork, not_inherited
from seawall.wire.format.codes import Kind
from seawall.wire.format.decoder import Frame

_MS: Final = 1_000_000
#: Who finds no room waits until this part of all that may be under way is free.
_ROOM_PART: Final = 4
#: Longest that a leader waits without looking around.
LOOK_NS: Final = 1_000_000_000


class _Waiter:
    """A thread that waits for something while another one leads."""

    __slots__ = ("is_done", "is_over", "ready")

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self.is_done = is_done
        #: Whether it was found to be done, by the leader.
        self.is_over = False
        #: Taken until the thread is woken.
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
        self._turn = 0
        #: The lock, and the condition on it: a record that joins others takes the lock alone, without calls of Python.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._waker = Waker()
        self._leads = False
        #: Threads that wait while another one leads.
        self._waiters: list[_Waiter] = []
        #: Whether somebody ends it, and whether everything has been told so.
        self._is_closed = self._is_over = False
        self._backoff = Backoff()
        self._verdicts = Verdicts(outgoing, self._clock)
        self._connect_after_ns = 0
        #: Since when there is no connection, or none that has brought an answer; 0 while there is one.
        self._alone_since_ns = self._clock.monotonic_ns()
        #: Why nothing can be sent any more.
        self.failure: SeawallError | None = None
        self._guard = FailAll(self._fail)
        disown_on_fork(self)
        finish_at_exit(self)

    def disown(self) -> None:
        """This is a forked child: session, connections and records under way are the parent's."""
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._leads, self._is_closed, self._is_over = False, True, True
        self._connections.clear()
        self._waker.close()
        self.failure = not_inherited("publisher")
        self._outgoing.fail(self.failure)
        self._outgoing.take_decided()

    def open(self) -> None:
        """Find the server and open the session; raises what is in the way."""
        self._wait_until(lambda: bool(self._connections) or self.failure is not None, None)
        if self.failure is not None:
            self.close()
            raise self.failure

    # --- what publishers do ----------------------------------------------------------------------------------------

    def offer(
        self, topic: str, topic_id: TopicId, blocks: Sequence[Records], client_seq: int | None = None
    ) -> Delivery:
        """Queue records; they are sent at once where nothing is on its way."""
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
                # Whoever drives it has something to drive now.
                self._change.notify_all()
        return Delivery(self, batches, offset, record_count)

    def join(self, topic_id: TopicId, value: bytes, size_max: int) -> Delivery | None:
        """Queue one small record behind others that are gathered; None if it has to be offered."""
        # Records come this way in their millions: taking the lock by a `with` would be the dearest part of it.
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
    def size(self) -> int:
        """Bytes that are not decided."""
        return self._outgoing.size

    @property
    def latency(self) -> LatencySummary:
        """How long stored batches took so far."""
        return self._outgoing.latency.summary()

    @property
    def next_number(self) -> int:
        """The client seq that the next batch gets."""
        with self._change:
            return self._outgoing.next_number

    def wait_for_space(self, size: int, size_max: int, *, may_wait: bool) -> None:
        """Wait until so many more bytes may be under way, or raise `FullError`; one alone may always."""
        under_way = self._outgoing.size
        if not under_way or under_way + size <= size_max:
            return
        if not may_wait:
            raise FullError(f"{under_way} bytes are on their way, at most {size_max}; wait for some of them")
        self.seal()
        # For more room than that: who is woken for every batch spends its time with being woken.
        wanted = max(0, size_max - size_max // _ROOM_PART - size)
        self._wait_until(lambda: self._outgoing.size <= wanted, None)

    def seal(self) -> None:
        """Send what is gathered, and gather anew."""
        with self._change:
            self._outgoing.seal()
            self._push(self._clock.monotonic_ns())

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until everything is decided; false if that takes too long."""
        self.seal()
        return self._wait_until(lambda: self._outgoing.is_empty, timeout_s)

    def finish(self, timeout_s: float) -> int:
        """Send what is under way when the interpreter ends, for so long at the most; records that are not stored."""
        with self._change:
            batches = self._outgoing.undecided()
        if batches:
            self.flush(timeout_s)
        return undelivered(batches)

    def take_error(self) -> Exception | None:
        """The first error since the last time somebody asked."""
        with self._change:
            return self._outgoing.take_error()

    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> bool:
        """Wait until a delivery is decided; false if that takes too long.

        Records of several threads that wait share a batch while another one is on its way.
        """
        if self._outgoing.is_lingering:
            self.seal()
        return self._wait_until(lambda: delivery.done, timeout_s)

    def add_callback(self, batch: Batch, callback: Callable[[], object]) -> bool:
        """Have it called once the batch is decided; false, and nothing, if it is."""
        with self._change:
            if batch.is_done:
                return False
            batch.callbacks.append(callback)
            return True

    def drive(self) -> None:
        """Send and receive for everybody until it is closed: the work of a thread of its own."""
        while not self._is_closed and self.failure is None:
            with self._change, self._guard:
                if self._outgoing.is_empty and not self._is_closed:
                    self._change.wait(seconds(self._keep_alive()))
                    if not self._leads and not self._is_closed:
                        self._listen()
            self._wait_until(lambda: self._outgoing.is_empty or self._is_closed, None)
        self._announce()

    def close(self) -> None:
        """End the connections; what is not decided fails. Closing twice is fine."""
        with self._change:
            if self._is_closed:
                return
            self._is_closed = True
            self._waker.wake()
            while self._leads:
                self._change.wait()
            self._outgoing.fail(RetryableError("the publisher was closed before it was sent"))
            self._is_over = True
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._waker.close()
            self._wake_all()
        self._announce()

    # --- leading ---------------------------------------------------------------------------------------------------

    def _wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for something, and lead while nobody else does; whoever is to be told of something is told meanwhile."""
        until_ns = deadline_ns(self._clock.monotonic_ns(), timeout_s)
        outcome: bool | None = None
        while outcome is None:
            outcome = self._wait_once(is_done, until_ns)
            if self._outgoing.decided:
                self._announce()
        return outcome

    def _wait_once(self, is_done: Callable[[], bool], until_ns: int | None) -> bool | None:
        """Lead, or wait for who does; whether something was waited for to its end, None if it is to be waited on."""
        with self._lock:
            left_ns = LOOK_NS if until_ns is None else until_ns - self._clock.monotonic_ns()
            if is_done():
                return True
            if left_ns <= 0 or self._is_over:
                return False
            if not (self._leads or self._is_closed):
                self._leads = True
                try:
                    with self._guard:
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
        # Whoever is woken because it is done needs no lock to know.
        return True if waiter.is_over else None

    def _wake_done(self) -> None:
        """Wake those whose wait is over, and nobody else, who would take the interpreter from them."""
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
        """Let another thread lead: one of those that still wait."""
        self._leads = False
        self._wake_done()
        if self._waiters:
            self._waiters.pop(0).ready.release()
        self._change.notify_all()

    def _lead_until(self, is_done: Callable[[], bool], until_ns: int | None) -> None:
        """Lead until something is done, it is too late, or there is something to announce.

        Others are woken when what they wait for is done, and not whenever something is decided.
        """
        outgoing = self._outgoing
        while not (is_done() or self._is_closed):
            left_ns = LOOK_NS if until_ns is None else until_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                return
            self._lead(left_ns)
            if outgoing.decided:
                self._wake_done()
                outgoing.forget_silent()
                if outgoing.decided:
                    return

    def _announce(self) -> None:
        """Tell of what was decided, without the lock: callbacks may publish."""
        with self._change:
            decided = self._outgoing.take_decided()
        for batch in decided:
            batch.announce()

    def _lead(self, left_ns: int) -> None:
        """One look at everything; called with the lock, which it lets go while it waits."""
        now_ns = self._clock.monotonic_ns()
        if len(self._connections) < self._wanted and now_ns >= self._connect_after_ns:
            # Whoever waits may have waited for this.
            self._connect(now_ns, left_ns)
            self._push(self._clock.monotonic_ns())
            return
        self._push(now_ns, is_leader=True)
        pause_ns = min(left_ns, self._next_look_ns(now_ns) - now_ns, self._keep_alive())
        self._hear(pause_ns)
        self._push(self._clock.monotonic_ns(), is_leader=True)

    def _hear(self, pause_ns: int) -> None:
        """Wait until something comes, and take it; the lock is free meanwhile."""
        streams = [connection.stream for connection in self._connections]
        self._lock.release()
        try:
            await_streams(streams, self._waker, seconds(pause_ns))
        finally:
            self._lock.acquire()
        self._listen()

    def _listen(self) -> None:
        """Take what has come, from whoever; called by the leader, or where there is none."""
        for connection in list(self._connections):
            try:
                connection.flush()
                for frame in connection.receive():
                    self._heard(frame)
            except (ConnectionError, ProtocolError) as error:
                self._drop(connection, error)

    def _next_look_ns(self, now_ns: int) -> int:
        """When there is something to do though nothing comes."""
        due_ns = now_ns + LOOK_NS
        if len(self._connections) < self._wanted:
            due_ns = min(due_ns, self._connect_after_ns)
        outgoing_ns = self._outgoing.due_ns()
        if outgoing_ns is not None and outgoing_ns > now_ns:
            due_ns = min(due_ns, outgoing_ns)
        return due_ns

    def _keep_alive(self) -> int:
        """Ping where it is quiet; how long until that is due again."""
        now_ns = self._clock.monotonic_ns()
        due_ns = now_ns + LOOK_NS
        for connection in list(self._connections):
            try:
                due_ns = min(due_ns, connection.keep_alive(now_ns))
            except ConnectionError as error:
                self._drop(connection, error)
        return max(_MS, due_ns - now_ns)

    def _push(self, now_ns: int, *, is_leader: bool = False) -> None:
        """Send what may be sent, in turn over the connections that have room; a leader need not be woken for more."""
        with self._guard:
            while open_ones := [
                each for each in self._connections if not each.is_write_blocked and each.goodbye is None
            ]:
                batch = self._outgoing.next_batch(now_ns)
                if batch is None:
                    break
                self._turn += 1
                connection = open_ones[self._turn % len(open_ones)]
                try:
                    self._send(connection, batch)
                except ConnectionError:
                    # The leader will find it, and drop it.
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

    def _heard(self, frame: Frame) -> None:
        if frame.header.kind == Kind.ACK:
            self._has_heard()
        try:
            self._verdicts.apply(frame)
        except SESSION_ENDING as error:
            self._fail(error)

    def _has_heard(self) -> None:
        """A server has answered: pauses begin anew."""
        self._alone_since_ns = 0
        self._backoff.succeeded()

    # --- connections -----------------------------------------------------------------------------------------------

    def _connect(self, now_ns: int, left_ns: int) -> None:
        """Make one more connection; the lock is free meanwhile."""
        address, hello = self._target.addresses[self._turn % len(self._target.addresses)], self._session.hello()
        timeout_s = min(self._target.connect_timeout_s, seconds(left_ns))
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
                if self._outgoing.is_empty:
                    self._alone_since_ns = 0
                self._connect_after_ns = 0
                return
        except FencedError as error:
            problem = error
        if connection is not None:
            connection.close()
        self._turn += 1
        self._connect_after_ns = now_ns + (self._backoff.pause_ns() if problem is not None else 0)
        if problem is not None:
            self._judge(problem, address)

    def _judge(self, problem: Exception, address: str) -> None:
        """Whether a failed attempt is the last."""
        if isinstance(problem, SeawallError) and not isinstance(problem, RetryableError):
            self._fail(problem)
        elif self._alone_since_ns:
            alone_ns = self._clock.monotonic_ns() - self._alone_since_ns
            if alone_ns >= self._target.timeout_s * 1e9:
                self._fail(RetryableError(f"no server at {address} for {seconds(alone_ns):.1f} s: {problem}"))

    def _drop(self, connection: Connection, error: Exception) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        connection.close()
        self._outgoing.lost(connection)
        if self.failure is not None:
            self._outgoing.fail(self.failure)
        now_ns = self._clock.monotonic_ns()
        if not self._connections and not self._alone_since_ns:
            self._alone_since_ns = now_ns
        if self._connect_after_ns == 0:
            self._connect_after_ns = now_ns + self._backoff.pause_ns()
        if not self._connections:
            self._judge(error, connection.address)

    def _fail(self, error: SeawallError) -> None:
        self.failure = error
        self._outgoing.fail(error)
        self._wake_all()

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._is_closed:
            raise WrongStateError("this publisher is closed")
