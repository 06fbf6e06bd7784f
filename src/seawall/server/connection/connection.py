"""One connection on an event loop: turns received bytes into checked frames, and sends the session's answers.

    receive   into a buffer that all connections of a loop share; `receive_buffers` keeps incomplete frames
    feed      passes all complete frames at once to the session, which accepts them or reports that it has no space
    write     sends bytes, or ranges of files, in the order of the calls; the outbox is bounded by not reading

The version byte of the first frame selects the session of the connection (`listener`). The connection stops reading
while its session has not accepted all frames, until the session calls `resume`, and while the peer does not receive
its answers. TCP passes both kinds of backpressure on to the peer. While a connection is attached to the publish thread,
that thread receives and sends in place of the loop (`publish_thread`).

INV-CONNECTION-ENDS: a peer that sends a frame too slowly, takes no answers, is silent, or shows no token in time is
disconnected. This happens sooner if others wait for the memory that it holds.

A session may use the bytes passed to `feed` only until `feed` returns. All memory of a connection is accounted for, and
the connection stops reading while the budget has no space (`budget`).

A crash loses bytes that were received and not accepted, and answers that were not sent: the peer repeats its requests.
This module must not know topics, sessions, or what a frame means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from seawall import limits
from seawall.errors import ProtocolError
from seawall.io.network.receiving import queued_size
from seawall.io.network.sending import FilePiece, read_piece
from seawall.io.network.tls import common_name
from seawall.kernels.codec import frames
from seawall.server.connection.budget import ConnectionMemory
from seawall.server.connection.outbox import Outbox
from seawall.server.connection.receive_buffers import IncomingBytes, ReceiveBuffers
from seawall.server.connection.session import Bytes, ConnectionLimits, Session
from seawall.server.connection.slow_callbacks import SlowCallbacks
from seawall.server.connection.timeouts import Timeouts
from seawall.server.publish.producer_session import ProducerSession
from seawall.server.publish.publish_thread import Attachment, PublishThread, Returned, V1Topic
from seawall.wire.format.codes import VERSION_2, ErrorCode
from seawall.wire.format.decoder import split_failure


class ConnectionOwner(Protocol):
    """What a connection needs of the listener that accepted it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the connection."""
        ...

    @property
    def probe(self) -> SlowCallbacks:
        """Counts slow callbacks of the loop."""
        ...

    @property
    def needs_token(self) -> bool:
        """True if peers have to show a token or a certificate."""
        ...

    @property
    def publish_thread(self) -> PublishThread | None:
        """The thread that handles connections with small batches only, if there is one."""
        ...

    def register(self, connection: Connection) -> None:
        """Add a connection that is established."""
        ...

    def unregister(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        ...

    def session_for(self, version: int, connection: Connection) -> Session:
        """Create the session of a connection, by the version of its first frame."""
        ...

    def count(self, cause: str) -> None:
        """Count a refused or closed connection by its cause."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One TCP connection."""

    def __init__(
        self, owner: ConnectionOwner, buffers: ReceiveBuffers, bounds: ConnectionLimits, memory: ConnectionMemory
    ) -> None:
        self._owner = owner
        #: Memory that may be held for the peer; the session charges its own memory here, too.
        self.memory = memory
        self.probe = owner.probe
        self._incoming = IncomingBytes(buffers, self._queued, memory, self._memory_reserved)
        self._bounds = bounds
        self._loop = owner.loop
        self._session: Session | None = None
        #: File descriptor of the socket; -1 until it is first needed.
        self._fd = -1
        #: Set while the publish thread owns the socket; and the calls to make once it has returned the socket.
        self._attachment: Attachment | None = None
        self._after_return: list[Callable[[], None]] = []
        self._session_returned: Callable[[Returned], None]
        self._is_full = False
        self._is_blocked = self._is_short_of_memory = False
        self._is_reading = True
        self._discards_input = self._is_finishing = False
        #: True after the peer has sent EOF: nothing can arrive any more that would cause a TCP reset.
        self._has_peer_eof = False
        self._lingered = 0
        self._timeouts = Timeouts(bounds, self._loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._needs_token = False
        self._admission_timer: asyncio.TimerHandle | None = None

    # --- for the session -------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """The address of the peer, for messages."""
        name: object = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a local peer"

    @property
    def certificate_name(self) -> str | None:
        """The common name in the verified TLS certificate of the peer; None without one."""
        certificate = self._transport.get_extra_info("peercert")
        return common_name(certificate) if certificate else None

    @property
    def unsent_size(self) -> int:
        """Bytes that were written and not sent yet."""
        return self._outbox.unsent_size

    @property
    def is_full(self) -> bool:
        """True if the outbox is over its limit: nothing is received until it has been sent."""
        return self._is_full

    @property
    def is_closing(self) -> bool:
        """True if nothing more can be written."""
        return self._is_finishing or self._transport.is_closing()

    def write(self, *pieces: bytes | memoryview) -> None:
        """Send bytes after everything that was written before: several pieces by one call, so that none waits."""
        if self.is_closing or not any(pieces) or self._deferred_by_recall(partial(self.write, *pieces)):
            return
        self._outbox.write(*pieces)
        self._bound_outbox()

    def send_file(self, piece: FilePiece) -> None:
        """Send a range of a file after everything that was written before, then release it."""
        if self._deferred_by_recall(partial(self.send_file, piece)):
            return
        if self.is_closing:
            piece.release()
            return
        if self._is_encrypted:
            # sendfile cannot encrypt: read the range and send it as bytes.
            data = read_piece(piece)
            if len(data) < piece.size:
                self.abort()
            self.write(data)
            piece.release()
            return
        self._outbox.send_file(piece)
        self._bound_outbox()

    def resume(self) -> None:
        """Feed the frames again that the session did not accept, then continue to receive."""
        if not self._is_blocked or self.is_closing:
            return
        self._is_blocked = False
        with self.probe.watching("resumed frames"):
            rest = self._incoming.take_rest()
            self._split(rest, rest.size)
            self._adjust_reading()

    def stop_reading(self) -> None:
        """Discard everything that the peer still sends."""
        if self._deferred_by_recall(self.stop_reading):
            return
        self._discards_input = True
        self._incoming.drop()
        self._timeouts.frame_dropped()
        self._is_blocked = self._is_short_of_memory = False
        self._adjust_reading()

    def finish(self, last: bytes = b"") -> None:
        """Send what was written and `last`, then close so that the peer can still read it."""
        if self.is_closing or self._deferred_by_recall(partial(self.finish, last)):
            return
        self.write(last)
        self.stop_reading()
        self._is_finishing = True
        if not self._outbox.has_pieces:
            self._close_gracefully()

    def drain(self, drain_ms: int) -> None:
        """Answer the requests in flight, then close: the server shuts down."""
        if self._session is None:
            self.finish()
        else:
            self._session.drain(drain_ms)

    def abort(self) -> None:
        """Close immediately and drop unsent data."""
        if not self._deferred_by_recall(self.abort):
            self._transport.abort()

    # --- the publish thread ----------------------------------------------------------------------------------------

    def attach(
        self,
        producer: ProducerSession,
        payload_max: int,
        returned: Callable[[Returned], None],
        v1_topic: V1Topic | None = None,
    ) -> None:
        """Hand the connection to the publish thread, unless data is in flight in either direction.

        The connection calls `returned` when the thread has given it back, before it feeds the unhandled bytes.
        """
        thread = self._owner.publish_thread
        is_idle = self._is_reading and self._accepts_input() and self._incoming.is_empty and self._attachment is None
        is_idle = is_idle and not (self._outbox.has_pieces or self._transport.get_write_buffer_size())
        if thread is not None and is_idle and not (self._is_encrypted or self.is_closing):
            descriptor = self._descriptor()
            self._attachment = thread.attach(descriptor, producer, payload_max, self._loop, self._returned, v1_topic)
            self._session_returned = returned
            self._adjust_reading()

    def _deferred_by_recall(self, work: Callable[[], None]) -> bool:
        """True if the publish thread owns the connection: recall it, and call `work` once it is back."""
        if self._attachment is None:
            return False
        if not self._after_return:
            self._attachment.recall()
        self._after_return.append(work)
        return True

    def _returned(self, returned: Returned) -> None:
        """Continue as if the loop had received the bytes that the publish thread returned."""
        self._timeouts.active_at(self._loop.time())
        self._attachment = None
        deferred, self._after_return = self._after_return, []
        self.write(returned.unsent)
        for work in deferred:
            work()
        if self._transport.is_closing():
            return
        self._session_returned(returned)
        if self._accepts_input() and not self.is_closing and returned.received.size:
            with self.probe.watching("receive"):
                self._split(returned.received, returned.received.size)
        self._adjust_reading()

    # --- receiving -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the connection of a new peer (asyncio callback)."""
        self._transport = cast(asyncio.Transport, transport)
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._outbox = Outbox(
            self._transport, self._loop, self.memory.working, sent_all=self._sent_all, broken=self.abort
        )
        self._arm_timer()
        # A certificate that TLS has verified replaces a token.
        self._needs_token = self._owner.needs_token and self.certificate_name is None
        if self._needs_token:
            self._admission_timer = self._loop.call_later(self._bounds.admission_s, self._require_admitted)
        self._owner.register(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """The buffer for the next receive: after the bytes of the incomplete frame (asyncio callback)."""
        return self._incoming.buffer(self._session)

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes (asyncio callback)."""
        if self._discards_input:
            self._discard(nbytes)
        else:
            with self.probe.watching("receive"):
                self._receive(nbytes)

    def _receive(self, nbytes: int) -> None:
        arrived = self._incoming.received(nbytes)
        if arrived is not None:
            self._accept(*arrived)
        if self._is_reading and self._accepts_input() and not (self._is_encrypted or self._transport.is_closing()):
            # Receive more of a large frame without one loop iteration for each receive.
            arrived = self._incoming.receive(self._descriptor())
            if arrived is not None:
                self._accept(*arrived)

    def _accept(self, buffer: Bytes, size: int) -> None:
        self._split(buffer, size)
        self._adjust_reading()

    def _descriptor(self) -> int:
        if self._fd < 0:
            self._fd = self._transport.get_extra_info("socket").fileno()
        return self._fd

    def _split(self, buffer: Bytes, end: int) -> None:
        """Feed the complete frames to the session, and keep the rest."""
        start, code, now = 0, frames.SPLIT_FULL, self._loop.time()
        incoming = self._incoming
        state = incoming.state
        while code == frames.SPLIT_FULL and not self._discards_input:
            payload_max = self._payload_max
            found = incoming.rows
            code = frames.split_frames(buffer, start, end, payload_max, found, state)
            _, count, start, *_ = state.tolist()
            if count:
                rows = found[:count]
                self._timeouts.frames_received(now)
                session = self._session or self._session_of(int(rows[0]["version"]))
                taken = session.feed(buffer, rows) if self._accepts_input() else count
                if taken < count and self._accepts_input():
                    self._is_blocked = True
                    incoming.keep_unaccepted(buffer, int(rows[taken]["at"]), end)
                    return
                if self._accepts_input():
                    buffer, start, end = incoming.consumed(buffer, rows, start, end)
                if code == frames.SPLIT_TOO_LARGE and payload_max < self._payload_max:
                    # One of these frames carried a token: the frames after it may be larger.
                    code = frames.SPLIT_FULL
        if not self._accepts_input():
            return
        if code != frames.SPLIT_MORE:
            version = int(buffer[start + 4]) if end > start + 4 else 0
            self._fail(split_failure(code, version), version)
            return
        if start < end:
            self._timeouts.frame_incomplete(now)
        incoming.keep_incomplete(buffer, start, end)
        self._is_short_of_memory = not incoming.reserve()
        if incoming.awaited and self._queued() and not self._has_space_for(incoming.awaited):
            self._is_blocked = True

    @property
    def _payload_max(self) -> int:
        """The largest payload that is accepted now."""
        if self._session is not None:
            return self._session.payload_max
        return limits.UNADMITTED_PAYLOAD_SIZE_MAX if self._needs_token else limits.PAYLOAD_SIZE_MIN

    def _memory_reserved(self) -> None:
        """Continue to receive: the memory that the incoming frame waited for is reserved."""
        self._is_short_of_memory = False
        self._adjust_reading()

    def _has_space_for(self, size: int) -> bool:
        return self._session is None or self._session.has_space_for(size)

    def _queued(self) -> int:
        """Bytes in the receive queue of the socket; 0 if unknown."""
        return 0 if self._is_encrypted or self._transport.is_closing() else queued_size(self._descriptor())

    def _accepts_input(self) -> bool:
        """True unless input is discarded. A method, because sessions change the flag during a call."""
        return not self._discards_input

    def _session_of(self, version: int) -> Session:
        if self._session is None:
            self._session = self._owner.session_for(version, self)
        return self._session

    def _fail(self, error: ProtocolError, version: int) -> None:
        self._owner.count(ErrorCode(error.code).name.lower())
        self.stop_reading()
        if self._session is None and not error.answered:
            self.finish()
        else:
            self._session_of(version).failed(error)

    def _discard(self, size: int) -> None:
        self._lingered += size
        if self._lingered > self._bounds.linger_size:
            self._transport.close()

    def eof_received(self) -> bool:
        """Answer the requests in flight, then close: the peer has sent EOF (asyncio callback)."""
        self._has_peer_eof = True
        if self._is_finishing or self._session is None:
            return False
        if not self._discards_input:
            self.stop_reading()
            self._session.ended()
        # TLS closes both directions at once.
        return not self._is_encrypted

    def _adjust_reading(self) -> None:
        """Pause or resume reading, by the space for frames and for their answers."""
        wanted = self._discards_input or not (self._is_blocked or self._is_full or self._is_short_of_memory)
        wanted &= self._attachment is None
        if wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        now = self._loop.time()
        if wanted:
            self._timeouts.resumed(now)
            self._transport.resume_reading()
        else:
            self._timeouts.paused(now)
            self._transport.pause_reading()

    # --- sending ---------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Stop sending files: the transport has unsent bytes (asyncio callback)."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """Continue to send: the transport is empty (asyncio callback)."""
        with self.probe.watching("send"):
            self._outbox.resume()

    def _sent_all(self) -> None:
        if self._is_finishing:
            self._close_gracefully()
        elif self._session is not None:
            self._is_full = False
            self._adjust_reading()
            self._session.has_space()

    def _bound_outbox(self) -> None:
        if not self._is_full and self.unsent_size > self._bounds.outbox_size:
            self._is_full = True
            self._adjust_reading()

    def _close_gracefully(self) -> None:
        """Send EOF, then keep reading for a moment: closing with unread input would reset the connection."""
        if self._transport.is_closing():
            return
        if self._is_encrypted and self._transport.get_write_buffer_size():
            # asyncio bounds the time of the TLS shutdown: start it once everything is sent (`resume_writing`).
            return
        if self._transport.can_write_eof() and not self._has_peer_eof:
            try:
                self._transport.write_eof()
            except OSError:
                # The peer has disconnected, and the loop has not reported it yet.
                self.abort()
            self._loop.call_later(self._bounds.linger_s, self._transport.close)
        else:
            self._transport.close()

    # --- time ------------------------------------------------------------------------------------------------------

    def set_timeouts(self, *, keepalive_s: float | None, idle_s: float | None) -> None:
        """Ping the peer after `keepalive_s` without a frame, and disconnect it after `idle_s`; None is never."""
        self._timeouts.keepalive_s, self._timeouts.idle_s = keepalive_s, idle_s
        if self._timer is not None:
            self._timer.cancel()
            self._arm_timer()

    def _arm_timer(self) -> None:
        self._timer = self._loop.call_later(self._timeouts.check_interval_s, self._check_timeouts)

    def _check_timeouts(self) -> None:
        now, timeouts, is_contended = self._loop.time(), self._timeouts, self._is_blocking_others
        self._arm_timer()
        attachment = self._attachment
        if attachment is not None:
            timeouts.active_at(attachment.received_at)
            if attachment.is_slow(now):
                attachment.recall()
        if timeouts.is_stalled(now, self._outbox.sent_size, self.unsent_size, is_contended=is_contended):
            self._owner.count("stalled")
            self.abort()
        elif self._discards_input or not (self._is_reading or attachment is not None):
            return
        elif timeouts.has_incomplete_frame:
            allowed = timeouts.exceeded_frame_time(now, self._incoming.needed, is_contended=is_contended)
            if allowed is not None:
                text = f"a frame took longer than {allowed:.0f} s to arrive"
                version = int(self._incoming.state[frames.STATE_VERSION])
                error = ProtocolError(text, code=ErrorCode.TOO_SLOW, closes=True, answered=version == VERSION_2)
                self._fail(error, version)
        elif timeouts.is_idle(now):
            self._owner.count("idle")
            self.finish()
        elif self._session is not None and timeouts.is_ping_due(now):
            timeouts.pinged(now)
            self._session.silent()

    def _require_admitted(self) -> None:
        """Disconnect a peer that has not shown its token in time."""
        if self._discards_input or (self._session is not None and self._session.is_admitted):
            return
        text = f"no token was shown within {self._bounds.admission_s:.0f} s"
        version = int(self._incoming.state[frames.STATE_VERSION])
        code, answered = ErrorCode.AUTHENTICATION_REQUIRED, self._session is not None
        self._fail(ProtocolError(text, code=code, closes=True, answered=answered), version)

    @property
    def _is_blocking_others(self) -> bool:
        """True if others wait for memory and this connection holds some."""
        working = self.memory.working
        return working.is_contended and working.used > limits.RECEIVE_SIZE

    def connection_lost(self, _error: Exception | None) -> None:
        """Release everything (asyncio callback)."""
        for timer in (self._timer, self._admission_timer):
            if timer is not None:
                timer.cancel()
        self._outbox.close()
        self._incoming.drop()
        self._owner.unregister(self)
        if self._session is not None:
            self._session.lost()
        self.memory.close()
