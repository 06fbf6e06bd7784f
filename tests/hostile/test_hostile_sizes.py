"""Boundary sizes through every interface: one below each bound, the bound, and one above it.

Input within the bound is accepted and read back unchanged. Input above it is refused by a typed error that changes
nothing, and the same handle still works. `UNREACHED` says of every other `*_MAX` of `limits.py` why input from outside
does not reach it, or where else it is tested.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hostile_node import HostileNode
from size_entries import (
    LogEntry,
    Lwp1Entry,
    Lwp2Entry,
    RefusedError,
    embedded_entry,
    embedded_loop_entry,
    loop_entry,
    run_pub,
    threads_entry,
    unbounded,
    value_of,
)

from seawall import limits
from seawall.api.publishable import Message
from seawall.core.transactions import StagedPart, StagedRange
from seawall.core.types import TopicId
from seawall.engine.api.view import open_view
from seawall.errors import CallerError
from seawall.spark.given_options import ServerOptions
from seawall.spark.staging import commit_parts, stage_rows
from seawall.spark.write_options import WriteOptions
from seawall.wire.format.codes import Codec, Command, ReadBy
from seawall.wire.format.compression import compress
from seawall.wire.format.decoder import Frame
from seawall.wire.format.records import Record, RecordType, encode_record
from seawall.wire.lwp1.replies import parse_topic_reply
from seawall.wire.lwp2.frames import ControlPayload
from seawall.wire.lwp2.keyed import PublishKeyed, parse_published_keyed
from seawall.wire.lwp2.reading import Fetch, parse_data_prefix
from seawall.wire.lwp2.session import Welcome
from seawall.wire.lwp2.subscriptions import Subscribe
from seawall.wire.lwp2.topics import RecordsDelete, TopicCreate, parse_records_deleted
from seawall.wire.lwp2.transactions import TransactionState, parse_transaction_status

Work = Callable[[LogEntry, str, int], None]

#: What an envelope with a key of one byte takes beside its data: flags, length of the key, the key.
ENVELOPE_EXTRA = 2 + 4 + 1
#: What a request for keyed records has beside key and block.
KEYED_EXTRA = 16


@dataclass(frozen=True)
class Row:
    """A bound, and a call that reaches it. `bound` may differ by interface."""

    limit: str
    what: str
    work: Work
    bound: Callable[[LogEntry], int] | None = None
    #: One above the bound is accepted too, as more than one batch.
    splits: bool = False
    is_slow: bool = False
    only_remote: bool = False
    only_threads: bool = False

    def bound_for(self, entry: LogEntry) -> int:
        return int(getattr(limits, self.limit)) if self.bound is None else self.bound(entry)

    def __str__(self) -> str:
        return f"{self.limit}-{self.what}".replace(" ", "-")


# --- calls -------------------------------------------------------------------------------------------------------


def read_back(entry: LogEntry, topic: str, before: int, *values: bytes) -> None:
    found = [record.value for record in entry.records(topic, before)]
    # Do not print millions of bytes.
    assert [len(value) for value in found] == [len(value) for value in values]
    assert all(one == other for one, other in zip(found, values, strict=True)), "the values differ"


def by_call(make: Callable[[bytes], Any], *, around: int = 0) -> Work:
    """Publish the result of `make`; `around` is the size that it adds to the value."""

    def work(entry: LogEntry, topic: str, size: int) -> None:
        value, before = value_of(size - around), entry.next_seq(topic)
        entry.log.publish(topic, make(value))
        read_back(entry, topic, before, value)

    return work


def json_value(entry: LogEntry, topic: str, size: int) -> None:
    text, before = "x" * (size - len('{"v":""}')), entry.next_seq(topic)
    entry.log.publish(topic, {"v": text})
    read_back(entry, topic, before, json.dumps({"v": text}, separators=(",", ":")).encode())


def in_a_list(count: int) -> Work:
    def work(entry: LogEntry, topic: str, size: int) -> None:
        values, before = [b"a"] * count + [value_of(size)], entry.next_seq(topic)
        entry.log.publish(topic, values)
        read_back(entry, topic, before, *values)

    return work


def by_publisher(**options: Any) -> Work:
    def work(entry: LogEntry, topic: str, size: int) -> None:
        value, before = value_of(size), entry.next_seq(topic)
        entry.publish_all(topic, value, **options)
        read_back(entry, topic, before, value)

    return work


def keyed_value(entry: LogEntry, topic: str, size: int) -> None:
    value, before = value_of(size), entry.next_seq(topic)
    entry.log.publish(topic, value, idempotency_key=f"{topic}-{size}")
    read_back(entry, topic, before, value)


def keyed_bound(entry: LogEntry) -> int:
    """Over the network key and block share one request."""
    key = len(f"t-000-{limits.RECORD_VALUE_SIZE_MAX}")
    overhead = KEYED_EXTRA + key + limits.RECORD_HEADER_SIZE
    return limits.PAYLOAD_SIZE_MIN - overhead if entry.is_remote else limits.RECORD_VALUE_SIZE_MAX


def staged_value(entry: LogEntry, topic: str, size: int) -> None:
    value, before = value_of(size), entry.next_seq(topic)
    (staged,) = entry.stage(value)
    entry.log.commit_staged(f"{topic}-{size}", 1, [StagedPart(topic, staged)])
    read_back(entry, topic, before, value)


def message_key(entry: LogEntry, topic: str, size: int) -> None:
    key, before = value_of(size - 6), entry.next_seq(topic)
    entry.log.publish(topic, Message(b"", key=key))
    (record,) = entry.records(topic, before)
    assert record.key == key


def headers(entry: LogEntry, topic: str, size: int) -> None:
    pairs, before = [(f"h{index}", b"v") for index in range(size)], entry.next_seq(topic)
    entry.log.publish(topic, Message(b"v", headers=pairs))
    (record,) = entry.records(topic, before)
    assert record.headers == tuple((name.encode(), value) for name, value in pairs)


def header_name(entry: LogEntry, topic: str, size: int) -> None:
    before = entry.next_seq(topic)
    entry.log.publish(topic, Message(b"v", headers=[("n" * size, b"v")]))
    (record,) = entry.records(topic, before)
    assert record.headers == ((b"n" * size, b"v"),)


def timestamp(entry: LogEntry, topic: str, size: int) -> None:
    before = entry.next_seq(topic)
    entry.log.publish(topic, Message(b"v", timestamp_ns=size))
    (record,) = entry.records(topic, before)
    assert record.client_timestamp_ns == size


def empty_records(entry: LogEntry, topic: str, size: int) -> None:
    before = entry.next_seq(topic)
    assert entry.log.publish(topic, [b""] * size).record_count == size
    assert entry.next_seq(topic) == before + size


def keyed_records(entry: LogEntry, topic: str, size: int) -> None:
    entry.log.publish(topic, [b""] * size, idempotency_key=f"{topic}-{size}")


def block_of_values(entry: LogEntry, topic: str, size: int) -> None:
    half = value_of(size // 2 - limits.RECORD_HEADER_SIZE)
    rest = value_of(size - size // 2 - limits.RECORD_HEADER_SIZE)
    before = entry.next_seq(topic)
    entry.log.publish(topic, [half, rest])
    read_back(entry, topic, before, half, rest)


def keyed_block(entry: LogEntry, topic: str, size: int) -> None:
    half = value_of(size // 2 - limits.RECORD_HEADER_SIZE)
    rest = value_of(size - size // 2 - limits.RECORD_HEADER_SIZE)
    entry.log.publish(topic, [half, rest], idempotency_key=f"{topic}-{size}")


def publisher_batch_size(entry: LogEntry, topic: str, size: int) -> None:
    before = entry.next_seq(topic)
    entry.publish_all(topic, b"value", batch_size=size)
    read_back(entry, topic, before, b"value")


def topic_name(entry: LogEntry, topic: str, size: int) -> None:
    name = topic.ljust(size, "n")
    entry.create(name)
    assert entry.next_seq(name) == 1
    entry.drop(name)


def dead_letter(entry: LogEntry, topic: str, size: int) -> None:
    name = topic.ljust(size, "n")
    entry.log.configure_topic(topic, dead_letter=name)
    entry.log.configure_topic(topic, dead_letter=None)


def tag(entry: LogEntry, topic: str, size: int) -> None:
    text, before = "t" * size, entry.next_seq(topic)
    if size <= limits.TAG_SIZE_MAX:
        entry.log.publish(topic, Message(b"tagged", tag=text))
        read_back(entry, topic, before, b"tagged")
    assert entry.log.delete(topic, tag=text) == 1
    assert entry.records(topic, before) == []


def tag_prefix(entry: LogEntry, topic: str, size: int) -> None:
    assert entry.log.delete(topic, tag_prefix="p" * size) == 0


def cursor_owner(entry: LogEntry, topic: str, size: int) -> None:
    owner = topic.ljust(size, "o")
    entry.log.commit(owner, topic, 2)
    assert entry.log.committed(owner, topic) == 2


def key_size(entry: LogEntry, topic: str, size: int) -> None:
    key, before = value_of(size), entry.next_seq(topic)
    first = entry.log.publish(topic, b"value", idempotency_key=key)
    again = entry.log.publish(topic, b"value", idempotency_key=key)
    assert (first.first_seq, again.first_seq, again.is_duplicate) == (before, before, True)
    read_back(entry, topic, before, b"value")


def transaction_owner(entry: LogEntry, topic: str, size: int) -> None:
    owner, before = topic.ljust(size, "o"), entry.next_seq(topic)
    (staged,) = entry.stage(b"value")
    entry.log.commit_staged(owner, 1, [StagedPart(topic, staged)])
    assert entry.log.transaction_state(owner).epoch == 1
    read_back(entry, topic, before, b"value")


def transaction_cursors(entry: LogEntry, topic: str, size: int) -> None:
    offsets = [(f"{topic}-{size}-{index}", topic, 2) for index in range(size)]
    (staged,) = entry.stage(b"value")
    entry.log.commit_staged(f"{topic}-{size}", 1, [StagedPart(topic, staged)], offsets=offsets)


def transaction_topics(entry: LogEntry, topic: str, size: int) -> None:
    names = [f"{topic}-{index}" for index in range(size)]
    known = set(entry.log.topics())
    for name in names:
        if name not in known:
            entry.create(name)
    staged = entry.stage(*[b"value"] * size)
    before = entry.next_seq(names[0])
    parts = [StagedPart(name, each) for name, each in zip(names, staged, strict=True)]
    entry.log.commit_staged(f"{topic}-{size}", 1, parts)
    assert {entry.next_seq(name) for name in (names[0], names[-1])} <= {before + 1, 2}


def transaction_batches(entry: LogEntry, topic: str, size: int) -> None:
    before = entry.next_seq(topic)
    staged = entry.stage(*[b"value"] * size)
    # Ranges take place in the log beside batches: one for all of these.
    joined = StagedRange(staged[0].first_seq, staged[-1].last_seq)
    entry.log.commit_staged(f"{topic}-{size}", 1, [StagedPart(topic, joined)])
    assert entry.next_seq(topic) == before + size


def worker_name(entry: LogEntry, topic: str, size: int) -> None:
    queue = queue_of(entry, topic, node="w" * size)
    queue.push(b"job")
    (job,) = queue.claim()
    assert queue.ack([job]).changed == 1


def jobs_of_an_ack(entry: LogEntry, topic: str, size: int) -> None:
    queue = queue_of(entry, topic)
    queue.push([b"job"] * size)
    jobs = queue.claim(size)
    if len(jobs) < size:
        jobs = [*jobs, *queue.claim(size)]
    assert queue.ack(jobs).changed == size


def queue_of(entry: LogEntry, topic: str, **options: Any) -> Any:
    """A queue beside a topic, created by the first call."""
    name = f"{topic}-jobs"
    if name not in entry.log.topics():
        entry.log.create_topic(name, type="queue", durability="disk")
    return entry.log.queue(name, **options)


def watched_names(entry: LogEntry, topic: str, size: int) -> None:
    watch = entry.log.watch([topic, *(f"none-{index}*" for index in range(size - 1))])
    entry.log.publish(topic, b"value")
    assert {item.topic for item in watch.poll(30.0)} == {topic}
    watch.close()


def client_name(entry: LogEntry, _topic: str, size: int) -> None:
    entry.open_log(name="n" * size).close()


def token(entry: LogEntry, _topic: str, size: int) -> None:
    entry.open_log(token="t" * size).close()


def table_of(value: bytes) -> pa.Table:
    return pa.table({"value": pa.array([value], pa.large_binary())})


def table_with_key(value: bytes) -> pa.Table:
    return table_of(value).append_column("key", pa.array([b"k"], pa.binary()))


VALUE, EXTENDED = "RECORD_VALUE_SIZE_MAX", "EXTENDED_VALUE_SIZE_MAX"
ROWS = [
    Row(VALUE, "bytes", by_call(lambda value: value)),
    Row(VALUE, "text", by_call(bytes.decode), is_slow=True),
    Row(VALUE, "json", json_value, is_slow=True),
    Row(VALUE, "in a short list", in_a_list(1), is_slow=True),
    Row(VALUE, "in a long list", in_a_list(20), is_slow=True),
    Row(VALUE, "table", by_call(table_of), is_slow=True),
    Row(VALUE, "by a publisher", by_publisher()),
    Row(VALUE, "compressed by lz4", by_publisher(compression="lz4"), only_remote=True, is_slow=True),
    Row(VALUE, "compressed by zstd", by_publisher(compression="zstd"), only_remote=True, is_slow=True),
    Row(VALUE, "under a key", keyed_value, keyed_bound, is_slow=True),
    Row(VALUE, "in a transaction", staged_value, is_slow=True),
    Row(EXTENDED, "message", by_call(lambda value: Message(value, key=b"k"), around=ENVELOPE_EXTRA)),
    Row(EXTENDED, "table with keys", by_call(table_with_key, around=ENVELOPE_EXTRA), is_slow=True),
    Row(EXTENDED, "key of a message", message_key, is_slow=True),
    Row("ENVELOPE_HEADERS_MAX", "headers", headers),
    Row("ENVELOPE_HEADERS_MAX", "name of a header", header_name, lambda _: 0xFFFF),
    Row("TIMESTAMP_NS_MAX", "time of a message", timestamp),
    Row("BATCH_RECORDS_MAX", "records of a call", empty_records, splits=True),
    Row("BATCH_RECORDS_MAX", "records under a key", keyed_records),
    Row("BLOCK_SIZE_MAX", "values of a call", block_of_values, splits=True, is_slow=True),
    Row("BLOCK_SIZE_MAX", "values under a key", keyed_block, lambda entry: keyed_bound(entry) + 5, is_slow=True),
    Row("BLOCK_SIZE_MAX", "batch size of a publisher", publisher_batch_size, only_remote=True),
    Row("TOPIC_NAME_SIZE_MAX", "name of a topic", topic_name),
    Row("TOPIC_NAME_SIZE_MAX", "name in a setting", dead_letter),
    Row("TAG_SIZE_MAX", "tag to delete by", tag),
    Row("TAG_SIZE_MAX", "beginning of tags to delete by", tag_prefix),
    Row("CURSOR_OWNER_SIZE_MAX", "owner of a cursor", cursor_owner),
    Row("IDEMPOTENCY_KEY_SIZE_MAX", "key", key_size),
    Row("TRANSACTION_OWNER_SIZE_MAX", "owner", transaction_owner),
    Row("TRANSACTION_CURSORS_MAX", "cursors", transaction_cursors),
    Row("TRANSACTION_TOPICS_MAX", "topics", transaction_topics, is_slow=True),
    Row("TRANSACTION_BATCHES_MAX", "batches", transaction_batches, is_slow=True, only_threads=True),
    Row("JOB_NODE_SIZE_MAX", "name of a worker", worker_name),
    Row("JOBS_MAX", "jobs of an ack", jobs_of_an_ack),
    Row("WATCH_NAMES_MAX", "names of a watch", watched_names),
    Row("CLIENT_NAME_SIZE_MAX", "name of a client", client_name, only_remote=True),
    Row("TOKEN_SIZE_MAX", "token", token, only_remote=True),
]


# --- the suite ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileNode]:
    """One node for all rows: effects of a refusal would show in the next row."""
    started = HostileNode(tmp_path_factory.mktemp("sizes") / "data")
    started.start()
    yield started
    assert started.is_running
    started.kill()
    assert "Traceback" not in started.stderr


@pytest.fixture(scope="module")
def entries(node: HostileNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LogEntry]]:
    data: Path = tmp_path_factory.mktemp("sizes-embedded")
    with ExitStack() as stack:
        opened = (
            embedded_entry(data / "threads"),
            embedded_loop_entry(data / "loop"),
            threads_entry(node.url),
            loop_entry(node.url),
        )
        yield {entry.name: entry for entry in map(stack.enter_context, opened)}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Names of one length, since some sizes count them in."""
    number = request.session.items.index(request.node) % 1_000
    return f"t-{number:03}"


def cases() -> Iterator[Any]:
    for row in ROWS:
        for name in ("open", "open_async", "connect", "connect_async"):
            is_left_out = (row.only_remote and name.startswith("open")) or (row.only_threads and "async" in name)
            if not is_left_out:
                marks = [pytest.mark.slow] if row.is_slow else []
                yield pytest.param(row, name, id=f"{row}-{name}", marks=marks)


@pytest.mark.parametrize(("row", "name"), list(cases()))
def test_a_call_at_its_bound(entries: dict[str, LogEntry], topic: str, row: Row, name: str) -> None:
    entry = entries[name]
    entry.create(topic)
    bound = row.bound_for(entry)
    row.work(entry, topic, bound - 1)
    row.work(entry, topic, bound)
    if row.splits:
        row.work(entry, topic, bound + 1)
    else:
        if row.limit == "TRANSACTION_TOPICS_MAX":
            # The topic that is one too many is there before.
            entry.create(f"{topic}-{bound}")
        before = entry.state(topic)
        with pytest.raises(CallerError):
            row.work(entry, topic, bound + 1)
        assert entry.state(topic) == before
    entry.works(topic)
    for each in entry.log.topics():
        entry.drop(each)


# --- frames of version 1 -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lwp1(node: HostileNode) -> Iterator[Lwp1Entry]:
    with Lwp1Entry(node.address) as entry:
        yield entry


@pytest.fixture(scope="module")
def lwp2(node: HostileNode) -> Iterator[Lwp2Entry]:
    with Lwp2Entry(node.address) as entry:
        yield entry


def as_record(size: int) -> bytes:
    """A payload, or a block, that is one record: also one that is too large to be encoded."""
    value = value_of(size - limits.RECORD_HEADER_SIZE)
    return struct.pack("<BI", RecordType.RAW, len(value)) + value


@pytest.mark.parametrize("ingest", [Lwp1Entry.ingest, Lwp1Entry.ingest_lz4], ids=["plain", "lz4"])
@pytest.mark.parametrize("make", [value_of, as_record], ids=["opaque", "record"])
def test_a_payload_of_version_1_at_its_bound(
    lwp1: Lwp1Entry,
    lwp2: Lwp2Entry,
    topic: str,
    ingest: Callable[[Lwp1Entry, int, bytes], None],
    make: Callable[[int], bytes],
) -> None:
    """V1_PAYLOAD_SIZE_MAX, and V1_FETCH_DATA_SIZE_MAX, at which answers are cut."""
    topic_id = lwp1.create(topic)
    for size in (limits.V1_FETCH_DATA_SIZE_MAX + 1, limits.V1_PAYLOAD_SIZE_MAX - 1, limits.V1_PAYLOAD_SIZE_MAX):
        start, seq = lwp1.end(topic_id), lwp2.bounds(TopicId(topic_id))[1]
        ingest(lwp1, topic_id, make(size))
        assert lwp1.end(topic_id) == start + size
        assert lwp1.stream(topic_id, start, size) == make(size)
        assert lwp2.block(TopicId(topic_id), seq) == make(size)
    before = lwp2.bounds(TopicId(topic_id))
    with pytest.raises(RefusedError):
        ingest(lwp1, topic_id, make(limits.V1_PAYLOAD_SIZE_MAX + 1))
    if ingest is Lwp1Entry.ingest:
        # A frame of such a length is not read: its connection is closed.
        lwp1.close()
        lwp1.connect()
    assert lwp2.bounds(TopicId(topic_id)) == before
    lwp1.ingest(topic_id, as_record(10))
    assert lwp2.bounds(TopicId(topic_id)) == (before[0], before[1] + 1)


@pytest.mark.parametrize("name", ["open", "connect", "connect_async"])
def test_every_interface_reads_the_largest_payload_of_version_1(
    node: HostileNode, entries: dict[str, LogEntry], lwp1: Lwp1Entry, topic: str, name: str
) -> None:
    """It is returned as one record with its own header, for which no block has space."""
    payload = value_of(limits.V1_PAYLOAD_SIZE_MAX)
    lwp1.ingest(lwp1.create(topic), payload)
    if name == "open":
        with open_view(node.data) as log:
            (batch,) = log.read(topic)
            (record,) = batch
            assert record.value == payload
    else:
        read_back(entries[name], topic, 1, payload)
        assert entries[name].log.read_arrow(topic)["value"].to_pylist() == [payload]


def test_the_largest_records_of_version_2_are_read_by_version_1(
    entries: dict[str, LogEntry], lwp1: Lwp1Entry, topic: str
) -> None:
    entry = entries["connect"]
    entry.create(topic)
    value = value_of(limits.RECORD_VALUE_SIZE_MAX)
    data = value_of(limits.EXTENDED_VALUE_SIZE_MAX - ENVELOPE_EXTRA)
    entry.log.publish(topic, value)
    entry.log.publish(topic, Message(data, key=b"k"))
    stream = lwp1.stream(int(entry.log.describe(topic).topic_id), 0, 2 * limits.BLOCK_SIZE_MAX)
    assert stream[: limits.BLOCK_SIZE_MAX] == encode_record(Record(RecordType.RAW, value))
    shown = stream[limits.BLOCK_SIZE_MAX :]
    assert shown[:7] == struct.pack("<BIH", RecordType.EXTENDED_FOR_V1, limits.EXTENDED_VALUE_SIZE_MAX + 2, 1)
    assert shown.endswith(data)


@pytest.mark.parametrize(
    ("limit", "command", "make"),
    [
        ("TOPIC_NAME_SIZE_MAX", 0x01, lambda topic, size: topic.ljust(size, "n").encode()),
        ("TOKEN_SIZE_MAX", 0x08, lambda _topic, size: b"t" * size),
    ],
)
def test_a_command_of_version_1_at_its_bound(
    node: HostileNode, lwp2: Lwp2Entry, topic: str, limit: str, command: int, make: Callable[[str, int], bytes]
) -> None:
    bound = getattr(limits, limit)
    for size in (bound - 1, bound):
        with Lwp1Entry(node.address) as entry:
            entry.ask(command, make(topic, size))
    with Lwp1Entry(node.address) as entry:
        with pytest.raises(RefusedError):
            entry.ask(command, make(topic, bound + 1))
        assert entry.create(topic)
    with pytest.raises(RefusedError):
        lwp2.describe(topic.ljust(bound + 1, "n")[:1_000])


# --- frames of version 2 -----------------------------------------------------------------------------------------


def plain_block(size: int) -> tuple[bytes, int]:
    return as_record(size), 1


def block_of_many(count: int) -> tuple[bytes, int]:
    return encode_record(Record(RecordType.RAW, b"")) * count, count


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(("limit", "make"), [("BLOCK_SIZE_MAX", plain_block), ("BATCH_RECORDS_MAX", block_of_many)])
def test_a_batch_at_its_bound(
    lwp2: Lwp2Entry, topic: str, limit: str, make: Callable[[int], tuple[bytes, int]], codec: Codec
) -> None:
    topic_id, bound = lwp2.create(topic).topic_id, getattr(limits, limit)

    def send(size: int) -> bytes:
        block, count = make(size)
        with unbounded():
            sent = block if codec is Codec.NONE else compress(codec, block)
        lwp2.publish(topic_id, sent, count, codec=codec, raw_length=len(block))
        return block

    for size in (bound - 1, bound):
        seq = lwp2.bounds(topic_id)[1]
        assert send(size) == lwp2.block(topic_id, seq)
    before = lwp2.bounds(topic_id)
    with pytest.raises(RefusedError):
        send(bound + 1)
    # Whether the connection is closed depends on the violated rule; the session continues either way.
    lwp2.close()
    lwp2.connect()
    assert lwp2.bounds(topic_id) == before
    send(bound)
    assert lwp2.bounds(topic_id)[1] > before[1]


def test_payloads_of_version_2_at_their_bound(lwp2: Lwp2Entry, node: HostileNode, topic: str) -> None:
    """PAYLOAD_SIZE_MIN, which is what this server agrees on."""
    topic_id = lwp2.create(topic).topic_id
    space = limits.PAYLOAD_SIZE_MIN - KEYED_EXTRA
    for size in (space - 1, space):
        block = as_record(size - 1)
        seq = lwp2.bounds(topic_id)[1]
        answer = parse_published_keyed(lwp2.ask(PublishKeyed(topic_id, 1, b"%d" % (size % 10), block)).payload)
        assert answer.first_seq == seq
        assert lwp2.block(topic_id, seq) == block
    before = lwp2.bounds(topic_id)
    with pytest.raises(RefusedError, match="0x03"):
        lwp2.ask(PublishKeyed(topic_id, 1, b"k", as_record(space)))
    lwp2.close()
    lwp2.connect()
    assert lwp2.bounds(topic_id) == before


@pytest.mark.parametrize(
    ("limit", "name", "make"),
    [
        ("CLIENT_NAME_SIZE_MAX", "name", "n".__mul__),
        ("TOKEN_SIZE_MAX", "token", "t".__mul__),
        ("PAYLOAD_SIZE_MAX", "max_payload", int),
    ],
)
def test_a_hello_at_its_bound(node: HostileNode, limit: str, name: str, make: Callable[[int], Any]) -> None:
    bound = getattr(limits, limit)

    class Other(Lwp2Entry):
        client_id = 78
        size = bound

        def hello(self, **_: Any) -> Welcome:
            return super().hello(**{name: make(self.size)})

    for size in (bound - 1, bound):
        Other.size = size
        with Other(node.address) as entry:
            assert entry.welcome.client_id == 78
    Other.size = bound + 1
    with pytest.raises(RefusedError):
        Other(node.address).close()


#: Requests of version 2 with a text of some size, and the parser of the answer that shows that it was executed.
REQUESTS: dict[str, tuple[str, Callable[[TopicId, str, int], ControlPayload], Callable[[Frame], object]]] = {
    "name of a topic": (
        "TOPIC_NAME_SIZE_MAX",
        lambda _id, topic, size: TopicCreate(topic.ljust(size, "n"), {}),
        lambda frame: parse_topic_reply(frame.payload),
    ),
    "settings of a topic": (
        "TOPIC_SETTINGS_SIZE_MAX",
        lambda _id, topic, size: TopicCreate(f"{topic}-{size}", _settings(size)),
        lambda frame: parse_topic_reply(frame.payload),
    ),
    "tag": (
        "TAG_SIZE_MAX",
        lambda topic_id, _topic, size: RecordsDelete(topic_id, None, "t" * size, None),
        lambda frame: parse_records_deleted(frame.payload),
    ),
    "idempotency key": (
        "IDEMPOTENCY_KEY_SIZE_MAX",
        lambda topic_id, _topic, size: PublishKeyed(topic_id, 1, b"k" * size, as_record(10)),
        lambda frame: parse_published_keyed(frame.payload),
    ),
    "owner of a transaction": (
        "TRANSACTION_OWNER_SIZE_MAX",
        lambda _id, _topic, size: TransactionState("o" * size),
        lambda frame: parse_transaction_status(frame.payload),
    ),
    "wait of a fetch": (
        "FETCH_WAIT_MS_MAX",
        lambda topic_id, _topic, size: Fetch(topic_id, ReadBy.SEQ, 1, 1, 1, wait_ms=size),
        lambda frame: parse_data_prefix(frame.payload),
    ),
}


def _settings(size: int) -> dict[str, Any]:
    """Settings that take so many bytes of JSON; one of them does not exist."""
    return {"ttl_ms": 1, "order": 5, "_": "x" * (size - len('{"ttl_ms":1,"order":5,"_":""}'))}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_at_its_bound(lwp2: Lwp2Entry, topic: str, what: str) -> None:
    limit, make, parse = REQUESTS[what]
    topic_id, bound = lwp2.create(topic).topic_id, getattr(limits, limit)
    lwp2.publish(topic_id, *plain_block(10))
    for size in (bound - 1, bound):
        if what == "settings of a topic":
            # Within the bound it is validated: there is no such setting.
            with pytest.raises(RefusedError, match="_"):
                lwp2.ask(make(topic_id, topic, size))
        else:
            assert parse(lwp2.ask(make(topic_id, topic, size)))
    before = lwp2.bounds(topic_id)
    with pytest.raises(RefusedError, match=r"at most|too long|bytes"):
        lwp2.ask(make(topic_id, topic, bound + 1))
    assert lwp2.bounds(topic_id) == before
    lwp2.publish(topic_id, *plain_block(10))


@pytest.mark.parametrize("limit", ["FETCH_SIZE_MAX", "FETCH_READ_SIZE_MAX", "FETCH_SMALL_SIZE_MAX", "PAYLOAD_SIZE_MAX"])
def test_a_fetch_for_any_number_of_bytes_is_answered(lwp2: Lwp2Entry, topic: str, limit: str) -> None:
    """The server limits the requested bytes to one answer."""
    topic_id, bound = lwp2.create(topic).topic_id, getattr(limits, limit)
    for _ in range(2):
        lwp2.publish(topic_id, *plain_block(limits.BLOCK_SIZE_MAX))
    for size in (bound - 1, bound, bound + 1, 0xFFFF_FFFF):
        frame = lwp2.ask(Fetch(topic_id, ReadBy.SEQ, 1, size, 100))
        assert parse_data_prefix(frame.payload).chunk_count == 1


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        ("SUBSCRIPTIONS_MAX", lambda topic_id: Subscribe(topic_id, ReadBy.SEQ, 1, 1 << 20, 100, 1 << 20)),
        ("REQUESTS_MAX", lambda topic_id: Fetch(topic_id, ReadBy.SEQ, 1, 1, 1, min_bytes=1, wait_ms=30_000)),
    ],
)
def test_requests_of_a_connection_at_their_bound(
    node: HostileNode, lwp2: Lwp2Entry, topic: str, limit: str, make: Callable[[TopicId], ControlPayload]
) -> None:
    topic_id, bound = lwp2.create(topic).topic_id, getattr(limits, limit)

    class Other(Lwp2Entry):
        client_id = 79

    with Other(node.address) as entry:
        first = [entry.send_request(make(topic_id)) for _ in range(bound)]
        last = entry.send_request(make(topic_id))
        with pytest.raises(RefusedError, match=f"{bound}"):
            entry.frames_until(last)
        # The others continue: a published batch answers each.
        lwp2.publish(topic_id, *plain_block(10))
        wanted = set(first)
        while wanted:
            frame = entry.frame()
            if frame.header.command in (Command.FETCH_DATA, Command.DATA):
                wanted.discard(frame.header.id)
        if limit == "REQUESTS_MAX":
            assert entry.bounds(topic_id) == (1, 2)


# --- the command line --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--format", "raw"), ("--format", "lines")], ids=["raw", "lines"])
def test_pub_at_the_bound_of_a_value(
    entries: dict[str, LogEntry], node: HostileNode, topic: str, arguments: Any
) -> None:
    entry, bound = entries["connect"], limits.RECORD_VALUE_SIZE_MAX
    entry.create(topic)
    for size in (bound - 1, bound):
        before = entry.next_seq(topic)
        done = run_pub(node.url, topic, value_of(size), *arguments)
        assert done.returncode == 0, done.stderr
        read_back(entry, topic, before, value_of(size))
    before = entry.state(topic)
    done = run_pub(node.url, topic, value_of(bound + 1), *arguments)
    assert done.returncode != 0
    assert b"split it" in done.stderr
    assert b"Traceback" not in done.stderr
    assert entry.state(topic) == before


# --- the sink of Spark -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "key"), [(VALUE, None), (EXTENDED, b"k")])
def test_rows_of_the_spark_sink_at_their_bound(
    entries: dict[str, LogEntry], node: HostileNode, topic: str, limit: str, key: bytes | None
) -> None:
    """The work of a task of the sink, in this process."""
    entry, bound = entries["connect"], getattr(limits, limit)
    entry.create(topic)
    options = WriteOptions(ServerOptions(node.url), topic)

    def write(size: int) -> bytes:
        value = value_of(size - (0 if key is None else ENVELOPE_EXTRA))
        columns = {"value": pa.array([value], pa.binary()), "key": pa.array([key], pa.binary())}
        parts = stage_rows([pa.record_batch(columns)], list(columns), options, 0)
        commit_parts(options.server, (f"{topic}-{size}", 1), parts)
        return value

    for size in (bound - 1, bound):
        before = entry.next_seq(topic)
        read_back(entry, topic, before, write(size))
    state = entry.state(topic)
    with pytest.raises(CallerError):
        write(bound + 1)
    assert entry.state(topic) == state
    entry.works(topic)


# --- every bound has its row -------------------------------------------------------------------------------------

#: The bounds of the other tests of this file, beside those of `ROWS`.
BY_FRAMES = {
    *("V1_PAYLOAD_SIZE_MAX", "V1_FETCH_DATA_SIZE_MAX", "PAYLOAD_SIZE_MAX", "TOPIC_SETTINGS_SIZE_MAX"),
    *("FETCH_WAIT_MS_MAX", "FETCH_SIZE_MAX", "FETCH_READ_SIZE_MAX", "FETCH_SMALL_SIZE_MAX"),
    *("SUBSCRIPTIONS_MAX", "REQUESTS_MAX"),
}

#: Why no size of a single request or call reaches a bound.
UNREACHED = {
    "a codec's own rule: tests/wire/test_compression.py": {"ZSTD_WINDOW_SIZE_MAX"},
    "texts and lists of the server, which it limits": {"ERROR_TEXT_SIZE_MAX", "FILES_RUNS_MAX", "FILES_SEGMENTS_MAX"},
    "batches that the server gathers or waits for, which it limits": {
        *("FETCH_CHUNKS_MAX", "PUSH_LINGER_US_MAX", "DELETE_RANGES_MAX", "COMPOUND_PARTS_MAX"),
        *("BROKER_ANSWERS_MAX", "READ_GAP_SIZE_MAX", "READ_BUFFER_SIZE_MAX", "IOVEC_COUNT_MAX"),
    },
    "documents of the store itself: the longest settings take a small part": {
        *("CONTROL_DOCUMENT_SIZE_MAX", "TOPIC_CREATE_SIZE_MAX"),
    },
    "a full server stops reading: tests/server": {"V1_UNACKED_FRAMES_MAX", "V1_UNACKED_SIZE_MAX", "BROKER_UPLOADS_MAX"},
    "batches without space stay in their socket: tests/kernels/test_kernel_publish_io.py": {"RECEIVED_BATCHES_MAX"},
    "many requests, not a large one: tests/topics, tests/sequencer and tests/server": {
        *("TOPICS_MAX", "CURSORS_MAX", "IDEMPOTENCY_KEYS_MAX", "TRANSACTION_OWNERS_MAX", "CLIENTS_MAX"),
        *("WORKER_CLIENTS_MAX", "HELD_BATCHES_MAX", "GOI_RANGES_WAITING_MAX", "CONNECTIONS_MAX", "HANDSHAKES_MAX"),
    },
    "frames before a token is shown: tests/server/test_admission.py": {"UNADMITTED_PAYLOAD_SIZE_MAX"},
    "numbers of sessions: tests/engine/test_session_expiry.py, tests/engine/test_sessions.py": {
        *("SESSION_START_SEQ_MAX", "SESSION_ABANDONED_MAX", "SESSIONS_RETIRED_MAX", "SESSIONS_LISTED_MAX"),
    },
    "times that are cut to the bound: tests/engine/test_queues.py, tests/server/test_queue_commands.py": {
        *("LEASE_MS_MAX", "NACK_DELAY_MS_MAX", "CLAIM_WAIT_MS_MAX"),
    },
    "answers that are cut to the bound: tests/engine/test_queues.py, tests/server/test_router_commands.py": {
        *("CLAIM_SIZE_MAX", "ROUTERS_LISTED_MAX"),
    },
    "many topics, watches, routers, copies or leases: tests/engine, tests/topics and tests/server": {
        *("WATCH_TOPICS_MAX", "WATCHES_MAX", "ROUTERS_MAX", "ROUTER_HOPS_MAX", "BOUND_LEASES_MAX"),
    },
    "lists of a request: tests/wire/test_lwp2_transactions.py": {"TRANSACTION_ACKS_MAX"},
    "tasks and their results, texts of which are cut: tests/tasks": {
        *("TASK_NAME_SIZE_MAX", "TASK_ERROR_SIZE_MAX", "TASK_TRACEBACK_SIZE_MAX", "TASK_RESULTS_KEPT_MAX"),
        "TASK_TIME_S_MAX",
    },
    "4 GiB take too long for a test": {"TRANSACTION_SIZE_MAX"},
    "memory and files that this process sizes": {
        *("SNAPSHOT_SIZE_MAX", "EPHEMERAL_BYTES_MAX", "SEGMENT_FILES_OPEN_MAX", "ACTIVE_SEGMENTS_MAX"),
        *("SEGMENT_RESERVE_SIZE_MAX", "ARROW_THREADS_MAX", "UNFIT_BLOCKS_MAX", "DESCRIPTORS_MAX"),
    },
    "settings of the operator: tests/test_config.py, tests/fabric": {
        *("DISK_RING_ENTRIES_MAX", "WAL_FILE_SIZE_MAX", "LANES_MAX", "LISTEN_ADDRESSES_MAX"),
        *("FABRIC_BROKERS_MAX", "FABRIC_REPLICAS_MAX", "WORKER_PROCESSES_MAX", "WORKER_RESTART_S_MAX"),
    },
    "clocks of other nodes": {"HLC_AHEAD_MS_MAX"},
}


def test_every_bound_is_tested_or_unreachable() -> None:
    bounds = {name for name in vars(limits) if name.endswith("_MAX")}
    tried = {row.limit for row in ROWS} | BY_FRAMES
    unreached = set().union(*UNREACHED.values())
    assert tried | unreached == bounds
    assert not tried & unreached
