"""A version 2 client for tests, which shows every frame; and a server for it."""

import asyncio
from contextlib import asynccontextmanager

from watched import WatchedLog, WatchedThread, accepted_socket

from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TimestampNs, TopicId
from seawall.engine.store.settings import StoreSettings
from seawall.io.network.receiving import queued_size
from seawall.limits import KIB
from seawall.server.connection.access import Access
from seawall.server.connection.context import ServerContext, ServerSettings
from seawall.server.connection.listener import Listener
from seawall.server.lwp2.session import Lwp2Session
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.server.publish.ingest import Ingest
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import Codec, Command, HelloFlags, Kind
from seawall.wire.format.compression import compress
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp2.frames import encode_control, parse_answer
from seawall.wire.lwp2.reading import iter_chunks, parse_data_prefix
from seawall.wire.lwp2.session import Hello

SMALL = StoreSettings(wal_file_size=4096 * KIB, ballast_size=4 * KIB)


class Peer:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self.decoder = FrameDecoder()
        self.frames = []
        self.welcome = None
        self.seq = 0

    def send(self, data):
        self.writer.write(data)

    def ask(self, payload, request_id=1):
        self.writer.write(encode_control(payload, request_id=request_id))

    async def frame(self):
        """The next frame; None at the end of the connection."""
        while not self.frames:
            data = await self.reader.read(1 << 20)
            if not data:
                return None
            self.decoder.feed(data)
            self.frames += self.decoder.frames()
        return self.frames.pop(0)

    async def answer(self, *kinds):
        """The next control answer, parsed; others than those named are an error."""
        frame = await self.frame()
        assert frame is not None, "the connection has ended"
        assert frame.header.kind == Kind.CONTROL, frame.header
        if frame.header.command in (Command.FETCH_DATA, Command.DATA):
            parsed = Data(frame)
        else:
            parsed = parse_answer(frame.header.command, frame.payload)
        assert not kinds or isinstance(parsed, kinds), parsed
        return parsed

    async def acks(self, count):
        """Entries of ACK frames, until there are as many batches."""
        rows, through = [], 0
        while sum(row["run"] for row in rows) < count:
            frame = await self.frame()
            assert frame is not None, "the connection has ended"
            assert frame.header.kind == Kind.ACK, frame
            rows += [dict(zip(row.dtype.names, row.item(), strict=True)) for row in ack_rows(frame.payload)]
            through = frame.header.id
        self.through = through
        return rows

    async def hello(self, client_id=7, *, flags=HelloFlags.OPEN, **named):
        self.ask(Hello(flags=flags, client_id=ClientId(client_id), **named))
        self.welcome = await self.answer()
        self.seq = getattr(self.welcome, "next_seq", 1) - 1
        return self.welcome

    def batch(self, topic_id, *values, seq=None, codec=Codec.NONE, **changed):
        """The next batch of the session."""
        if seq is None:
            self.seq += 1
            seq = self.seq
        block = b"".join(map(encode_raw, values))
        named = {
            "topic_id": TopicId(topic_id),
            "client_id": ClientId(self.welcome.client_id),
            "client_seq": ClientSeq(seq),
            "session_epoch": SessionEpoch(self.welcome.session_epoch),
            "record_count": len(values),
            "timestamp_ns": TimestampNs(0),
        }
        if codec is not Codec.NONE:
            named |= {"codec": codec, "raw_length": len(block)}
            block = compress(codec, block)
        return encode_batch(batch_header(block, **(named | changed)), block)

    async def publish(self, topic_id, *values, **named):
        self.send(self.batch(topic_id, *values, **named))
        (entry,) = await self.acks(1)
        return entry

    async def until_received(self):
        """Wait until the server, which is in this process, has received everything that was sent."""
        while self.writer.transport.get_write_buffer_size():
            await asyncio.sleep(0)
        with accepted_socket(self.writer.get_extra_info("sockname")) as accepted:
            while queued_size(accepted.fileno()):
                await asyncio.sleep(0)

    async def ended(self):
        assert await self.frame() is None
        self.writer.close()

    def close(self):
        self.writer.close()


class Data:
    """FETCH_DATA or DATA, parsed and verified."""

    def __init__(self, frame):
        self.header = frame.header
        self.prefix = parse_data_prefix(frame.payload)
        self.batches = [
            (header, bytes(block)) for header, block in iter_chunks(frame.payload, frame.header.record_count)
        ]


class World:
    """A server over a log, with one topic for each order."""

    def __init__(self, log, listener, address, context, publish_thread):
        self.log = log
        self.listener = listener
        self.address = address
        self.context = context
        self.publish_thread = publish_thread

    @property
    def attachments(self):
        """The connections that the publish thread owns."""
        return self.publish_thread.attachments

    async def connect(self):
        return Peer(*await asyncio.open_connection(*self.address, limit=64 << 20))

    async def peer(self, client_id=7, **named):
        made = await self.connect()
        await made.hello(client_id, **named)
        return made


@asynccontextmanager
async def world(
    path, settings=None, *, bounds=None, topics=("events",), store=SMALL, config=None, access=None, **topic_settings
):
    async with WatchedLog(path / "data", store, config) as log:
        publish_thread = WatchedThread(log)
        ingest = Ingest(log, asyncio.get_running_loop(), publish_thread=publish_thread)
        parts = (settings or ServerSettings(), access or Access())
        context = ServerContext(log, ingest, TopicCommands(log), *parts)
        for name in topics:
            if name not in await log.topics():
                await log.create_topic(name, **topic_settings)
        listener = Listener(
            {2: lambda connection: Lwp2Session(context, connection)}, bounds=bounds, publish_thread=publish_thread
        )
        address = await listener.listen("127.0.0.1", 0)
        try:
            yield World(log, listener, address, context, publish_thread)
        finally:
            listener.stop()
            for connection in list(listener.connections):
                connection.abort()
            while listener.connections:
                await asyncio.sleep(0)
            await context.queues.settle()
            await asyncio.to_thread(publish_thread.close)
