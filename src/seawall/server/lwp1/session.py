"""Version 1 on one connection, as the published clients speak it: answers requests in their order.

    ingest      one kernel call turns a run of small frames into one batch, opaque payloads into batches of their own;
                everything received in one loop iteration goes into one commit, and its acks into one write
    control     commands run one at a time, after everything before them is answered: a fetch sees earlier writes
    keepalive   answered at once by the same frame, within a rate: published clients answer every answer

Backpressure is not reading: while a command runs, while too much is unacknowledged, and while answers are unsent, the
session accepts no frames, and the connection feeds them again later (`resume`).

There is one answer for each request, in the order of requests; only answers to keepalives may overtake. An ack means
that its batch is as durable as its topic promises, and visible to Fetch. An error in its place means that nothing of it
was stored, or that the outcome is unknown. `limits` bounds unacknowledged frames and bytes, and unsent answers.

A crash loses what was not acknowledged; the client sends it again, so version 1 is at-least-once. This module must not
know files, or what a command does.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from seawall import limits
from seawall.config import PastEnd
from seawall.core.types import TopicId
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import ProtocolError, SeawallError
from seawall.kernels.codec.frames import Rows
from seawall.server.connection.access import Access, Admission
from seawall.server.connection.budget import ConnectionMemory, Lease
from seawall.server.connection.keepalives import KeepaliveAnswers
from seawall.server.connection.session import Bytes
from seawall.server.connection.slow_callbacks import SlowCallbacks
from seawall.server.lwp1.ingest import EncodeBuffer, Lwp1Ingest, Run
from seawall.server.lwp1.reading import Lwp1Reading
from seawall.server.lwp2.refusals import refusal, v1_error_frame
from seawall.server.lwp2.topic_commands import DEFAULT_TOPIC_ID, TopicCommands, unknown_topic
from seawall.server.publish.ingest import Ingest
from seawall.server.publish.producer_session import ProducerSession
from seawall.server.publish.publish_thread import Returned, V1Topic
from seawall.topics.state import TopicState
from seawall.wire.format.codes import ErrorCode, V1Flags, V1Kind
from seawall.wire.format.compression import plain_size_max
from seawall.wire.format.fields import Buffer, JsonValue
from seawall.wire.lwp1.frames import (
    encode_ack,
    encode_fetch_reply,
    encode_reply,
    frame_kind,
    plain_payload,
)
from seawall.wire.lwp1.replies import AuthenticateReply, FetchReply, Reply
from seawall.wire.lwp1.requests import (
    Authenticate,
    CommitOffset,
    Fetch,
    Request,
    Subscribe,
    Unsubscribe,
    parse_request,
)

_HEADER: Final = limits.FRAME_HEADER_SIZE

#: Attach a connection to the publish thread after this many receives of small frames for one topic.
_ATTACH_AFTER: Final = 4

#: Flags of frames without a batch.
_OTHER_KINDS: Final = int(V1Flags.CONTROL | V1Flags.KEEPALIVE | V1Flags.ACK | V1Flags.BACKPRESSURE)


class V1Connection(Protocol):
    """What the session needs of its connection."""

    @property
    def memory(self) -> ConnectionMemory:
        """Memory that may be held for the peer."""
        ...

    @property
    def probe(self) -> SlowCallbacks:
        """Counts slow callbacks of the loop."""
        ...

    @property
    def is_full(self) -> bool:
        """True if the outbox is over its limit."""
        ...

    @property
    def certificate_name(self) -> str | None:
        """The common name in the verified certificate of the peer; None without one."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes after everything that was written before."""
        ...

    def resume(self) -> None:
        """Feed the frames again that were not accepted."""
        ...

    def attach(
        self,
        producer: ProducerSession,
        payload_max: int,
        returned: Callable[[Returned], None],
        v1_topic: V1Topic | None,
    ) -> None:
        """Hand the connection to the publish thread, unless data is in flight in either direction."""
        ...

    def stop_reading(self) -> None:
        """Discard everything that the peer still sends."""
        ...

    def finish(self, last: bytes = b"") -> None:
        """Send what was written and `last`, then close."""
        ...


class Lwp1Service:
    """What the version 1 sessions of an event loop share; call it with a connection to create a session."""

    def __init__(
        self,
        log: ServedLog,
        ingest: Ingest,
        commands: TopicCommands,
        *,
        access: Access | None = None,
        past_end: PastEnd = PastEnd.CATCHING_UP,
    ) -> None:
        self.log = log
        self.ingest = ingest
        self.commands = commands
        self.access = access or Access()
        self.past_end = past_end
        #: Refusals by cause.
        self.counts: Counter[str] = Counter()
        self.loop = asyncio.get_running_loop()
        #: Buffers for encoding frames as batches.
        self.encode_buffer = EncodeBuffer()

    def __call__(self, connection: V1Connection) -> Lwp1Session:
        """Create the session of a connection."""
        return Lwp1Session(self, connection)

    def count(self, cause: str) -> None:
        """Count a refusal."""
        self.counts[cause] += 1


class Lwp1Session:
    """One version 1 connection."""

    def __init__(self, service: Lwp1Service, connection: V1Connection) -> None:
        self._service = service
        self._connection = connection
        self._loop = service.loop
        self._admission = Admission(service.access, connection.certificate_name)
        self._reading = Lwp1Reading(service.log, service.commands, service.past_end, service.count, self._admission)
        #: Unwritten answers, in the order of their requests.
        self._answers: deque[Run | bytes] = deque()
        self._unacked_frames = 0
        self._unacked_size = 0
        #: The running command; and whether frames were not accepted, because of it or of anything else.
        self._command: asyncio.Task[None] | None = None
        self._has_unaccepted = False
        self._is_flush_scheduled = False
        #: The last frame to send, once nothing more is accepted.
        self._last: bytes | None = None
        self._keepalives = KeepaliveAnswers(service.loop, connection.write)
        self._ingest = Lwp1Ingest(
            service.log, service.ingest, service.encode_buffer, self._schedule_flush, self._resume
        )
        #: Consecutive receives of small frames for one topic only, and that topic.
        self._small_receives = 0
        self._topic: V1Topic | None = None
        #: The decompressed payload of the next frame, or why it is invalid; bytes counted for it; and bytes of payloads
        #: that the current receive may still decompress on the loop.
        self._plain: Buffer | None = None
        self._refused_payload: ProtocolError | None = None
        self._counted_plain = self._decompress_budget = 0
        #: Why topic 0 could not be created, for the frame that needs it.
        self._refused_default: ProtocolError | None = None

    # --- for the connection ------------------------------------------------------------------------------------------

    @property
    def payload_max(self) -> int:
        """The largest payload that is accepted now."""
        return self._admission.payload_max

    @property
    def is_admitted(self) -> bool:
        """True if the peer has shown a token, or needs none."""
        return self._admission.is_admitted

    def buffer_for(self, _size: int, _revoke: Callable[[], None], *, is_queued: Callable[[], bool]) -> None:
        """None: frames of version 1 have to be converted."""

    def has_space_for(self, _size: int) -> bool:
        """True: only the frames themselves show whether there is space."""
        return True

    def feed(self, buffer: Bytes, rows: Rows) -> int:
        """Accept frames as far as possible now; returns how many."""
        taken = 0
        self._decompress_budget = limits.DECOMPRESS_INLINE_SIZE
        while taken < len(rows):
            if self._last is not None:
                # The connection closes: ignore the frames after the last one.
                return len(rows)
            count = self._take(buffer, rows, taken) if self._has_space() else 0
            if not count:
                self._has_unaccepted = True
                break
            taken += count
        self._write()
        return taken

    def failed(self, error: ProtocolError) -> None:
        """Answer what came before, then report the error if possible, and close: the peer broke the protocol."""
        self._service.count(ErrorCode(error.code).name.lower())
        self._end_with(v1_error_frame(error) if error.answered else b"")

    def ended(self) -> None:
        """Answer what is in flight, then close: the peer has sent EOF."""
        self._end_with(b"")

    def drain(self, _drain_ms: int) -> None:
        """Accept nothing more, answer what is in flight, then close: the server shuts down."""
        self._connection.stop_reading()
        self.ended()

    def silent(self) -> None:
        """Do nothing: version 1 has no pings from the server."""

    def has_space(self) -> None:
        """Accept frames again: all answers are sent."""
        self._resume()

    def lost(self) -> None:
        """Drop all answers: the connection is closed."""
        self._last = b""
        self._keepalives.stop()
        self._ingest.end()

    # --- frames ------------------------------------------------------------------------------------------------------

    def _has_space(self) -> bool:
        """True if another frame may be accepted: within all bounds, and no command is running."""
        return (
            self._command is None
            and self._unacked_frames < limits.V1_UNACKED_FRAMES_MAX
            and self._unacked_size < limits.V1_UNACKED_SIZE_MAX
            and not self._connection.is_full
        )

    def _take(self, buffer: Bytes, rows: Rows, first: int) -> int:
        """Accept one frame or a run of them; returns how many, 0 if they have to wait."""
        at, size, batch_id, _, _, length, _, topic_id, _, flags, *_ = rows[first].item()
        try:
            kind = frame_kind(flags, length)
            if kind is V1Kind.INGEST:
                topic = self._topic_of(topic_id)
                if topic is None or (
                    flags & V1Flags.LZ4 and not self._is_plain(flags, buffer[at + _HEADER : at + size])
                ):
                    return 0
                return self._ingest_run(buffer, rows, first, topic)
            self._small_receives = 0
            if kind is V1Kind.KEEPALIVE:
                self._keepalives.answer()
            elif kind is V1Kind.CONTROL:
                self._write()
                if self._answers:
                    # Everything before it is answered first.
                    return 0
                error = self._admission.check(batch_id)
                if error is not None:
                    raise error
                request = parse_request(batch_id, buffer[at + _HEADER : at + size].tobytes())
                if isinstance(request, Authenticate):
                    # At once: a known token allows larger frames from the next one on.
                    self._authenticate(request)
                else:
                    self._begin(self._execute(request))
        except ProtocolError as error:
            self._refuse(error, None if flags & _OTHER_KINDS else batch_id)
        return 1

    # --- ingest ------------------------------------------------------------------------------------------------------

    def _topic_of(self, topic_id: TopicId) -> TopicState | None:
        """The topic of a frame; None if it has to be created first."""
        refused = self._admission.check_ingest()
        if refused is not None:
            raise refused
        topic = self._service.commands.find(topic_id)
        if topic is None:
            if topic_id != DEFAULT_TOPIC_ID:
                raise unknown_topic(topic_id)
            self._require_default_topic()
        return topic

    def _is_plain(self, flags: int, payload: Bytes) -> bool:
        """True if the payload of the next frame is decompressed; else a thread does it, and the frame is fed again."""
        if self._refused_payload is not None:
            refused, self._refused_payload = self._refused_payload, None
            raise refused
        if self._plain is None and payload.size <= self._decompress_budget:
            self._decompress_budget -= payload.size
            self._plain = plain_payload(flags, payload.tobytes())
        if self._plain is None:
            self._begin(self._decompress(flags, payload.tobytes()))
        return self._plain is not None

    async def _decompress(self, flags: int, payload: bytes) -> None:
        """Decompress a payload on a thread; the result is counted as memory until it is consumed."""
        memory = self._connection.memory
        try:
            with memory.working.lease() as lease:
                await lease.acquire(plain_size_max(len(payload)))
                self._plain = await self._service.log.run_check(partial(plain_payload, flags, payload))
            memory.waiting.hold(len(self._plain))
            self._counted_plain = len(self._plain)
        except ProtocolError as error:
            self._refused_payload = error

    def _ingest_run(self, buffer: Bytes, rows: Rows, first: int, topic: TopicState) -> int:
        """Publish one frame or a run of them; returns how many, 0 if there is no space."""
        run = self._ingest.take(buffer, rows, first, topic, self._plain)
        if run is None:
            return 0
        topic_before, self._topic = self._topic, V1Topic(int(rows["topic_id"][first]), topic.topic_id)
        is_small = self._plain is None and not first and len(run.batch_ids) == len(rows)
        is_small = is_small and self._topic == topic_before and int(rows["size"].max()) < limits.LARGE_BATCH_SIZE
        self._small_receives = self._small_receives + 1 if is_small else 0
        self._connection.memory.waiting.hold(-self._counted_plain)
        self._plain, self._counted_plain = None, 0
        count = len(run.batch_ids)
        self._answers.append(run)
        self._unacked_frames += count
        self._unacked_size += run.size
        return count

    def _schedule_flush(self) -> None:
        """Write answers at the end of the loop iteration, after the outcomes of all connections are known."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._write()
        self._resume()
        self._attach()

    def _attach(self) -> None:
        """Attach the connection to the publish thread if it only sends small frames."""
        is_idle = not (self._answers or self._has_unaccepted) and self._command is None and self._last is None
        if is_idle and self._small_receives >= _ATTACH_AFTER:
            producer = self._ingest.attachable()
            if producer is not None:
                self._connection.attach(producer, self.payload_max, self._returned, self._topic)

    def _returned(self, returned: Returned) -> None:
        """Continue after the publish thread: the connection may be attached again after more small frames."""
        self._small_receives = 0
        unknown = self._ingest.returned(returned)
        if unknown is not None:
            self._answers.append(unknown)
            self._unacked_frames += len(unknown.batch_ids)
            self._write()

    def _require_default_topic(self) -> None:
        """Create topic 0 before the frame that needs it is fed again; raises if that has failed."""
        if self._refused_default is not None:
            refused, self._refused_default = self._refused_default, None
            raise refused
        self._begin(self._create_default_topic())

    async def _create_default_topic(self) -> None:
        try:
            await self._service.commands.default_topic()
        except (SeawallError, OSError) as error:
            self._refused_default = refusal(error)

    # --- commands ----------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._command = self._loop.create_task(self._connection.probe.watched(work))
        self._command.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._command = None
        bug = None if task.cancelled() else task.exception()
        if bug is not None:
            self._loop.call_exception_handler({"message": "a command failed", "exception": bug, "task": task})
            self._connection.stop_reading()
            self._end_with(v1_error_frame(refusal(bug)))
        self._write()
        self._resume()

    async def _execute(self, request: Request) -> None:
        """Execute one command; no other frame is accepted meanwhile."""
        try:
            with self._connection.memory.working.lease() as lease:
                self._answers.append(await self._answer_to(request, lease))
                self._write()
        except (SeawallError, OSError) as error:
            self._refuse(refusal(error))

    async def _answer_to(self, request: Request, lease: Lease) -> bytes:
        match request:
            case Fetch():
                return _frames(await self._reading.fetch(request, lease))
            case Subscribe():
                return encode_reply(await self._reading.subscribe(request))
            case Unsubscribe():
                return encode_ack(self._reading.unsubscribe(request))
            case CommitOffset():
                return encode_reply(await self._reading.commit(request))
            case _:
                return encode_reply(await self._service.commands.execute(request))

    def _authenticate(self, request: Authenticate) -> None:
        is_known = self._admission.authenticate(request.token)
        reply = AuthenticateReply(is_known, "welcome" if is_known else "this token is not known")
        self._answers.append(encode_reply(reply))
        if not is_known:
            self._service.count("authentication_failed")
            if self._admission.is_over:
                self._connection.stop_reading()
                self._end_with(b"")

    # --- answers -----------------------------------------------------------------------------------------------------

    def _refuse(self, error: ProtocolError, batch_id: int | None = None) -> None:
        """Report a refusal in place of the answer."""
        details: dict[str, JsonValue] = {} if batch_id is None else {"batch_id": batch_id}
        self._answers.append(v1_error_frame(error, details))
        self._service.count(ErrorCode(error.code).name.lower())

    def _write(self) -> None:
        """Write all answers before the first undecided one."""
        frames: list[bytes] = []
        while self._answers:
            first = self._answers[0]
            if isinstance(first, Run):
                if not first.is_decided:
                    break
                self._unacked_frames -= len(first.batch_ids)
                self._unacked_size -= first.size
                frames.append(first.frames())
            else:
                frames.append(first)
            self._answers.popleft()
        if frames:
            self._connection.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._last is not None and not self._answers and self._command is None:
            self._connection.finish(self._last)

    def _resume(self) -> None:
        if self._has_unaccepted and self._has_space():
            self._has_unaccepted = False
            self._connection.resume()

    def _end_with(self, last: bytes) -> None:
        """Accept nothing more: answer what is in flight, send the last frame, and close."""
        self._last = last
        self._write()


def _frames(reply: Reply | FetchReply) -> bytes:
    if isinstance(reply, FetchReply):
        return b"".join(encode_fetch_reply(reply))
    return encode_reply(reply)
