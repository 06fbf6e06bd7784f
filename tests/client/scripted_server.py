"""A scripted server: it uses the real codecs over real sockets, keeps its batches in memory, and fails on demand.

It does what a real server cannot be made to do: lost acks, cut frames, RETRY, UNKNOWN, pressure, reordered acks,
refused sessions. `Script.on_batch` decides what happens to each batch before it is stored; all other frames are
answered as the protocol requires.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, Term, TimestampNs, TopicEpoch, TopicId
from seawall.wire.format.batches import BatchHeader, BatchSource, parse_batch_header, stamp
from seawall.wire.format.codes import (
    VERSION_2,
    AckLevel,
    AckStatus,
    Command,
    DataFlags,
    ErrorCode,
    GapReason,
    GapUnit,
    HelloFlags,
    Kind,
    ReadBy,
    SessionStatus,
)
from seawall.wire.format.decoder import Frame, FrameDecoder
from seawall.wire.format.fields import JsonObject
from seawall.wire.lwp1.replies import TopicDeletedReply, TopicListReply, TopicReply
from seawall.wire.lwp1.requests import DeleteTopic, ListTopics
from seawall.wire.lwp2.frames import encode_ack, encode_control, encode_data_start, encode_pong, parse_request
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, Committed, DataPrefix, Fetch, Gap
from seawall.wire.lwp2.session import Ack, AckEntry, Error, Goodbye, Hello, Welcome
from seawall.wire.lwp2.subscriptions import CaughtUp, Credit, Subscribe, Subscribed
from seawall.wire.lwp2.topics import (
    RecordsDelete,
    RecordsDeleted,
    TopicConfigure,
    TopicCreate,
    TopicDescribe,
    TopicFind,
)

PAYLOAD = 16 * 1024 * 1024


class CutError(Exception):
    """End the connection now."""


@dataclass
class Topic:
    reply: TopicReply
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    next_seq: int = 1
    floor: int = 1
    #: Lost ranges, reported as gaps.
    lost: list[tuple[int, int]] = field(default_factory=list)
    cursors: dict[int, int] = field(default_factory=dict)


@dataclass
class Client:
    epoch: int = 0
    next_seq: int = 1
    decided: dict[int, AckEntry] = field(default_factory=dict)


@dataclass
class Script:
    """What goes wrong. A hook gets the connection and what it received, and may raise `CutError`."""

    #: Called with every frame. True: handle it; False: ignore it.
    on_frame: Callable[[Peer, Frame], bool] = lambda _peer, _frame: True
    #: True: store and acknowledge as usual; False: neither.
    on_batch: Callable[[Peer, BatchHeader], bool] = lambda _peer, _header: True
    #: Returns the entries that are sent as the ACK.
    on_ack: Callable[[Peer, list[AckEntry]], list[AckEntry]] = lambda _peer, entries: entries
    on_hello: Callable[[Peer, Hello], Welcome | None] = lambda _peer, _hello: None
    on_request: Callable[[Peer, object, int], bool] = lambda _peer, _request, _id: True
    window_batches: int = 256
    window_bytes: int = 32 * 1024 * 1024
    keepalive_ms: int = 10_000
    idle_ms: int = 30_000
    features: int = 0xFFFF
    #: Fetches are answered from the first seq on, whatever start they ask for.
    ignores_start: bool = False
    #: Errors that refuse batches without records without using their client seq; the next one is last.
    refusals_of_empty: list[ErrorCode] = field(default_factory=list)


class ScriptedServer:
    """Listens on a free port; every connection has a thread."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script = script or Script()
        self.lock = threading.RLock()
        self.change = threading.Condition(self.lock)
        self.topics: dict[int, Topic] = {}
        self.clients: dict[int, Client] = {}
        self.position = 0
        self.hellos: list[Hello] = []
        #: Client seqs of the batches without records that arrived.
        self.abandoned: list[int] = []
        self.goodbyes: list[Goodbye] = []
        #: Set after a ping was answered.
        self.pings: threading.Event | None = None
        self.peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"seawall://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(self, accepted)
            with self.lock:
                self.peers.append(peer)
            thread = threading.Thread(target=peer.run, daemon=True)
            self._threads.append(thread)
            thread.start()

    def cut_all(self) -> None:
        """Cut every connection, and keep listening."""
        with self.lock:
            for peer in self.peers:
                peer.close()

    def close(self) -> None:
        # Closing a socket does not wake a thread blocked in accept; shutting it down does.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        self._accepting.join()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_closed(self, peer: Peer) -> None:
        """Wait until a connection has ended."""
        with self.change:
            assert self.change.wait_for(lambda: peer.is_closed, 30)

    def topic(self, name: str) -> Topic:
        return next(topic for topic in self.topics.values() if topic.reply.name == name)

    def create(self, name: str, settings: JsonObject | None = None) -> Topic:
        with self.lock:
            topic_id = TopicId(max(self.topics, default=0) + 1)
            topic = Topic(TopicReply(topic_id, name, 1_700_000_000, TopicEpoch(1), settings=settings or {}))
            self.topics[topic_id] = topic
            return topic


class Peer:
    """One connection."""

    def __init__(self, server: ScriptedServer, connected: socket.socket) -> None:
        self.server = server
        self.socket = connected
        self.hello: Hello | None = None
        self.client_id = 0
        self.epoch = 0
        self.through = 0
        self.batch_count = 0
        self.is_closed = False
        self.subscriptions: dict[int, tuple[Subscribe, threading.Thread]] = {}

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def send(self, data: bytes) -> None:
        with self.server.lock:
            self.socket.sendall(data)

    def run(self) -> None:
        decoder = FrameDecoder(PAYLOAD)
        try:
            while data := self.socket.recv(1 << 20):
                decoder.feed(data)
                entries: list[AckEntry] = []
                for frame in decoder.frames():
                    self._handle(frame, entries)
                if entries:
                    self.ack(entries)
        except (CutError, OSError):
            pass
        finally:
            self.socket.close()
            with self.server.change:
                self.is_closed = True
                self.server.change.notify_all()

    def ack(self, entries: list[AckEntry]) -> None:
        script = self.server.script
        self.through = max([self.through, *(int(entry.client_seq) for entry in entries)])
        entries = script.on_ack(self, entries)
        self.send_ack(entries)

    def send_ack(self, entries: list[AckEntry]) -> None:
        script = self.server.script
        shown = tuple(sorted(entries, key=lambda entry: entry.client_seq))
        ack = Ack(SessionEpoch(self.epoch), script.window_batches, script.window_bytes, shown)
        self.send(encode_ack(ack, through=self.through))

    def refuse(self, request_id: int, code: ErrorCode, text: str, **more: int) -> None:
        closes = bool(more.pop("closes", 0))
        error = Error(int(code), code.error_class, closes, text, **more)
        self.send(encode_control(error, request_id=request_id))

    def say_goodbye(self) -> None:
        self.send(encode_control(Goodbye(int(ErrorCode.SHUTTING_DOWN), 1_000)))

    def _handle(self, frame: Frame, entries: list[AckEntry]) -> None:
        header = frame.header
        if not self.server.script.on_frame(self, frame):
            return
        if header.kind == Kind.KEEPALIVE:
            if header.command == 0:
                self.send(encode_pong(header.id))
                if self.server.pings is not None:
                    self.server.pings.set()
        elif header.kind == Kind.BATCH:
            with self.server.change:
                entry = self._store(frame)
                self.server.change.notify_all()
            if entry is not None:
                entries.append(entry)
        else:
            request = parse_request(header.command, frame.payload)
            if self.server.script.on_request(self, request, header.id):
                self._answer(request, header.id)

    def _store(self, frame: Frame) -> AckEntry | None:
        server = self.server
        if not frame.header.record_count:
            return self._abandon(frame)
        header = parse_batch_header(frame.whole, source=BatchSource.CLIENT)
        self.batch_count += 1
        if not server.script.on_batch(self, header):
            return None
        client = server.clients[header.client_id]
        known = client.decided.get(header.client_seq)
        if known is not None:
            return AckEntry(
                known.client_seq,
                known.base_seq,
                known.position,
                known.timestamp_ns,
                known.topic_id,
                1,
                known.record_count,
                AckStatus.DUPLICATE,
                known.level,
            )
        topic = server.topics.get(header.topic_id)
        if topic is None:
            return rejected(header, ErrorCode.TOPIC_NOT_FOUND)
        return self.store(header, bytes(frame.whole))

    def _abandon(self, frame: Frame) -> AckEntry:
        """Refuse a batch without records, which uses its client seq, unless the script says otherwise."""
        server = self.server
        number, client = ClientSeq(frame.header.id), server.clients[self.client_id]
        code, level = ErrorCode.INVALID_PAYLOAD, AckLevel.ORDERED
        if server.script.refusals_of_empty:
            code, level = server.script.refusals_of_empty.pop(), AckLevel.FAILURES
        none = (Seq(0), Position(0), TimestampNs(0), TopicId(0), 1, 0)
        entry = AckEntry(number, *none, AckStatus.REJECTED, level, int(code))
        server.abandoned.append(number)
        if level:
            client.decided[number] = entry
        return entry

    def store(self, header: BatchHeader, whole: bytes) -> AckEntry:
        """Assign seqs to a batch and keep it."""
        server = self.server
        topic, client = server.topics[header.topic_id], server.clients[header.client_id]
        stored = bytearray(whole)
        stamp(
            stored,
            position=Position(server.position),
            base_seq=Seq(topic.next_seq),
            base_offset=0,
            timestamp_ns=TimestampNs(1_000_000 * (server.position + 1)),
            term=Term(1),
        )
        kept = parse_batch_header(stored, source=BatchSource.STORED)
        topic.batches.append((kept, bytes(stored)))
        entry = AckEntry(
            header.client_seq,
            Seq(topic.next_seq),
            Position(server.position),
            kept.timestamp_ns,
            header.topic_id,
            1,
            header.record_count,
            AckStatus.OK,
            AckLevel.DURABLE,
        )
        topic.next_seq += header.record_count
        server.position += 1
        client.decided[header.client_seq] = entry
        while client.next_seq in client.decided:
            client.next_seq += 1
        return entry

    # --- control frames ---------------------------------------------------------------------------------------------

    def _answer(self, request: object, request_id: int) -> None:
        server = self.server
        with server.lock:
            match request:
                case Hello():
                    self.send(encode_control(self._welcome(request), request_id=request_id))
                case TopicCreate():
                    self._create(request, request_id)
                case TopicFind():
                    self._find(request.name, request_id)
                case ListTopics():
                    replies = tuple(topic.reply for topic in server.topics.values())
                    self.send(encode_control(TopicListReply(replies), request_id=request_id))
                case Subscribe():
                    self._subscribe(request, request_id)
                case Credit():
                    pass
                case Goodbye():
                    server.goodbyes.append(request)
                    raise CutError
                case _:
                    topic = server.topics.get(getattr(request, "topic_id", 0))
                    if topic is None:
                        self.refuse(request_id, ErrorCode.TOPIC_NOT_FOUND, "no such topic")
                    else:
                        self._about(topic, request, request_id)

    def _welcome(self, hello: Hello) -> Welcome:
        server, script = self.server, self.server.script
        server.hellos.append(hello)
        self.hello = hello
        scripted = script.on_hello(self, hello)
        if scripted is not None:
            return scripted
        status, client = SessionStatus.NONE, Client()
        client_id = int(hello.client_id)
        if hello.flags & (HelloFlags.OPEN | HelloFlags.JOIN):
            client_id = client_id or len(server.clients) + 1
            is_known = client_id in server.clients
            client = server.clients.setdefault(client_id, Client(next_seq=int(hello.start_seq)))
            if hello.flags & HelloFlags.JOIN:
                status = SessionStatus.JOINED
                if hello.session_epoch != client.epoch:
                    status = SessionStatus.REFUSED_SUPERSEDED
            else:
                status = SessionStatus.RESUMED if is_known else SessionStatus.NEW
                client.epoch += 1
        self.client_id, self.epoch = client_id, client.epoch
        return self.welcome(status, client)

    def welcome(self, status: SessionStatus, client: Client) -> Welcome:
        script = self.server.script
        features = script.features & (self.hello.features if self.hello else 0)
        return Welcome(
            VERSION_2,
            status,
            PAYLOAD,
            features,
            ClientId(self.client_id),
            SessionEpoch(client.epoch),
            client.next_seq,
            script.window_batches,
            script.window_bytes,
            script.keepalive_ms,
            script.idle_ms,
            Term(1),
            TimestampNs(1),
            0,
        )

    def _create(self, request: TopicCreate, request_id: int) -> None:
        server, name = self.server, request.name
        if any(topic.reply.name == name for topic in server.topics.values()):
            self.refuse(request_id, ErrorCode.TOPIC_EXISTS, f"topic {name} exists already")
            return
        self.send(encode_control(described(server.create(name, request.settings)), request_id=request_id))

    def _find(self, name: str, request_id: int) -> None:
        for topic in self.server.topics.values():
            if topic.reply.name == name:
                self.send(encode_control(topic.reply, request_id=request_id))
                return
        self.refuse(request_id, ErrorCode.TOPIC_NOT_FOUND, f"there is no topic {name!r}")

    def _about(self, topic: Topic, request: object, request_id: int) -> None:
        reply = topic.reply
        match request:
            case TopicDescribe():
                self.send(encode_control(described(topic), request_id=request_id))
            case RecordsDelete():
                before = min(int(request.before_seq or topic.next_seq), topic.next_seq)
                deleted, topic.floor = max(0, before - topic.floor), max(topic.floor, before)
                self.send(encode_control(RecordsDeleted(deleted), request_id=request_id))
            case DeleteTopic():
                del self.server.topics[reply.topic_id]
                self.send(encode_control(TopicDeletedReply(reply.topic_id), request_id=request_id))
            case TopicConfigure():
                topic.reply = replace(reply, settings={**(reply.settings or {}), **request.settings})
                self.send(encode_control(described(topic), request_id=request_id))
            case Bounds():
                end = Seq(topic.next_seq)
                size = sum(header.raw_length for header, _ in topic.batches)
                bounds = BoundsReply(Seq(topic.floor), end, end, 0, self.server.position, 0, size, reply.topic_epoch)
                self.send(encode_control(bounds, request_id=request_id))
            case Commit():
                topic.cursors[request.consumer] = int(request.seq)
                answer = Committed(request.topic_id, request.consumer, request.topic_epoch, request.seq)
                self.send(encode_control(answer, request_id=request_id))
            case Fetch():
                threading.Thread(target=self._fetch, args=(topic, request, request_id), daemon=True).start()

    def _start(self, topic: Topic, by: ReadBy, start: int, consumer: int) -> int:
        if by is ReadBy.SEQ:
            return start
        if by is ReadBy.POSITION:
            return min((h.base_seq for h, _ in topic.batches if h.position >= start), default=topic.next_seq)
        if by is ReadBy.TIME:
            return min((h.base_seq for h, _ in topic.batches if h.timestamp_ns >= start), default=topic.next_seq)
        if by is ReadBy.COMMITTED:
            return topic.cursors.get(consumer, topic.floor)
        return topic.floor if by is ReadBy.EARLIEST else topic.next_seq

    def _fetch(self, topic: Topic, fetch: Fetch, request_id: int) -> None:
        server = self.server
        with server.change:
            start = self._start(topic, fetch.by, fetch.start, fetch.start)
            if fetch.wait_ms and start >= topic.next_seq:
                server.change.wait_for(lambda: start < topic.next_seq, fetch.wait_ms / 1e3)
            with suppress(OSError):
                start = 1 if server.script.ignores_start else start
                self.send(self._response(topic, start, fetch.max_bytes, Command.FETCH_DATA, request_id)[0])

    def _response(
        self, topic: Topic, start: int, max_bytes: int, command: Command, request_id: int
    ) -> tuple[bytes, int]:
        """The frame that answers a read from a seq on, and the seq that follows it."""
        for first, last in topic.lost:
            if first <= start <= last:
                gap = Gap(
                    topic.reply.topic_id,
                    GapReason.CRASH,
                    GapUnit.TOPIC_SEQ,
                    start,
                    last,
                    ClientId(0),
                    Position(0),
                    TimestampNs(1),
                )
                return encode_control(gap, request_id=request_id), last + 1
        chunks: list[bytes] = []
        records = size = 0
        at = start
        for header, whole in topic.batches:
            if header.base_seq + header.record_count <= start:
                continue
            if chunks and (size + len(whole) > max_bytes or header.base_seq != at):
                break
            chunks.append(whole)
            size += len(whole)
            records += header.record_count
            at = header.base_seq + header.record_count
        caught_up = DataFlags.CAUGHT_UP if at >= topic.next_seq else DataFlags.MORE
        prefix = DataPrefix(
            topic.reply.topic_id,
            caught_up,
            len(chunks),
            Seq(start),
            Seq(at),
            Position(self.server.position),
            Seq(topic.next_seq),
            Seq(topic.floor),
        )
        head = encode_data_start(
            command, prefix, request_id=request_id, record_count=records, chunks_length=sum(map(len, chunks))
        )
        return head + b"".join(chunks), at

    def _subscribe(self, request: Subscribe, request_id: int) -> None:
        topic = self.server.topics.get(request.topic_id)
        if topic is None:
            self.refuse(request_id, ErrorCode.TOPIC_NOT_FOUND, "no such topic")
            return
        start = self._start(topic, request.by, request.start, request.consumer)
        answer = Subscribed(
            request.topic_id, Seq(start), Seq(topic.next_seq), Seq(topic.floor), topic.reply.topic_epoch
        )
        self.send(encode_control(answer, request_id=request_id))
        thread = threading.Thread(target=self._push, args=(topic, start, request_id), daemon=True)
        self.subscriptions[request_id] = (request, thread)
        thread.start()

    def _push(self, topic: Topic, seq: int, request_id: int) -> None:
        server = self.server
        try:
            while self.socket.fileno() >= 0:
                with server.change:
                    if seq >= topic.next_seq:
                        self.send(encode_control(CaughtUp(Seq(seq), Position(server.position)), request_id=request_id))
                        wanted = seq
                        server.change.wait_for(
                            lambda wanted=wanted: topic.next_seq > wanted or self.socket.fileno() < 0
                        )
                    if seq < topic.next_seq:
                        frame, seq = self._response(topic, seq, 1 << 20, Command.DATA, request_id)
                        self.send(frame)
        except OSError:
            return


def described(topic: Topic) -> TopicReply:
    """The full description of a topic."""
    count = topic.next_seq - topic.floor
    size = sum(header.raw_length for header, _ in topic.batches)
    return replace(topic.reply, record_count=count, byte_count=size, span=(Seq(topic.floor), Seq(topic.next_seq)))


def rejected(header: BatchHeader, code: ErrorCode, status: AckStatus = AckStatus.REJECTED) -> AckEntry:
    return AckEntry(
        header.client_seq,
        Seq(0),
        Position(0),
        TimestampNs(0),
        header.topic_id,
        1,
        header.record_count,
        status,
        AckLevel.FAILURES,
        int(code),
    )
