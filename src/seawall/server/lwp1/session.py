"""Version 1 on one connection, as the published clients speak it: frames in, answers out, in the order of requests.

    ingest      a run of small frames becomes one batch by one kernel call, opaque payloads batches of their own; all
                that came in one turn of the loop goes into one commit, and their acks into one write
    control     carried out one at a time, after everything before it was answered: a fetch sees what was sent before it
    keepalive   answered at once by the same frame, within a rate: published clients answer every answer

Throttling is not reading: while a command is carried out, while too much is not acked, and while answers wait to be
sent, frames are not taken, and come again (`go_on`).

Answers go out in the order of requests, one each; only those to keepalives may overtake. An ack means that its batch is
as durable as its topic promises, and visible to Fetch; an error in its place, that nothing of it was stored or nobody
knows. Frames and bytes that are not acked, and answers that are not sent, are bounded by `limits`.

A crash takes what was not acked; the client sends it again, which is why version 1 is at least once. This module must
not know files, or what a command does.
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

#: Receives of nothing but small frames for one topic after which a connection is attached to the publish thread.
_ATTACH_AFTER: Final = 4

#: Flags of frames that bring no batch.
_OTHER_KINDS: Final = int(V1Flags.CONTROL | V1Flags.KEEPALIVE | V1Flags.ACK | V1Flags.BACKPRESSURE)


class Line(Protocol):
    """The connection as a session uses it."""

    @property
    def memory(self) -> ConnectionMemory:
        """What may be held for the peer."""
        ...

    @property
    def probe(self) -> SlowCallbacks:
        """Counts what takes too long on its loop."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that nothing more may be taken."""
        ...

    @property
    def certificate_name(self) -> str | None:
        """The name in the verified certificate of the peer; None without one."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes behind everything that was written before."""
        ...

    def go_on(self) -> None:
        """What was not taken comes once more."""
        ...

    def attach(
        self,
        publishing: ProducerSession,
        payload_max: int,
        returned: Callable[[Returned], None],
        v1_topic: V1Topic | None,
    ) -> None:
        """Let the publish thread receive and answer, if nothing is on its way in either direction."""
        ...

    def stop_reading(self) -> None:
        """Take no notice of anything that the peer still sends."""
        ...

    def finish(self, last: bytes = b"") -> None:
        """Send what is written and `last`, then end."""
        ...


class Lwp1Service:
    """What the version 1 sessions of a listener share; called with a connection it makes its session."""

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
        #: How often each kind of refusal was seen.
        self.counts: Counter[str] = Counter()
        self.loop = asyncio.get_running_loop()
        #: Where frames become batches.
        self.space = EncodeBuffer()

    def __call__(self, line: Line) -> Lwp1Session:
        """The session of a connection."""
        return Lwp1Session(self, line)

    def count(self, cause: str) -> None:
        """One more of these."""
        self.counts[cause] += 1


class Lwp1Session:
    """One connection that speaks version 1."""

    def __init__(self, service: Lwp1Service, line: Line) -> None:
        self._service = service
        self._line = line
        self._loop = service.loop
        self._admission = Admission(service.access, line.certificate_name)
        self._reading = Lwp1Reading(service.log, service.commands, service.past_end, service.count, self._admission)
        #: Answers that are not written, in the order of their requests.
        self._answers: deque[Run | bytes] = deque()
        self._unacked_frames = 0
        self._unacked_size = 0
        #: What carries out a command, and whether frames were left because of it or of anything else.
        self._command: asyncio.Task[None] | None = None
        self._is_behind = False
        self._is_settling = False
        #: The last words, once the peer is not listened to any more.
        self._last: bytes | None = None
        self._keepalives = KeepaliveAnswers(service.loop, line.write)
        self._ingest = Lwp1Ingest(service.log, service.ingest, service.space, self._told, self._go_on)
        #: Receives of nothing but small frames for one topic, one after the other, and that topic.
        self._small_receives = 0
        self._topic: V1Topic | None = None
        #: The next compressed payload when it is plain, or why it cannot be; bytes counted for it; and bytes of
        #: payloads that may still be decompressed right here, of what came together.
        self._plain: Buffer | None = None
        self._refused_payload: ProtocolError | None = None
        self._counted_plain = self._unpacked_here = 0
        #: Why topic 0 could not be made, for the frame that needed it.
        self._refused_default: ProtocolError | None = None

    # --- what a connection says --------------------------------------------------------------------------------------

    @property
    def payload_max(self) -> int:
        """The largest payload that is taken now."""
        return self._admission.payload_max

    @property
    def is_admitted(self) -> bool:
        """Whether the peer has shown a token, or needs none."""
        return self._admission.is_admitted

    def place_for(self, _size: int, _take_back: Callable[[], None], *, at_hand: Callable[[], bool]) -> None:
        """Frames of version 1 do not lie anywhere as they come."""

    def has_space_for(self, _size: int) -> bool:
        """Whether there is room shows when they have come."""
        return True

    def feed(self, buffer: Bytes, rows: Rows) -> int:
        """Take frames as far as that can be now; how many."""
        taken = 0
        self._unpacked_here = limits.UNPACK_HERE_SIZE
        while taken < len(rows):
            if self._last is not None:
                # It ends: nothing more that came with the last frame counts.
                return len(rows)
            count = self._take(buffer, rows, taken) if self._has_space() else 0
            if not count:
                self._is_behind = True
                break
            taken += count
        self._write()
        return taken

    def failed(self, error: ProtocolError) -> None:
        """The peer broke the protocol: what came before is answered, then it is told, if it may be."""
        self._service.count(ErrorCode(error.code).name.lower())
        self._end_with(v1_error_frame(error) if error.answered else b"")

    def ended(self) -> None:
        """The peer sends nothing more: what is under way is answered."""
        self._end_with(b"")

    def drain(self, _drain_ms: int) -> None:
        """The server ends: nothing more is taken, what is under way is answered."""
        self._line.stop_reading()
        self.ended()

    def silent(self) -> None:
        """Version 1 says nothing unasked."""

    def has_space(self) -> None:
        """All answers are sent: what was left because of them comes again."""
        self._go_on()

    def lost(self) -> None:
        """The connection is gone: nothing is answered any more."""
        self._last = b""
        self._keepalives.stop()
        self._ingest.end()

    # --- frames ------------------------------------------------------------------------------------------------------

    def _has_space(self) -> bool:
        """Whether one more frame may be taken: bounds have space, and no command is under way."""
        return (
            self._command is None
            and self._unacked_frames < limits.V1_UNACKED_FRAMES_MAX
            and self._unacked_size < limits.V1_UNACKED_SIZE_MAX
            and not self._line.is_full
        )

    def _take(self, buffer: Bytes, rows: Rows, first: int) -> int:
        """Take one frame or a run of them; how many, 0 if that has to wait."""
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
                    # At once: the next frame may be larger if this token is known.
                    self._authenticate(request)
                else:
                    self._begin(self._execute(request))
        except ProtocolError as error:
            self._refuse(error, None if flags & _OTHER_KINDS else batch_id)
        return 1

    # --- ingest ------------------------------------------------------------------------------------------------------

    def _topic_of(self, topic_id: TopicId) -> TopicState | None:
        """The topic that a batch goes to; None if it is made first."""
        refused = self._admission.check_ingest()
        if refused is not None:
            raise refused
        topic = self._service.commands.find(topic_id)
        if topic is None:
            if topic_id != DEFAULT_TOPIC_ID:
                raise unknown_topic(topic_id)
            self._begin_default_topic()
        return topic

    def _is_plain(self, flags: int, payload: Bytes) -> bool:
        """Whether the payload of the next frame is decompressed; if not it soon is, and the frame comes again."""
        if self._refused_payload is not None:
            refused, self._refused_payload = self._refused_payload, None
            raise refused
        if self._plain is None and payload.size <= self._unpacked_here:
            self._unpacked_here -= payload.size
            self._plain = plain_payload(flags, payload.tobytes())
        if self._plain is None:
            self._begin(self._unpack(flags, payload.tobytes()))
        return self._plain is not None

    async def _unpack(self, flags: int, payload: bytes) -> None:
        """Decompress a payload on a thread; what it becomes is counted until it is taken."""
        memory = self._line.memory
        try:
            with memory.working.lease() as lease:
                await lease.acquire(plain_size_max(len(payload)))
                self._plain = await self._service.log.run_check(partial(plain_payload, flags, payload))
            memory.waiting.hold(len(self._plain))
            self._counted_plain = len(self._plain)
        except ProtocolError as error:
            self._refused_payload = error

    def _ingest_run(self, buffer: Bytes, rows: Rows, first: int, topic: TopicState) -> int:
        """Publish one frame or a run of them; how many, 0 if there is no room."""
        run = self._ingest.take(buffer, rows, first, topic, self._plain)
        if run is None:
            return 0
        topic_before, self._topic = self._topic, V1Topic(int(rows["topic_id"][first]), topic.topic_id)
        is_small = self._plain is None and not first and len(run.batch_ids) == len(rows)
        is_small = is_small and self._topic == topic_before and int(rows["size"].max()) < limits.LARGE_BATCH_SIZE
        self._small_receives = self._small_receives + 1 if is_small else 0
        self._line.memory.waiting.hold(-self._counted_plain)
        self._plain, self._counted_plain = None, 0
        count = len(run.batch_ids)
        self._answers.append(run)
        self._unacked_frames += count
        self._unacked_size += run.size
        return count

    def _told(self) -> None:
        """Runs are decided: at the end of this turn, behind everybody else's, their answers are written."""
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._is_settling = False
        self._write()
        self._go_on()
        self._attach()

    def _attach(self) -> None:
        """Let the publish thread handle the connection, if there is nothing else on it than small frames."""
        is_idle = not (self._answers or self._is_behind) and self._command is None and self._last is None
        if is_idle and self._small_receives >= _ATTACH_AFTER:
            publishing = self._ingest.attachable()
            if publishing is not None:
                self._line.attach(publishing, self.payload_max, self._returned, self._topic)

    def _returned(self, returned: Returned) -> None:
        """The publish thread has given the connection back: it is attached again after some more small frames."""
        self._small_receives = 0
        unknown = self._ingest.returned(returned)
        if unknown is not None:
            self._answers.append(unknown)
            self._unacked_frames += len(unknown.batch_ids)
            self._write()

    def _begin_default_topic(self) -> None:
        """Have topic 0 made before the frame that needs it is looked at again, or refused because it cannot be."""
        if self._refused_default is not None:
            refused, self._refused_default = self._refused_default, None
            raise refused
        self._begin(self._make_default_topic())

    async def _make_default_topic(self) -> None:
        try:
            await self._service.commands.default_topic()
        except (SeawallError, OSError) as error:
            self._refused_default = refusal(error)

    # --- commands ----------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._command = self._loop.create_task(self._line.probe.watched(work))
        self._command.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._command = None
        bug = None if task.cancelled() else task.exception()
        if bug is not None:
            self._loop.call_exception_handler({"message": "a command failed", "exception": bug, "task": task})
            self._line.stop_reading()
            self._end_with(v1_error_frame(refusal(bug)))
        self._write()
        self._go_on()

    async def _execute(self, request: Request) -> None:
        """Answer one command; nothing else is taken meanwhile."""
        try:
            with self._line.memory.working.lease() as lease:
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
                self._line.stop_reading()
                self._end_with(b"")

    # --- answers -----------------------------------------------------------------------------------------------------

    def _refuse(self, error: ProtocolError, batch_id: int | None = None) -> None:
        """Say why something was refused, where its answer would have been."""
        details: dict[str, JsonValue] = {} if batch_id is None else {"batch_id": batch_id}
        self._answers.append(v1_error_frame(error, details))
        self._service.count(ErrorCode(error.code).name.lower())

    def _write(self) -> None:
        """Write every answer that no undecided one stands before."""
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
            self._line.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._last is not None and not self._answers and self._command is None:
            self._line.finish(self._last)

    def _go_on(self) -> None:
        if self._is_behind and self._has_space():
            self._is_behind = False
            self._line.go_on()

    def _end_with(self, last: bytes) -> None:
        """Nothing more is taken: answer what is under way, then say the last words, and end."""
        self._last = last
        self._write()


def _frames(reply: Reply | FetchReply) -> bytes:
    if isinstance(reply, FetchReply):
        return b"".join(encode_fetch_reply(reply))
    return encode_reply(reply)
