"""Version 2 on one connection: HELLO, batches, requests, keepalives, and closing.

    greeting   HELLO is the first frame; the session that it opens is durable before WELCOME is sent
    ready      BATCH frames go to the ingest, requests run concurrently, pings are answered
    closing    after GOODBYE, an error that closes, or EOF: requests and batches in flight are still answered

INV-SESSION-ANSWERED: a connection closes after everything that it accepted is answered, or after a bounded time.

Only HELLO is accepted before WELCOME is sent.

A crash ends the connection; its publisher learns what is stored by opening its session again. This module must not know
sockets, nor how batches are ordered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias

import numpy as np

from seawall import limits
from seawall.core.types import TimestampNs
from seawall.errors import ProtocolError, SeawallError
from seawall.io.process.clocks import OsClock
from seawall.kernels.codec.frames import Rows
from seawall.server.connection.access import Admission
from seawall.server.connection.connection import Connection
from seawall.server.connection.context import FEATURES, ServerContext
from seawall.server.connection.request_memory import RequestMemory
from seawall.server.connection.session import Bytes
from seawall.server.lwp2.errors import error_frame, refusal
from seawall.server.lwp2.fetch import Fetching
from seawall.server.lwp2.push import Subscriptions
from seawall.server.lwp2.queue_requests import QueueRequests
from seawall.server.lwp2.refusals import read_only_text
from seawall.server.lwp2.watch import Watches
from seawall.server.publish.keyed_publishing import KeyedPublishing
from seawall.server.publish.producer_session import ProducerSession
from seawall.server.publish.publish_thread import Returned
from seawall.wire.format.codes import Command, ErrorCode, KeepaliveCommand, Kind, SessionStatus
from seawall.wire.lwp1.replies import AuthenticateReply, ClusterStatusReply
from seawall.wire.lwp1.requests import Authenticate, SharedRequest
from seawall.wire.lwp2.files import FilesRequest
from seawall.wire.lwp2.frames import Request, encode_control, encode_ping, encode_pong, parse_request
from seawall.wire.lwp2.jobs import (
    JobAck,
    JobClaim,
    JobExtend,
    JobNack,
    JobPeek,
    JobPushUnique,
    JobRequest,
    QueueCountsRequest,
    QueuePurge,
    QueueRedrive,
)
from seawall.wire.lwp2.keyed import PublishKeyed
from seawall.wire.lwp2.reading import Bounds, Commit, Fetch
from seawall.wire.lwp2.routers import RouterDelete, RouterDescribe, RouterList, RouterPut, RouterRequest
from seawall.wire.lwp2.session import Goodbye, Hello, Welcome, choose_version
from seawall.wire.lwp2.sessions import SessionList, SessionRequest, SessionRetire
from seawall.wire.lwp2.subscriptions import Credit, Subscribe, Unsubscribe
from seawall.wire.lwp2.topics import RecordsDelete, TopicConfigure, TopicCreate, TopicDescribe, TopicFind, TopicRequest
from seawall.wire.lwp2.transactions import (
    StagingFind,
    TransactionAbort,
    TransactionCommit,
    TransactionRequest,
    TransactionState,
)
from seawall.wire.lwp2.watches import Watch

_BATCH: Final = int(Kind.BATCH)
_PUBLISH_KEYED: Final = int(Command.PUBLISH_KEYED)
_HEADER: Final = limits.FRAME_HEADER_SIZE

#: Attach a connection to the publish thread after this many receives of small batches only.
_ATTACH_AFTER: Final = 4

#: Requests that may take time, and only need an answer.
_SlowRequest: TypeAlias = (
    Fetch
    | Commit
    | Bounds
    | FilesRequest
    | TopicRequest
    | TransactionRequest
    | SessionRequest
    | JobRequest
    | RouterRequest
    | SharedRequest
)


class Lwp2Session:
    """The server side of one version 2 connection."""

    def __init__(self, server: ServerContext, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._producer: ProducerSession | None = None
        #: Consecutive receives of small batches only.
        self._small_receives = 0
        self._is_greeting = False
        self._is_welcome = False
        self._admission = Admission(server.access, connection.certificate_name)
        #: The last frame to send, once nothing more is accepted.
        self._last: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Tasks without an answer: a task is done slightly later than its answer is written.
        self._unanswered = 0
        self._fetching = Fetching(server.log, connection, self._admission)
        self._subscriptions = Subscriptions(server.log, connection, self._begin, self._admission)
        self._queues = QueueRequests(server.log, server.queues, connection, self._admission)
        self._watches = Watches(server.log, connection, self._begin, self._admission)
        window = {"window_batches": server.settings.window_batches, "window_bytes": server.settings.window_bytes}
        self._keyed = KeyedPublishing(server.log, server.commands, server.ingest, connection, **window)
        self._requests = RequestMemory(connection.memory.waiting, connection.resume)
        self._pings = 0
        connection.set_timeouts(keepalive_s=None, idle_s=server.settings.idle_ms / 1000)

    # --- frames ----------------------------------------------------------------------------------------------------

    @property
    def payload_max(self) -> int:
        """The largest payload that is accepted now."""
        return self._admission.payload_max

    @property
    def is_admitted(self) -> bool:
        """True if the peer has shown a token, or needs none."""
        return self._admission.is_admitted

    def feed(self, buffer: Bytes, rows: Rows) -> int:
        """Accept frames; stops where there is no space for batches or for publishes under keys."""
        handled = 0
        kinds = rows["kind"]
        while handled < rows.size and self._last is None:
            if kinds[handled] == _BATCH and self._producer is not None:
                end = rows.size
                if end > handled + 1:
                    others = np.flatnonzero(kinds[handled:] != _BATCH)
                    end = handled + int(others[0]) if others.size else end
                is_small = end == rows.size and not handled and int(rows["size"].max()) < limits.LARGE_BATCH_SIZE
                self._small_receives = self._small_receives + 1 if is_small else 0
                taken = self._publish(self._producer, buffer, rows[handled:end])
                handled += taken
                if handled < end and self._last is None:
                    return handled
                continue
            self._small_receives = 0
            at, size, request_id = rows[["at", "size", "id"]][handled].tolist()
            command = int(rows["command"][handled])
            if command == _PUBLISH_KEYED and not self._keyed.has_space:
                return handled
            if not self._requests.has_memory(size):
                return handled
            payload = buffer[at + _HEADER : at + size].tobytes()
            self._take(int(kinds[handled]), command, request_id, payload)
            self._requests.not_begun()
            handled += 1
        return rows.size if self._last is not None else handled

    def buffer_for(self, size: int, revoke: Callable[[], None], *, is_queued: Callable[[], bool]) -> Bytes | None:
        """Bytes of the ring to receive the next large batch in; None without a producer session."""
        producer = self._producer
        if producer is None:
            return None
        return self._server.ingest.buffer_for(producer, size, revoke, is_queued=is_queued)

    def has_space_for(self, size: int) -> bool:
        """True if the ring has space for the next large batch, or the peer does not publish."""
        producer = self._producer
        return producer is None or self._last is not None or self._server.ingest.has_space_for(producer, size)

    def _returned(self, returned: Returned) -> None:
        """Continue after the publish thread: the connection may be attached again after more small batches."""
        assert self._producer is not None, "only a producer is attached"
        self._small_receives = 0
        self._server.ingest.returned(self._producer, returned)

    def _attach(self) -> None:
        """Attach the connection to the publish thread if it only publishes."""
        producer = self._producer
        if producer is None or self._last is not None or self._tasks or self._small_receives < _ATTACH_AFTER:
            return
        if self._server.ingest.may_attach(producer):
            self._connection.attach(producer, self.payload_max, self._returned)

    def _publish(self, producer: ProducerSession, buffer: Bytes, rows: Rows) -> int:
        try:
            return self._server.ingest.take(producer, buffer, rows)
        except ProtocolError as error:
            self.failed(error)
            return int(rows.size)

    def _take(self, kind: int, command: int, request_id: int, payload: bytes) -> None:
        """Handle one frame other than a batch of a session."""
        if not self._is_welcome and (self._is_greeting or (kind, command) != (Kind.CONTROL, Command.HELLO)):
            self._close(
                ErrorCode.WRONG_STATE, "the first frame is HELLO, and WELCOME comes before the next", request_id
            )
        elif kind == Kind.KEEPALIVE:
            if command == KeepaliveCommand.PING:
                self._connection.write(encode_pong(request_id))
        elif kind == Kind.BATCH:
            self._close(ErrorCode.WRONG_STATE, "batches need a session: open or join one in HELLO", request_id)
        elif kind == Kind.ACK:
            self._connection.write(refusal(ErrorCode.UNKNOWN_COMMAND, "only servers send ACK", request_id=request_id))
        else:
            try:
                self._execute(parse_request(command, payload), request_id)
            except SeawallError as error:
                self._refuse(error, request_id)

    def _execute(self, request: Request | SharedRequest, request_id: int) -> None:
        """Execute a request; anything that may take time runs as a task."""
        if not isinstance(request, Hello | Goodbye):
            self._require_allowed(request)
        match request:
            case Hello():
                self._greet(request, request_id)
            case Goodbye():
                self._end_with(encode_control(Goodbye(0, 0)))
            case Subscribe() if request_id not in self._watches:
                self._subscriptions.subscribe(request, request_id)
            case Watch() if request_id not in self._subscriptions:
                self._watches.watch(request, request_id)
            case Subscribe() | Watch():
                text = f"{request_id} is a subscription or a watch already"
                raise ProtocolError(text, code=ErrorCode.WRONG_STATE, closes=False)
            case Credit():
                self._pusher(request_id).credit(request, request_id)
            case Unsubscribe():
                self._pusher(request_id).unsubscribe(request_id)
            case Authenticate():
                self._authenticate(request, request_id)
            case PublishKeyed():
                if self._start(self._keyed.prepare(request, request_id), request_id):
                    self._keyed.begun(request)
            case _:
                self._start(self._coroutine_for(request, request_id), request_id)

    def _pusher(self, request_id: int) -> Subscriptions | Watches:
        """What pushes under an id."""
        return self._watches if request_id in self._watches else self._subscriptions

    def _coroutine_for(self, request: _SlowRequest, request_id: int) -> Coroutine[None, None, None]:
        """The coroutine that executes a request which may take time."""
        match request:
            case Fetch():
                return self._fetching.fetch(request, request_id)
            case Commit():
                return self._fetching.commit(request, request_id)
            case Bounds():
                return self._fetching.bounds(request, request_id)
            case FilesRequest():
                return self._fetching.files(request, request_id)
            case TopicCreate() | TopicConfigure() | TopicDescribe() | TopicFind() | RecordsDelete():
                return self._answer_own(request, request_id)
            case RouterPut() | RouterDescribe() | RouterList() | RouterDelete():
                return self._answer_routers(request, request_id)
            case SessionList() | SessionRetire():
                return self._answer_sessions(request, request_id)
            case StagingFind() | TransactionCommit() | TransactionAbort() | TransactionState():
                return self._answer_transaction(request, request_id)
            case (
                JobClaim()
                | JobAck()
                | JobNack()
                | JobExtend()
                | JobPeek()
                | JobPushUnique()
                | QueueCountsRequest()
                | QueuePurge()
                | QueueRedrive()
            ):
                return self._queues.execute(request, request_id)
            case _:
                return self._answer_shared(request, request_id)

    def _require_allowed(self, request: Request | SharedRequest) -> None:
        """Raise if the token of this connection does not allow the request."""
        keeps_offsets = isinstance(request, TransactionCommit) and request.wanted.offsets
        for command in (request.COMMAND, *([Commit.COMMAND] if keeps_offsets else [])):
            refused = self._admission.check(command)
            if refused is not None:
                raise refused

    async def _answer_shared(self, request: SharedRequest, request_id: int) -> None:
        reply = await self._server.commands.execute(request)
        if isinstance(reply, ClusterStatusReply):
            reply = self._server.status(reply)
        self._connection.write(encode_control(reply, request_id=request_id))

    async def _answer_own(self, request: TopicRequest, request_id: int) -> None:
        reply = await self._server.commands.execute_own(request)
        self._connection.write(encode_control(reply, request_id=request_id))

    async def _answer_transaction(self, request: TransactionRequest, request_id: int) -> None:
        reply = await self._server.transactions.execute(request)
        self._connection.write(encode_control(reply, request_id=request_id))

    async def _answer_routers(self, request: RouterRequest, request_id: int) -> None:
        reply = await self._server.routers.execute(request)
        self._connection.write(encode_control(reply, request_id=request_id))

    async def _answer_sessions(self, request: SessionRequest, request_id: int) -> None:
        reply = await self._server.sessions.execute(request)
        self._connection.write(encode_control(reply, request_id=request_id))

    def _authenticate(self, request: Authenticate, request_id: int) -> None:
        is_known = self._admission.authenticate(request.token)
        reply = AuthenticateReply(is_known, "welcome" if is_known else "this token is not known here")
        frame = encode_control(reply, request_id=request_id)
        if self._admission.is_over:
            self._end_with(frame)
        else:
            self._connection.write(frame)

    def _start(self, work: Coroutine[None, None, None], request_id: int) -> bool:
        """Run a request concurrently; False if there are too many, which is reported to the peer."""
        if self._unanswered - len(self._subscriptions) - len(self._watches) >= limits.REQUESTS_MAX:
            work.close()
            text = f"{limits.REQUESTS_MAX} requests are in flight: wait for some of them"
            self._connection.write(refusal(ErrorCode.LIMIT, text, request_id=request_id))
            return False
        self._begin(work, request_id)
        return True

    def _begin(self, work: Coroutine[None, None, None], request_id: int) -> None:
        task = self._loop.create_task(self._run(work, request_id, self._requests.begun()))
        self._tasks.add(task)
        self._unanswered += 1
        task.add_done_callback(self._done)
        # A task that is cancelled before its first step never awaits its coroutine.
        task.add_done_callback(lambda _: work.close())

    async def _run(self, work: Coroutine[None, None, None], request_id: int, size: int) -> None:
        try:
            await self._connection.probe.watched(work)
        except (SeawallError, OSError) as error:
            self._refuse(error, request_id)
        finally:
            self._unanswered -= 1
            self._requests.ended(size)
            # A finished request frees space in its window and in the request memory.
            self._connection.resume()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug: report it to the peer, and in detail to the exception handler of the loop.
            self._close(ErrorCode.INTERNAL, "an internal error ended this connection", 0)
            self._loop.call_exception_handler({"message": "a request failed", "exception": error, "task": task})
        self._end_if_answered()

    def _refuse(self, error: BaseException, request_id: int) -> None:
        if isinstance(error, ProtocolError) and error.closes:
            self._end_with(error_frame(error, request_id=request_id))
        else:
            self._connection.write(error_frame(error, request_id=request_id))

    # --- HELLO -----------------------------------------------------------------------------------------------------

    def _greet(self, hello: Hello, request_id: int) -> None:
        if self._is_welcome:
            self._close(ErrorCode.WRONG_STATE, "HELLO is the first frame, and comes once", request_id)
            return
        choose_version(hello)
        is_admitted = self._admission.is_admitted and not hello.token
        if not is_admitted and not self._admission.authenticate(hello.token):
            code = ErrorCode.AUTHENTICATION_FAILED if hello.token else ErrorCode.AUTHENTICATION_REQUIRED
            text = "the token of HELLO is not known here" if hello.token else "HELLO needs a token, or a certificate"
            if self._admission.is_over:
                self._close(code, text, request_id)
            else:
                self._connection.write(refusal(code, text, request_id=request_id))
            return
        self._is_greeting = True
        self._start(self._welcome(hello, request_id), request_id)

    async def _welcome(self, hello: Hello, request_id: int) -> None:
        settings, log = self._server.settings, self._server.log
        try:
            granted = await self._server.sessions.greet(hello, lambda: self._last is not None)
        except (SeawallError, OSError):
            self._is_greeting = False  # another HELLO may be accepted
            raise
        status, client_id, epoch, next_seq = granted
        if self._last is not None:
            return
        features = hello.features & FEATURES
        window = min(hello.window_batches or settings.window_batches, settings.window_batches)
        if status in (SessionStatus.NEW, SessionStatus.RESUMED, SessionStatus.JOINED):
            self._producer = self._server.ingest.begin(
                *(self, client_id, epoch), features=features, window_batches=window, window_bytes=settings.window_bytes
            )
            self._producer.memory = self._connection.memory.working
        keepalive_ms = max(limits.KEEPALIVE_MS_MIN, hello.keepalive_ms or settings.keepalive_ms)
        idle_ms = max(settings.idle_ms, 3 * keepalive_ms)
        self._connection.set_timeouts(keepalive_s=keepalive_ms / 1000, idle_s=idle_ms / 1000)
        self._is_greeting, self._is_welcome = False, True
        welcome = Welcome(
            choose_version(hello),
            status,
            limits.PAYLOAD_SIZE_MIN,
            features,
            client_id,
            epoch,
            next_seq,
            window,
            settings.window_bytes,
            keepalive_ms,
            idle_ms,
            log.term,
            TimestampNs(OsClock().wall_ns()),
            settings.node_id,
        )
        self._connection.write(encode_control(welcome, request_id=request_id))

    # --- for the ingest --------------------------------------------------------------------------------------------

    def send_ack(self, frame: bytes) -> None:
        """Send an ACK frame."""
        self._connection.write(frame)
        self._end_if_answered()
        if self._small_receives >= _ATTACH_AFTER:
            # After the loop has sent the frame.
            self._loop.call_soon(self._attach)

    def resume(self) -> None:
        """Feed the batches again that were not accepted: there is space now."""
        self._connection.resume()

    def fence(self) -> None:
        """End this session: a newer one of the same client was opened, or this one was retired."""
        text = "a newer session of this client was opened, or it was retired: this one has ended"
        self._close(ErrorCode.FENCED, text, 0)

    def slow_down(self, retry_ms: int, cause: str) -> None:
        """Ask the peer to pause; refuses nothing."""
        text = f"{cause}: batches already sent are accepted later, send no more for now"
        self._connection.write(refusal(ErrorCode.BACKPRESSURE, text, retry_after_ms=retry_ms))

    # --- the end ---------------------------------------------------------------------------------------------------

    def drain(self, drain_ms: int) -> None:
        """Send GOODBYE, answer what is in flight, and close: the server shuts down."""
        if self._last is None:
            if self._is_welcome:
                self._connection.write(encode_control(Goodbye(ErrorCode.SHUTTING_DOWN, drain_ms)))
            self._end_with(b"")

    def fail(self, error: BaseException) -> None:
        """Report that the log is read-only. The connection stays open, and its batches are refused."""
        if self._last is None:
            self._connection.write(refusal(ErrorCode.READ_ONLY, read_only_text(error)))

    def failed(self, error: ProtocolError) -> None:
        """Answer what is in flight, then close: the peer broke the protocol."""
        self._end_with(error_frame(error, closes=True) if error.answered else b"")

    def ended(self) -> None:
        """Answer what is in flight, then close: the peer has sent EOF."""
        self._end_with(b"")

    def silent(self) -> None:
        """Ping the peer."""
        self._pings += 1
        self._connection.write(encode_ping(self._pings))

    def has_space(self) -> None:
        """Continue to push and answer: everything written is sent."""
        self._subscriptions.has_space()
        self._watches.has_space()
        self._fetching.has_space()
        self._queues.has_space()

    def lost(self) -> None:
        """Cancel all tasks and end the producer session: the connection is closed."""
        self._last = self._last or b""
        self._subscriptions.end()
        self._watches.end()
        for task in list(self._tasks):
            task.cancel()
        self._queues.lost()
        if self._producer is not None:
            self._server.ingest.end(self._producer)

    def _close(self, code: ErrorCode, text: str, request_id: int) -> None:
        self._end_with(refusal(code, text, request_id=request_id, closes=True))

    def _end_with(self, last: bytes) -> None:
        """Accept nothing more, and close with a frame once everything is answered, or after a bounded time."""
        if self._last is not None:
            return
        self._last = last
        self._connection.stop_reading()
        self._subscriptions.end()
        self._watches.end()
        self._fetching.stop_waiting()
        self._queues.stop_waiting()
        self._loop.call_later(self._server.settings.drain_s, self._connection.finish, last)
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self._last is None or self._tasks or (self._producer is not None and not self._producer.is_answered):
            return
        self._connection.finish(self._last)
