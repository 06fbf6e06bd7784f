"""A store whose records are appended, deleted and evicted, and a model that knows which must be live."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Seq, TimestampNs
from seawall.engine.commit.appends import Append
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.sequencer.frontier import Numbered
from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import Discard, TopicConfig
from seawall.topics.gaps import Gap
from seawall.topics.state import TopicState
from seawall.wire.format.batches import batch_header, block_of, encode_batch
from seawall.wire.format.codes import Codec, GapReason
from seawall.wire.format.compression import compress
from seawall.wire.format.envelope import Envelope
from seawall.wire.format.records import Record, decode_block, encode_block, encode_record

SETTINGS = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN * 4, ceiling_step=64, ballast_size=4096, checkpoint_size=1 << 62
)
NS_PER_MS = 1_000_000
TOPIC = "events"


def record_of(value: bytes, tag: bytes | None) -> Record:
    """An envelope where there is a tag, a plain record where there is none."""
    return Record(1, value) if tag is None else Envelope(data=value, tag=tag).to_record()


def append_batches(store: Store, *batches: bytearray) -> list[Numbered]:
    return store.append([Append.of_batch(batch) for batch in batches])


def batch_of(topic_id: int, records: Sequence[Record], *, codec: Codec = Codec.NONE) -> bytearray:
    plain = encode_block(records)
    block = plain if codec is Codec.NONE else compress(codec, plain)
    header = batch_header(
        block,
        topic_id=topic_id,
        client_id=ClientId(1 << 63),
        client_seq=ClientSeq(1),
        session_epoch=0,
        record_count=len(records),
        timestamp_ns=TimestampNs(0),
        codec=codec,
        raw_length=len(plain),
    )
    return bytearray(encode_batch(header, block))


def opened(disk: SimDisk, clock: SimClock, settings: StoreSettings = SETTINGS) -> Store:
    return open_store(Machine(disk, clock, random.Random(1).randbytes, pid=7), "/data", settings)


def live_seqs(topic: TopicState) -> list[int]:
    return [seq for first, last in topic.live_runs(Seq(1), topic.head_seq) for seq in range(first, last + 1)]


def read_live(store: Store, name: str = TOPIC) -> tuple[dict[int, Record], list[Gap]]:
    """The live records by their seq, and every gap that a reader gets."""
    records: dict[int, Record] = {}
    gaps: list[Gap] = []
    seq = Seq(1)
    while items := store.queries.read(name, seq, size_max=1 << 20):
        for item in items:
            if isinstance(item, StoredBatch):
                plain = block_of(item.header, item.block)
                decoded = decode_block(plain, item.header.record_count)
                records |= dict(enumerate(decoded, item.header.base_seq))
                seq = Seq(item.header.base_seq + item.header.record_count)
            else:
                gaps.append(item)
                seq = Seq(item.last_seq + 1)
    live = set(live_seqs(store.catalog.named(name)))
    return {seq: record for seq, record in records.items() if seq in live}, gaps


@dataclass(frozen=True)
class Held:
    """A live record of the model."""

    record: Record
    tag: bytes | None
    timestamp_ns: int

    @property
    def size(self) -> int:
        return len(encode_record(self.record))


class Model:
    """One topic: the records that must be live, and how the others were lost."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.live: dict[int, Held] = {}
        self.head = 0
        self.evict_floor = 1
        self.crashed: set[int] = set()

    def copy(self) -> Model:
        """A model that changes independently; what it holds is immutable."""
        copied = copy(self)
        copied.live, copied.crashed = dict(self.live), set(self.crashed)
        return copied

    @property
    def size(self) -> int:
        return sum(held.size for held in self.live.values())

    def fits(self, records: Sequence[Record]) -> bool:
        """True if a topic with discard=reject accepts these as well."""
        config, size = self.config, sum(len(encode_record(record)) for record in records)
        return not (
            (config.cap_records and len(self.live) + len(records) > config.cap_records)
            or (config.cap_bytes and self.size + size > config.cap_bytes)
        )

    def delete(self, before_seq: int | None, match: TagMatch | None) -> int:
        doomed = [
            seq
            for seq, held in self.live.items()
            if (before_seq is None or seq < before_seq) and (match is None or _matches(match, held.tag))
        ]
        for seq in doomed:
            del self.live[seq]
        return len(doomed)

    def expire(self, now_ns: int) -> None:
        if self.config.ttl_ms:
            since = now_ns - self.config.ttl_ms * NS_PER_MS
            self._evict([seq for seq, held in self.live.items() if held.timestamp_ns < since])

    def retain(self, now_ns: int) -> None:
        self.expire(now_ns)
        config = self.config
        if config.discard is Discard.REJECT:
            return
        while self.live and (
            (config.cap_records and len(self.live) > config.cap_records)
            or (config.cap_bytes and self.size > config.cap_bytes)
        ):
            self._evict([min(self.live)])

    def _evict(self, doomed: list[int]) -> None:
        for seq in doomed:
            del self.live[seq]
            self.evict_floor = max(self.evict_floor, seq + 1)


def _matches(match: TagMatch, tag: bytes | None) -> bool:
    text = match.text.encode()
    return tag is not None and (tag == text if match.kind is MatchKind.EQ else tag.startswith(text))


class Both:
    """A store and its model, changed together and compared."""

    def __init__(self, config: TopicConfig, seed: int = 1) -> None:
        self.disk = SimDisk(seed=seed)
        self.clock = SimClock(wall_ns=1_700_000_000_000_000_000)
        self.store = opened(self.disk, self.clock)
        self.store.create_topic(TOPIC, config)
        self.model = Model(config)
        self._written = 0

    @property
    def topic(self) -> TopicState:
        return self.store.catalog.named(TOPIC)

    def records(self, tags: Sequence[bytes | None], size: int) -> list[Record]:
        made = []
        for tag in tags:
            self._written += 1
            made.append(record_of(b"%06d" % self._written + bytes(size), tag))
        return made

    def append(self, groups: Sequence[Sequence[bytes | None]], size: int, codec: Codec = Codec.NONE) -> None:
        """Append batches of records with these tags; the topic must accept them."""
        made = [self.records(tags, size) for tags in groups]
        batches = [batch_of(self.topic.topic_id, records, codec=codec) for records in made]
        headers = append_batches(self.store, *batches)
        for header, records, tags in zip(headers, made, groups, strict=True):
            for seq, (record, tag) in enumerate(zip(records, tags, strict=True), header.base_seq):
                self.model.live[seq] = Held(record, tag, header.timestamp_ns)
                self.model.head = seq
        self.model.retain(self.clock.wall_ns())

    def configure(self, **patch: int | str) -> None:
        self.store.configure_topic(TOPIC, patch)
        self.model.config = self.topic.config

    def reopen(self, *, crash: bool) -> None:
        if crash:
            self.disk.crash(keep="none")
        else:
            self.store.close()
        self.store = opened(self.disk, self.clock)
        # A topic is recovered when it is first used.
        self.store.queries.topic_log(self.topic.topic_id)
        self.model.crashed |= {*range(self.model.head + 1, self.topic.next_seq)}
        self.model.head = self.topic.head_seq

    def check(self) -> None:
        topic, model = self.topic, self.model
        topic.check_invariants()
        assert live_seqs(topic) == sorted(model.live)
        assert (topic.head_seq, topic.evict_floor) == (model.head, model.evict_floor)
        assert topic.floor == min(model.live, default=model.head + 1)
        assert (topic.live_records, topic.live_bytes) == (len(model.live), model.size)
        records, gaps = read_live(self.store)
        assert records == {seq: held.record for seq, held in model.live.items()}
        lost = {seq: gap.reason for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1)}
        assert GapReason.CORRUPTION not in lost.values()
        assert {seq for seq in lost if seq >= model.evict_floor} == {
            seq for seq in model.crashed if seq >= model.evict_floor
        }
        assert not lost.keys() & model.live.keys()

    def sealed(self) -> list[tuple[int, int]]:
        """First and last seq of every sealed segment."""
        directory = "/data/topics/00000001"
        names = self.disk.list(directory) if self.disk.exists(directory) else []
        return [(int(name[:20]), int(name[21:41])) for name in names if name.endswith(".sealed")]


def small_segments(**settings: int | str) -> TopicConfig:
    return replace(TopicConfig.from_json(dict(settings)), segment_max_records=7)
