"""Replay of logs that were written batch by batch: topics, segment positions, keys and sessions are restored."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Position, Seq, TopicId
from seawall.engine.store.replay import Replayed, replay, store_sections
from seawall.engine.store.sessions import Sessions
from seawall.sequencer.client_window import BatchResult
from seawall.storage.control.batches import Compound, SimpleControl, control_batch
from seawall.storage.control.codec import Reference, SegmentRoll
from seawall.storage.control.documents import TopicCreate
from seawall.storage.directory import DataDirectory, open_directory
from seawall.storage.preface import DATA_START
from seawall.storage.snapshots import Snapshot
from seawall.storage.wal.epoch_write import EpochReceipt
from seawall.storage.wal.files import WalEnd
from seawall.storage.wal.writer import WalWriter
from seawall.testing import SimDisk
from seawall.topics.config import TopicConfig
from seawall.topics.keys import KeyedAppend, digest_of, key_of
from seawall.topics.persistence import catalog_sections
from seawall.wire.format.batches import BatchHeader, BatchSource, batch_header, encode_batch, parse_batch_header, stamp
from seawall.wire.format.codes import BatchFlags
from seawall.wire.format.records import Record, encode_block

NO_SESSION = ClientId(1 << 63)
MS = 1_000_000


@dataclass
class Written:
    """A log, the batches written to it, and the sessions as their owner has them."""

    disk: SimDisk
    directory: DataDirectory
    wal: WalWriter
    sessions: Sessions = field(default_factory=lambda: Sessions(clients_max=100))
    next_seqs: dict[int, int] = field(default_factory=dict)
    headers: list[BatchHeader] = field(default_factory=list)

    @property
    def position(self) -> Position:
        return self.wal.next_position

    def log(self, *batches: bytes) -> EpochReceipt:
        receipt = self.wal.append_epoch(batches, self.position, len(batches), 5)
        self.wal.sync()
        return receipt

    def control(self, *controls: SimpleControl) -> EpochReceipt:
        control = controls[0] if len(controls) == 1 else Compound(controls)
        return self.log(control_batch(control, position=self.position, timestamp_ns=5, term=1))

    def create(self, topic_id: int) -> None:
        config = TopicConfig(idempotency_window_ms=10_000).to_json()
        self.control(TopicCreate(TopicId(topic_id), f"topic-{topic_id}", topic_id, config))

    def batch(
        self,
        topic_id: int,
        client: tuple[int, int] = (NO_SESSION, 0),
        *,
        ahead: int = 0,
        count: int = 2,
        epoch: int = 1,
        flags: int = 0,
        timestamp_ns: int = 5,
    ) -> bytes:
        """A stamped batch, `ahead` positions after the next one."""
        block = encode_block([Record(1, bytes(20))] * count)
        header = batch_header(
            block,
            topic_id=TopicId(topic_id),
            client_id=ClientId(client[0]),
            client_seq=ClientSeq(client[1]),
            session_epoch=epoch,
            record_count=count,
            timestamp_ns=0,
            flags=flags,
        )
        stored = bytearray(encode_batch(header, block))
        seq = self.next_seqs.setdefault(topic_id, 1)
        self.next_seqs[topic_id] = seq + count
        position = self.position + ahead
        stamp(stored, position=position, base_seq=seq, base_offset=50 * seq, timestamp_ns=timestamp_ns, term=1)
        self.headers.append(parse_batch_header(stored, source=BatchSource.STORED))
        return bytes(stored)

    def open_session(self, client_id: int) -> int:
        epoch, _, control = self.sessions.open(ClientId(client_id), ClientSeq(1))
        self.control(control)
        self.sessions.apply(control)
        return epoch

    def decide(self, header: BatchHeader) -> None:
        """Decide a batch, as the owner of the sessions does when it has ordered it."""
        result = BatchResult(header.block_crc, header.position, header.base_seq, header.timestamp_ns)
        self.sessions.window.decide(header.client_id, header.client_seq, result)

    def flip(self, at: int) -> None:
        file, file_at = self.wal.locate(at)
        self.disk.flip_bit(file.path, file_at, 3)

    def replay(self, snapshot: Snapshot | None = None) -> Replayed:
        return replay(self.disk, self.directory, snapshot)


def new_log() -> Written:
    disk = SimDisk(seed=2)
    directory = open_directory(disk, "/data", pid=1, now_ns=1, random_bytes=random.Random(1).randbytes)
    wal = WalWriter(
        disk,
        directory.wal,
        directory.directory_id,
        start=WalEnd(0, 0, 0, True, 0, 0),
        file_size=limits.WAL_FILE_SIZE_MIN,
        salt=itertools.count(5).__next__,
    )
    return Written(disk, directory, wal)


def snapshot_of(replayed: Replayed, wal_from_at: int) -> Snapshot:
    unsealed = [
        (topic_id, first_seq, segment.index.entries)
        for topic_id, segments in replayed.segments.items()
        for first_seq, segment in segments.items()
    ]
    sections = catalog_sections(replayed.catalog) | store_sections(unsealed, replayed.sessions)
    return Snapshot(replayed.catalog.next_position, wal_from_at, 1, sections)


# --- topics and positions --------------------------------------------------------------------------------------------


def test_every_batch_gets_its_segment_position_and_address() -> None:
    log = new_log()
    log.create(1)
    log.create(2)
    expected: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
    for round_ in range(200):
        topics = [1 + (round_ * 7 + index) % 2 for index in range(round_ % 5 + 1)]
        batches = [log.batch(topic_id, ahead=ahead) for ahead, topic_id in enumerate(topics)]
        at = log.log(*batches).batches_at
        for topic_id, data in zip(topics, batches, strict=True):
            expected[topic_id].append((at, len(data)))
            at += len(data)
    replayed = log.replay()
    for topic_id, batches in expected.items():
        [segment] = replayed.segments[TopicId(topic_id)].values()
        assert segment.unflushed.entries.tolist() == list(range(len(batches)))
        assert segment.unflushed.addresses.tolist() == [at for at, _ in batches]
        entries = segment.index.entries
        headers = [header for header in log.headers if header.topic_id == topic_id]
        assert entries["at"].tolist() == list(
            itertools.accumulate((size for _, size in batches[:-1]), initial=DATA_START)
        )
        assert entries["base_seq"].tolist() == [header.base_seq for header in headers]
        assert entries["position"].tolist() == [header.position for header in headers]
        assert entries["base_offset"].tolist() == [header.base_offset for header in headers]
        assert entries["count"].tolist() == [header.record_count for header in headers]
        assert entries["length"].tolist() == [size for _, size in batches]
        topic = replayed.catalog.find(TopicId(topic_id))
        assert topic is not None
        assert topic.next_seq == log.next_seqs[topic_id]
        topic.check_invariants()
    assert replayed.catalog.next_position == log.position


def test_a_roll_inside_an_epoch_splits_its_batches() -> None:
    log = new_log()
    log.create(1)
    first = log.batch(1)
    roll = control_batch(
        SegmentRoll(TopicId(1), Seq(3), Seq(0)), position=Position(log.position + 1), timestamp_ns=5, term=1
    )
    log.log(first, roll, log.batch(1, ahead=2), log.batch(1, ahead=3))
    segments = log.replay().segments[TopicId(1)]
    assert {first_seq: len(segment.index) for first_seq, segment in segments.items()} == {1: 1, 3: 2}
    assert [int(segment.index.entries["at"][0]) for segment in segments.values()] == [DATA_START, DATA_START]


def test_batches_of_unknown_topics_are_skipped() -> None:
    log = new_log()
    log.create(1)
    log.log(log.batch(1), log.batch(9, ahead=1), log.batch(1, ahead=2))
    replayed = log.replay()
    assert list(replayed.segments) == [1]
    assert len(replayed.segments[TopicId(1)][Seq(1)].index) == 2


@pytest.mark.parametrize("taken_after", range(6))
def test_replay_from_a_snapshot_gives_the_same(taken_after: int) -> None:
    """Replay starts before the snapshot, and does not apply twice what the snapshot contains."""
    log = new_log()
    log.create(1)
    epoch = log.open_session(7)
    taken: Snapshot | None = None
    for number in range(6):
        key = digest_of(f"key-{number}")
        log.log(log.batch(1, (7, number + 1), epoch=epoch), log.batch(1, key, ahead=1, epoch=0, flags=BatchFlags.KEYED))
        if number == taken_after:
            taken = snapshot_of(log.replay(), 0)
    assert taken is not None
    parsed = Snapshot.parse(taken.encode(log.directory.directory_id), directory_id=log.directory.directory_id)
    again, whole = log.replay(parsed), log.replay()
    assert catalog_sections(again.catalog) == catalog_sections(whole.catalog)
    assert again.sessions.rows() == whole.sessions.rows()
    for first_seq, segment in whole.segments[TopicId(1)].items():
        assert again.segments[TopicId(1)][first_seq].index.entries.tolist() == segment.index.entries.tolist()


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_survive_and_old_ones_expire() -> None:
    log = new_log()
    log.create(1)
    expected = []
    for number in range(4):
        digest, at_ms = digest_of(f"key-{number}"), 100_000 + 4_000 * number
        plain, keyed = log.batch(1), log.batch(1, digest, ahead=1, flags=BatchFlags.KEYED, timestamp_ns=at_ms * MS + 5)
        log.log(plain, keyed)
        expected.append((key_of(*digest), KeyedAppend(Seq(4 * number + 3), Seq(4 * number + 4), at_ms)))
    topic = log.replay().catalog.find(TopicId(1))
    assert topic is not None
    assert list(topic.keys) == expected[1:]


def test_a_reference_restores_keys_and_sessions() -> None:
    log = new_log()
    log.create(1)
    epoch = log.open_session(7)
    log.batch(1, (7, 1), epoch=epoch)
    log.control(Reference(log.headers[-1], Seq(1), DATA_START))
    log.batch(1, digest_of("large"), flags=BatchFlags.KEYED)
    keyed = Reference(log.headers[-1], Seq(1), DATA_START + log.headers[0].size)
    log.control(keyed)
    log.batch(9, (7, 2), epoch=epoch)
    log.control(Reference(log.headers[-1], Seq(1), DATA_START))
    replayed = log.replay()
    topic = replayed.catalog.find(TopicId(1))
    assert topic is not None
    assert [key for key, _ in topic.keys] == [key_of(*digest_of("large"))]
    assert replayed.sessions.window.state(ClientId(7)).next_expected == 3
    segment = replayed.segments[TopicId(1)][Seq(1)]
    assert (len(segment.index), len(segment.unflushed)) == (2, 0)


# --- sessions --------------------------------------------------------------------------------------------------------


def fill_with_sessions(log: Written) -> list[EpochReceipt]:
    """Write batches of three publishers, out of order within their windows, one of them with several sessions."""
    chance = random.Random(8)
    log.create(1)
    log.create(2)
    epochs = {client_id: log.open_session(client_id) for client_id in (5, 6, 7)}
    unsent = {client_id: list(range(1, 41)) for client_id in epochs}
    receipts = []
    while any(unsent.values()):
        batches = []
        for ahead in range(chance.randrange(1, 4)):
            ready = [client_id for client_id, seqs in unsent.items() if seqs]
            if ready:
                client_id = chance.choice(ready)
                seqs = unsent[client_id]
                seq = seqs.pop(min(chance.randrange(3), len(seqs) - 1))
                batches.append(log.batch(chance.choice((1, 2)), (client_id, seq), ahead=ahead, epoch=epochs[client_id]))
        receipts.append(log.log(*batches))
        for header in log.headers[-len(batches) :]:
            log.decide(header)
        if chance.random() < 0.1:
            epochs[5] = log.open_session(5)
    return receipts


def test_sessions_are_restored() -> None:
    log = new_log()
    fill_with_sessions(log)
    replayed = log.replay()
    assert replayed.sessions.rows() == log.sessions.rows()
    for header in log.headers[-60:]:
        asked = (header.client_id, log.sessions.window.state(header.client_id).session_epoch, header.client_seq)
        verdict = replayed.sessions.window.check(*asked, header.block_crc)
        assert verdict == log.sessions.window.check(*asked, header.block_crc)
        assert verdict.original is not None
        assert verdict.original.base_seq == header.base_seq


def test_a_damaged_log_restores_the_sessions_it_still_holds() -> None:
    log = new_log()
    receipts = fill_with_sessions(log)
    for receipt in receipts[-25::4]:
        log.flip(receipt.batches_at)
    replayed = log.replay()
    held = {
        int(position)
        for segments in replayed.segments.values()
        for segment in segments.values()
        for position in segment.index.entries["position"]
    }
    assert len(replayed.damages) == 7
    assert len(held) < len(log.headers)
    window = replayed.sessions.window
    for header in log.headers:
        epoch = window.state(header.client_id).session_epoch
        code = window.check(header.client_id, epoch, header.client_seq, header.block_crc).code.name
        known = ("DUPLICATE",) if header.position in held else ("NEW", "SKIPPED", "DUPLICATE")
        assert code in known, header


def test_a_truncated_log_restores_the_sessions_it_still_holds() -> None:
    log = new_log()
    receipts = fill_with_sessions(log)
    for receipt in reversed(receipts[-12:]):
        file, file_at = log.wal.locate(receipt.at)
        file.write([bytes(log.wal.at - receipt.at)], file_at)
        replayed = log.replay()
        assert (replayed.end.at, replayed.damages) == (receipt.at, [])
        window = replayed.sessions.window
        for header in log.headers[-40:]:
            epoch = window.state(header.client_id).session_epoch
            code = window.check(header.client_id, epoch, header.client_seq, header.block_crc).code.name
            assert code == ("DUPLICATE" if header.position < replayed.end.position else "NEW"), header


def test_a_lost_session_opening_does_not_stop_recovery() -> None:
    log = new_log()
    log.create(1)
    epoch, _, control = log.sessions.open(ClientId(7), ClientSeq(1))
    opening = log.control(control)
    log.log(log.batch(1, (7, 1), epoch=epoch), log.batch(1, (7, 2), ahead=1, epoch=epoch))
    log.flip(opening.at)
    replayed = log.replay()
    assert len(replayed.damages) == 1
    assert replayed.sessions.window.state(ClientId(7)).next_expected == 3


def test_a_row_in_a_compound_is_applied() -> None:
    log = new_log()
    log.create(1)
    rows = [log.sessions.open(ClientId(client_id), ClientSeq(client_id))[2] for client_id in (3, 4)]
    log.control(*rows, SegmentRoll(TopicId(1), Seq(1), Seq(0)))
    sessions = log.replay().sessions
    assert sessions.rows() == b"".join(row.row for row in rows)
