"""One connection on an event loop: received bytes become checked frames, frames of answers become sent bytes.

    receive   into memory that all connections of a loop share; what is no whole frame yet waits in `receive_room`
    feed      all whole frames at once to the session, which takes them or says that it has no room
    write     bytes, or stretches of files, in the order they were given; what waits is bounded by not reading

The version byte of the first frame decides which session a connection gets (`listener`). A session that does not take
all frames is not read for until it calls `go_on`; neither is a peer that does not take its answers. Both feel it. While
a connection is attached to the publish thread, that receives and sends in place of the loop (`publish_thread`).

INV-CONNECTION-ENDS: a peer that sends a frame too slowly, takes no answers, is silent, or shows no token in time is
disconnected. This happens sooner if others wait for the memory that it holds.

Bytes handed to a session are the session's until `feed` returns, and not longer. What a connection holds is counted,
and no more is received while there is no room (`budget`).

A crash takes what was received and not taken, and what was not sent: the peer asks again. This module must not know
topics, sessions, or what a frame means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from seawall import limits
from seawall.errors import ProtocolError
from seawall.io.network.receiving import queued_size
from seawall.io.network.sending import FilePiece, read_piece
from seawall.io.network.tls import common_name
from seawall.kernels.codec import frames
from seawall.server.connection.budget import ConnectionMemory
from seawall.server.connection.outbox import Outbox
from seawall.server.connection.receive_buffers import Arriving, ReceiveBuffers
from seawall.server.connection.session import Bytes, ConnectionLimits, Session
from seawall.wire.format.codes import VERSION_2, ErrorCode
from seawall.wire.format.decoder import split_failure

if TYPE_CHECKING:
    from seawall.server.connection.listener import Listener
    from seawall.server.publish.producer_session import ProducerSession
    from seawall.server.publish.publish_thread import Attachment, Returned, V1Topic


class Connection(asyncio.BufferedProtocol):
    """One TCP connection."""

    def __init__(
        self, listener: Listener, space: ReceiveBuffers, bounds: ConnectionLimits, memory: ConnectionMemory
    ) -> None:
        self._listener = listener
        #: What it may hold for its peer; the session counts what it holds there, too.
        self.memory = memory
        self.probe = listener.probe
        self._arriving = Arriving(space, self._queued, memory, self._memory_reserved)
        self._bounds = bounds
        self._loop = listener.loop
        self._session: Session | None = None
        #: The descriptor of the socket, once somebody needs it.
        self._fd = -1
        #: While the publish thread has the socket, and what is to be done when it is back.
        self._attachment: Attachment | None = None
        self._after_return: list[Callable[[], None]] = []
        self._session_returned: Callable[[Returned], None]
        self._is_full = False
        self._is_blocked = self._is_short_of_memory = False
        self._is_reading = True
        self._is_deaf = self._is_finishing = False
        #: Whether the peer sends nothing more: then nothing can come that would make a reset.
        self._is_half_closed = False
        self._lingered = 0
        now = self._loop.time()
        self._received_at = self._asked_at = self._paused_at = now
        self._frame_began: float | None = None
        self._progress = (0, now)
        self._timer: asyncio.TimerHandle | None = None
        self._needs_token = False
        self._admitted_by: asyncio.TimerHandle | None = None
        #: Set by the session: seconds without a frame until `silent`, and until the end; None is never.
        self.keepalive_s: float | None = None
        self.idle_s: float | None = bounds.v1_idle_s

    # --- what a session does ---------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Who is at the other end, for messages."""
        name: object = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a local peer"

    @property
    def certificate_name(self) -> str | None:
        """The common name in the certificate that the peer has shown and TLS has verified; None without one."""
        certificate = self._transport.get_extra_info("peercert")
        return common_name(certificate) if certificate else None

    @property
    def unsent_size(self) -> int:
        """Bytes that were written and are not sent."""
        return self._outbox.unsent_size

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that nothing is received until it is."""
        return self._is_full

    @property
    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._is_finishing or self._transport.is_closing()

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes behind everything that was written before."""
        if self.is_closing or not data or self._recalls_for(partial(self.write, data)):
            return
        self._outbox.write(data)
        self._bound_outbox()

    def send_file(self, piece: FilePiece) -> None:
        """Send a stretch of a file behind everything that was written before; it is released when that is done."""
        if self._recalls_for(partial(self.send_file, piece)):
            return
        if self.is_closing:
            piece.release()
            return
        if self._is_encrypted:
            # The kernel cannot encrypt it.
            data = read_piece(piece)
            if len(data) < piece.size:
                self.abort()
            self.write(data)
            piece.release()
            return
        self._outbox.send_file(piece)
        self._bound_outbox()

    def go_on(self) -> None:
        """The session has room again: what it did not take comes once more, then what was not received."""
        if not self._is_blocked or self.is_closing:
            return
        self._is_blocked = False
        with self.probe.watching("frames that waited"):
            rest = self._arriving.take_rest()
            self._split(rest, rest.size)
            self._adjust_reading()

    def stop_reading(self) -> None:
        """Take no notice of anything that the peer still sends."""
        if self._recalls_for(self.stop_reading):
            return
        self._is_deaf = True
        self._arriving.drop()
        self._frame_began = None
        self._is_blocked = self._is_short_of_memory = False
        self._adjust_reading()

    def finish(self, last: bytes = b"") -> None:
        """Send what is written and `last`, then end, in a way that lets the peer read it."""
        if self.is_closing or self._recalls_for(partial(self.finish, last)):
            return
        self.write(last)
        self.stop_reading()
        self._is_finishing = True
        if not self._outbox.has_pieces:
            self._shut()

    def drain(self, drain_ms: int) -> None:
        """The server ends: have what is under way answered, then end."""
        if self._session is None:
            self.finish()
        else:
            self._session.drain(drain_ms)

    def abort(self) -> None:
        """End at once, whatever is still to be sent."""
        if not self._recalls_for(self.abort):
            self._transport.abort()

    # --- the publish thread ----------------------------------------------------------------------------------------

    def attach(
        self,
        publishing: ProducerSession,
        payload_max: int,
        returned: Callable[[Returned], None],
        v1_topic: V1Topic | None = None,
    ) -> None:
        """Let the publish thread receive and answer batches, if nothing is on its way in either direction.

        `returned` is called when it has given the connection back, before what it did not handle is fed.
        """
        thread = self._listener.publish_thread
        is_idle = self._is_reading and self._hears() and self._arriving.is_empty and self._attachment is None
        is_idle = is_idle and not (self._outbox.has_pieces or self._transport.get_write_buffer_size())
        if thread is not None and is_idle and not (self._is_encrypted or self.is_closing):
            descriptor = self._descriptor()
            self._attachment = thread.attach(descriptor, publishing, payload_max, self._loop, self._returned, v1_topic)
            self._session_returned = returned
            self._adjust_reading()

    def _recalls_for(self, work: Callable[[], None]) -> bool:
        """Whether the publish thread has this connection: then it is recalled, and `work` is done when it is back."""
        if self._attachment is None:
            return False
        if not self._after_return:
            self._attachment.recall()
        self._after_return.append(work)
        return True

    def _returned(self, returned: Returned) -> None:
        """The publish thread has given the connection back: go on as if the loop had received what came."""
        self._received_at = self._loop.time()
        self._attachment = None
        waiting, self._after_return = self._after_return, []
        self.write(returned.unsent)
        for work in waiting:
            work()
        if self._transport.is_closing():
            return
        self._session_returned(returned)
        if self._hears() and not self.is_closing and returned.received.size:
            with self.probe.watching("receive"):
                self._split(returned.received, returned.received.size)
        self._adjust_reading()

    # --- receiving -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._outbox = Outbox(
            self._transport, self._loop, self.memory.working, sent_all=self._sent_all, broken=self.abort
        )
        self._arm()
        # A certificate that TLS has verified is as good as a token.
        self._needs_token = self._listener.needs_token and self.certificate_name is None
        if self._needs_token:
            self._admitted_by = self._loop.call_later(self._bounds.admission_s, self._require_admitted)
        self._listener.remember(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes go: behind the beginning of their frame."""
        return self._arriving.buffer(self._session)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        if self._is_deaf:
            self._discard(nbytes)
        else:
            with self.probe.watching("receive"):
                self._receive(nbytes)

    def _receive(self, nbytes: int) -> None:
        arrived = self._arriving.received(nbytes)
        if arrived is not None:
            self._take(*arrived)
        if self._is_reading and self._hears() and not (self._is_encrypted or self._transport.is_closing()):
            # More of a large frame, without a turn of the loop for each piece of it.
            arrived = self._arriving.receive(self._descriptor())
            if arrived is not None:
                self._take(*arrived)

    def _take(self, buffer: Bytes, size: int) -> None:
        self._split(buffer, size)
        self._adjust_reading()

    def _descriptor(self) -> int:
        if self._fd < 0:
            self._fd = self._transport.get_extra_info("socket").fileno()
        return self._fd

    def _split(self, buffer: Bytes, end: int) -> None:
        """Hand over the whole frames, and keep the rest."""
        start, code, now = 0, frames.SPLIT_FULL, self._loop.time()
        arriving = self._arriving
        state = arriving.state
        while code == frames.SPLIT_FULL and not self._is_deaf:
            payload_max = self._payload_max
            found = arriving.rows
            code = frames.split_frames(buffer, start, end, payload_max, found, state)
            _, count, start, *_ = state.tolist()
            if count:
                rows = found[:count]
                self._received_at, self._frame_began = now, None
                session = self._session or self._greeted(int(rows[0]["version"]))
                taken = session.feed(buffer, rows) if self._hears() else count
                if taken < count and self._hears():
                    self._is_blocked = True
                    arriving.keep(buffer, int(rows[taken]["at"]), end)
                    return
                if self._hears():
                    buffer, start, end = arriving.fed(buffer, rows, start, end)
                if code == frames.SPLIT_TOO_LARGE and payload_max < self._payload_max:
                    # One of these frames had a token: what is behind it may be larger.
                    code = frames.SPLIT_FULL
        if not self._hears():
            return
        if code != frames.SPLIT_MORE:
            version = int(buffer[start + 4]) if end > start + 4 else 0
            self._fail(split_failure(code, version), version)
            return
        if start < end and self._frame_began is None:
            self._frame_began = now
        arriving.wait(buffer, start, end)
        self._is_short_of_memory = not arriving.reserve()
        if arriving.awaited and self._queued() and not self._has_space_for(arriving.awaited):
            self._is_blocked = True

    @property
    def _payload_max(self) -> int:
        """The largest payload that is taken now."""
        if self._session is not None:
            return self._session.payload_max
        return limits.UNADMITTED_PAYLOAD_SIZE_MAX if self._needs_token else limits.PAYLOAD_SIZE_MIN

    def _memory_reserved(self) -> None:
        """The frame that arrives has the memory that it waited for."""
        self._is_short_of_memory = False
        self._adjust_reading()

    def _has_space_for(self, size: int) -> bool:
        return self._session is None or self._session.has_space_for(size)

    def _queued(self) -> int:
        """Bytes that can be received without waiting; 0 if that is unknown."""
        return 0 if self._is_encrypted or self._transport.is_closing() else queued_size(self._descriptor())

    def _hears(self) -> bool:
        """Whether anybody wants to know what comes; sessions change it."""
        return not self._is_deaf

    def _greeted(self, version: int) -> Session:
        if self._session is None:
            self._session = self._listener.session_for(version, self)
        return self._session

    def _fail(self, error: ProtocolError, version: int) -> None:
        self._listener.count(ErrorCode(error.code).name.lower())
        self.stop_reading()
        if self._session is None and not error.answered:
            self.finish()
        else:
            self._greeted(version).failed(error)

    def _discard(self, size: int) -> None:
        self._lingered += size
        if self._lingered > self._bounds.linger_size:
            self._transport.close()

    def eof_received(self) -> bool:
        """The peer sends nothing more; what is under way is still answered."""
        self._is_half_closed = True
        if self._is_finishing or self._session is None:
            return False
        if not self._is_deaf:
            self.stop_reading()
            self._session.ended()
        # An encrypted connection ends in both directions at once.
        return not self._is_encrypted

    def _adjust_reading(self) -> None:
        """Receive while there is room for what comes and for its answers."""
        wanted = self._is_deaf or not (self._is_blocked or self._is_full or self._is_short_of_memory)
        wanted &= self._attachment is None
        if wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        now = self._loop.time()
        if wanted:
            # The time in which nobody read is not the peer's.
            if self._frame_began is not None:
                self._frame_began += now - self._paused_at
            self._received_at = now
            self._transport.resume_reading()
        else:
            self._paused_at = now
            self._transport.pause_reading()

    # --- sending ---------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Not everything could be sent at once."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """Everything that the transport had is sent."""
        with self.probe.watching("send"):
            self._outbox.resume()

    def _sent_all(self) -> None:
        if self._is_finishing:
            self._shut()
        elif self._session is not None:
            self._is_full = False
            self._adjust_reading()
            self._session.has_space()

    def _bound_outbox(self) -> None:
        if not self._is_full and self.unsent_size > self._bounds.outbox_size:
            self._is_full = True
            self._adjust_reading()

    def _shut(self) -> None:
        """Everything is written: say so to the peer, and listen a little longer, so that no reset swallows it."""
        if self._transport.is_closing():
            return
        if self._is_encrypted and self._transport.get_write_buffer_size():
            # The end of TLS has little time: it begins once everything is sent (`resume_writing`).
            return
        if self._transport.can_write_eof() and not self._is_half_closed:
            try:
                self._transport.write_eof()
            except OSError:
                # The peer is gone, and the loop has not heard of it yet.
                self.abort()
            self._loop.call_later(self._bounds.linger_s, self._transport.close)
        else:
            self._transport.close()

    # --- time ------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Look again soon, measured by the shortest of the times that something may take."""
        own = [wait for wait in (self.keepalive_s, self.idle_s) if wait is not None]
        waits = [self._bounds.frame_time_s, self._bounds.stall_s, *own]
        self._timer = self._loop.call_later(min(waits) / 4, self._look)

    def rearm(self) -> None:
        """`keepalive_s` or `idle_s` has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._arm()

    def _look(self) -> None:
        now = self._loop.time()
        self._arm()
        attachment = self._attachment
        if attachment is not None:
            self._received_at = max(self._received_at, attachment.received_at)
            if attachment.is_slow(now):
                attachment.recall()
        if self._is_stalled(now):
            self._listener.count("stalled")
            self.abort()
        elif self._is_deaf or not (self._is_reading or attachment is not None):
            return
        elif self._frame_began is not None:
            allowed = self._bounds.frame_time(self._arriving.needed, is_contended=self._is_in_the_way)
            if now - self._frame_began > allowed:
                text = f"a frame took longer than {allowed:.0f} s to arrive"
                version = int(self._arriving.state[frames.STATE_VERSION])
                error = ProtocolError(text, code=ErrorCode.TOO_SLOW, closes=True, answered=version == VERSION_2)
                self._fail(error, version)
        elif self.idle_s is not None and now - self._received_at > self.idle_s:
            self._listener.count("idle")
            self.finish()
        elif self._session is not None and self._is_quiet(now):
            self._asked_at = now
            self._session.silent()

    def _require_admitted(self) -> None:
        """Let go of a peer that has not shown its token in time."""
        if self._is_deaf or (self._session is not None and self._session.is_admitted):
            return
        text = f"no token was shown within {self._bounds.admission_s:.0f} s"
        version = int(self._arriving.state[frames.STATE_VERSION])
        code, answered = ErrorCode.AUTHENTICATION_REQUIRED, self._session is not None
        self._fail(ProtocolError(text, code=code, closes=True, answered=answered), version)

    @property
    def _is_in_the_way(self) -> bool:
        """Whether others wait for memory, and this connection holds some."""
        working = self.memory.working
        return working.is_contended and working.used > limits.RECEIVE_SIZE

    def _is_quiet(self, now: float) -> bool:
        """Whether a sign of life is due from the peer, and was not asked for yet."""
        return self.keepalive_s is not None and now - max(self._received_at, self._asked_at) > self.keepalive_s

    def _is_stalled(self, now: float) -> bool:
        """Whether answers wait, and too few were sent for too long: none, or little while others need the memory."""
        sent, (before, since), is_in_the_way = self._outbox.sent_size, self._progress, self._is_in_the_way
        least = (now - since) * self._bounds.frame_bytes_per_second if is_in_the_way else 1
        if not self.unsent_size or sent - before >= least:
            self._progress = sent, now
            return False
        return now - since > (self._bounds.contended_stall_s if is_in_the_way else self._bounds.stall_s)

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is gone."""
        for timer in (self._timer, self._admitted_by):
            if timer is not None:
                timer.cancel()
        self._outbox.close()
        self._arriving.drop()
        self._listener.forget(self)
        if self._session is not None:
            self._session.lost()
        self.memory.close()
