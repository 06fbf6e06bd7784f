"""Sessions that expire, make space for others, or are retired by name: nothing is ever stored twice."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from seawall import limits
from seawall.config import Config, FabricConfig
from seawall.core.types import ClientId, ClientSeq, Seq, SessionEpoch
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import Append
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.ordering.sequenced_orderer import SequencedOrderer, open_sequenced_store
from seawall.engine.store.opening import open_store
from seawall.engine.store.sessions import Sessions
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import (
    ConflictError,
    FencedError,
    FullError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    UnsupportedError,
)
from seawall.limits import KIB
from seawall.storage.control.codec import ClientRow
from seawall.testing import SimClock, SimCrash, SimDisk, SimSharedMemory
from seawall.topics.config import TopicConfig
from seawall.wire.format.codes import AckStatus
from seawall.wire.format.records import decode_block, encode_raw

DAY_MS = 86_400_000
NS = 1_000_000
WINDOW = limits.SESSION_WINDOW_BATCHES
SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64, session_ttl_ms=DAY_MS)
TINY = FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=256 * KIB)


class World:
    """A store on a simulated disk, with a clock that continues over its restarts."""

    def __init__(self, kind: str, settings: StoreSettings = SMALL, seed: int = 1, fabric: FabricConfig = TINY) -> None:
        self.kind = kind
        self.fabric = fabric
        self.settings = settings
        self.disk = SimDisk(seed=seed)
        self.clock = SimClock(wall_ns=1_700_000_000_000_000_000)
        self.live: set[ClientId] = set()
        self.store = self.open()
        self.store.create_topic("events", TopicConfig())

    def open(self) -> Store:
        machine = Machine(self.disk, self.clock, random.Random(3).randbytes, pid=7)
        if self.kind == "alone":
            self.store = open_store(machine, "/data", self.settings)
        else:
            self.store = open_sequenced_store(
                machine, "/data", SimSharedMemory(), bytes(16), self.fabric, self.settings
            )
        self.store.sessions.live_clients.append(lambda: self.live)
        return self.store

    def restart(self) -> None:
        self.store.close()
        self.open()

    def crash(self) -> None:
        self.disk.crash(keep="random")
        self.open()

    def later(self, ms: int) -> None:
        self.clock.advance(ms * NS)

    def note_sessions(self) -> None:
        self.store.sessions.note_activity(self.clock.wall_ns() // NS, self.live)

    def begin(self, client_id: int, start_seq: int = 1) -> tuple[SessionEpoch, ClientSeq]:
        return self.store.session_keeper.open(SessionSpec(ClientId(client_id), ClientSeq(start_seq)))

    def publish(self, client_id: int, seq: int, epoch: int, value: bytes) -> AckStatus:
        topic = self.store.catalog.named("events").topic_id
        append = Append(topic, encode_raw(value), 1, ClientId(client_id), ClientSeq(seq), epoch)
        (numbered,) = self.store.append([append])
        return numbered.status

    def known(self) -> list[int]:
        return [session.client_id for session in self.store.sessions.infos()]

    def values(self) -> list[bytes]:
        found: list[bytes] = []
        seq = Seq(1)
        while items := self.store.queries.read("events", seq, size_max=1 << 20):
            for item in items:
                if isinstance(item, StoredBatch):
                    header = item.header
                    found += [record.value for record in decode_block(item.block, header.record_count)]
                    seq = Seq(header.base_seq + header.record_count)
                else:
                    seq = Seq(item.last_seq + 1)
        return found


@pytest.fixture(params=["alone", "ordered"])
def kind(request: pytest.FixtureRequest) -> str:
    """What assigns positions: the store alone, or a sequencer in front of it."""
    assert isinstance(request.param, str)
    return request.param


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_session_expires_a_day_after_its_last_batch(kind: str) -> None:
    world = World(kind)
    for client_id in (1, 2, 3):
        world.begin(client_id)
    world.later(DAY_MS // 2)
    world.store.session_keeper.expire()
    world.publish(2, 1, 1, b"later")
    world.live = {ClientId(3)}
    world.later(DAY_MS // 2)
    world.store.session_keeper.expire()
    world.later(DAY_MS // 4)
    assert world.store.session_keeper.is_expiry_due
    assert not world.store.session_keeper.expire()
    assert world.known() == [2, 3], "1 was silent for longer than a day, 2 has published, 3 has a connection"
    assert not world.store.session_keeper.is_expiry_due
    world.later(DAY_MS * 3 // 4)
    world.store.session_keeper.expire()
    assert world.known() == [3]
    world.store.close()


def test_opening_a_session_expires_others(kind: str) -> None:
    world = World(kind)
    world.begin(1)
    world.later(2 * DAY_MS)
    world.store.session_keeper.expire()
    world.later(2 * DAY_MS)
    world.begin(2)
    assert world.known() == [2]
    world.store.close()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_keeps_the_age_of_sessions(kind: str, checkpoint: bool, crash: bool) -> None:
    world = World(kind)
    world.begin(1)
    world.publish(1, 1, 1, b"one")
    world.store.session_keeper.expire()
    world.later(DAY_MS * 3 // 4)
    world.begin(2)
    world.publish(2, 1, 1, b"two")
    if checkpoint:
        world.store.maintenance.checkpoint()
    world.store.controls.sync()
    world.crash() if crash else world.restart()
    world.later(DAY_MS // 2)
    world.restart()
    world.store.session_keeper.expire()
    assert world.known() == [2]
    (session,) = world.store.sessions.infos()
    assert abs(session.last_seen_ms - (1_700_000_000_000 + DAY_MS * 3 // 4)) <= DAY_MS // limits.SESSION_CHECKS
    world.store.close()


# --- retired sessions -----------------------------------------------------------------------------


def test_a_repeated_batch_of_a_retired_session_is_refused(kind: str) -> None:
    world = World(kind)
    world.begin(7)
    for seq in range(1, 5):
        assert world.publish(7, seq, 1, b"%d" % seq) is AckStatus.OK
    world.later(2 * DAY_MS)
    world.store.session_keeper.expire()
    world.later(2 * DAY_MS)
    world.store.session_keeper.expire()
    assert world.known() == []
    assert world.store.sessions.was_retired(ClientId(7), SessionEpoch(1))
    assert not world.store.sessions.was_retired(ClientId(7), SessionEpoch(2)), "never was one of this log"
    with pytest.raises(FencedError):
        world.publish(7, 4, 1, b"4")
    world.restart()
    with pytest.raises(FencedError):
        world.publish(7, 4, 1, b"4")
    epoch, next_seq = world.begin(7)
    assert (epoch, next_seq) == (2, 4 + WINDOW + 1)
    for seq in (1, 4):
        with pytest.raises(ConflictError, match="outside the window"):
            world.publish(7, seq, 2, b"%d" % seq)
    with pytest.raises(FencedError):
        world.publish(7, next_seq, 1, b"of the old session")
    assert world.publish(7, next_seq, 2, b"new") is AckStatus.OK
    assert world.publish(7, next_seq, 2, b"new") is AckStatus.DUPLICATE
    assert world.values() == [b"1", b"2", b"3", b"4", b"new"]
    world.store.close()


def test_a_drawn_client_id_starts_at_its_own_seq(kind: str) -> None:
    world = World(kind)
    world.begin(1)
    world.publish(1, 1, 1, b"one")
    world.store.session_keeper.retire(ClientId(1))
    epoch, next_seq = world.store.session_keeper.open(SessionSpec(ClientId(99), ClientSeq(1), is_drawn=True))
    assert (epoch, next_seq) == (3, 1), "retiring opens the session once more, to fence it"
    world.store.close()


def test_client_seqs_of_a_session_are_bounded(kind: str) -> None:
    world = World(kind)
    with pytest.raises(InvalidInputError, match="start seq"):
        world.begin(1, limits.SESSION_START_SEQ_MAX + 1)
    _, highest = world.begin(1, limits.SESSION_START_SEQ_MAX)
    world.publish(1, highest, 1, b"high")
    world.store.session_keeper.retire(ClientId(1))
    _, next_seq = world.begin(1, highest + 1)
    assert next_seq == highest + WINDOW + 1
    if isinstance(world.store.orderer, SequencedOrderer):
        far = ClientSeq(next_seq + limits.SESSION_ABANDONED_MAX + 1)
        with pytest.raises(LimitError, match="abandons batches"):
            world.store.session_keeper.open(SessionSpec(ClientId(1), far, abandons=True))
    else:
        with pytest.raises(UnsupportedError, match="only a sequencer can abandon"):
            world.store.session_keeper.open(SessionSpec(ClientId(1), next_seq, abandons=True))
    world.store.close()


# --- space ------------------------------------------------------------------------------------------------------------


def test_above_the_bound_the_longest_idle_sessions_are_retired(kind: str) -> None:
    world = World(kind, replace(SMALL, sessions_max=3))
    for client_id in (1, 2, 3):
        world.begin(client_id)
        world.later(1_000)
        world.note_sessions()
    world.publish(1, 1, 1, b"one")
    world.begin(4)
    assert world.known() == [1, 3, 4]
    world.live = {ClientId(1), ClientId(3)}
    world.begin(5)
    assert world.known() == [1, 3, 5]
    world.live = {ClientId(1), ClientId(3), ClientId(5)}
    with pytest.raises(FullError, match="3 sessions are open"):
        world.begin(6)
    world.begin(5)
    world.live = set()
    world.begin(6)
    assert len(world.known()) == 3
    assert 6 in world.known()
    world.store.close()


def test_a_lowered_bound_applies_when_the_next_session_opens(kind: str) -> None:
    world = World(kind)
    for client_id in range(1, 21):
        world.begin(client_id)
    world.settings = replace(SMALL, sessions_max=5)
    world.restart()
    assert len(world.known()) == 20
    world.begin(99)
    assert len(world.known()) == 5
    assert 99 in world.known()
    world.store.close()


def test_any_number_of_short_lived_clients_may_publish(kind: str) -> None:
    world = World(kind, replace(SMALL, sessions_max=16))
    for client_id in range(1, 100):
        epoch, next_seq = world.begin(client_id)
        assert world.publish(client_id, next_seq, epoch, b"%d" % client_id) is AckStatus.OK
        assert len(world.known()) <= 16
    world.restart()
    assert world.values() == [b"%d" % client_id for client_id in range(1, 100)]
    world.store.close()


# --- by name ----------------------------------------------------------------------------------------------------------


def test_a_session_is_retired_by_name(kind: str) -> None:
    world = World(kind)
    world.begin(7)
    world.publish(7, 1, 1, b"one")
    world.live = {ClientId(7)}
    assert world.store.session_keeper.retire(ClientId(7)) == 2, "connections below this epoch are to be fenced"
    assert world.known() == []
    with pytest.raises(FencedError):
        world.publish(7, 2, 1, b"two")
    with pytest.raises(NotFoundError, match="client 7"):
        world.store.session_keeper.retire(ClientId(7))
    world.restart()
    assert world.known() == []
    assert world.begin(7) == (3, 1 + WINDOW + 1)
    world.store.close()


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["none", "random", "all"])
def test_no_crash_restores_a_session_in_part(kind: str, keep: str) -> None:
    """A crash at every call of the disk: a session is there as it was, or retired with both floors above it."""
    step = 1 if kind == "alone" else 3
    for crash_at in itertools.count(1, step):
        world = World(kind, seed=crash_at)
        for client_id in range(1, 5):
            world.begin(client_id)
            world.publish(client_id, 1, 1, b"%d" % client_id)
        world.later(2 * DAY_MS)
        world.note_sessions()
        world.disk.crash_after(crash_at)
        is_done = False
        try:
            world.later(2 * DAY_MS)
            world.live = {ClientId(4)}
            world.store.session_keeper.expire()
            world.store.maintenance.checkpoint()
            is_done = True
            world.store.close()
        except SimCrash:
            world.disk.crash(keep=keep)
        else:
            break
        world.open()
        known = world.known()
        assert known in ([4], [] if is_done else [1, 2, 3, 4])
        for client_id in range(1, 4):
            epoch, next_seq = world.begin(client_id)
            if client_id in known:
                assert (epoch, next_seq) == (2, 2)
                assert world.publish(client_id, 1, 2, b"%d" % client_id) is AckStatus.DUPLICATE
            else:
                assert (epoch, next_seq) == (2, 1 + WINDOW + 1)
                with pytest.raises(ConflictError):
                    world.publish(client_id, 1, 2, b"%d" % client_id)
        assert world.values() == [b"1", b"2", b"3", b"4"]
        world.store.close()
    assert crash_at > 3


class Model:
    """Clients that lose answers and repeat old client seqs, while their sessions are retired."""

    def __init__(self, kind: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(kind, replace(SMALL, sessions_max=3, checkpoint_size=64 * KIB), seed)
        #: By client: the session epoch and the next client seq, as the client believes.
        self.sessions: dict[int, tuple[int, int]] = {}
        #: By client and client seq: the value that was sent last.
        self.sent: dict[tuple[int, int], bytes] = {}
        self.acked: set[bytes] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            client_id = self.chance.randrange(1, 7)
            self.chance.choices(
                [self.open, self.publish, self.repeat, self.pass_time, self.retire, self.restart],
                [4, 8, 8, 2, 1, 1],
            )[0](client_id)
        stored = Counter(self.world.values())
        assert max(stored.values()) == 1, "nothing is stored twice"
        assert self.acked <= stored.keys(), "nothing that was acked is lost"
        self.world.store.close()

    def open(self, client_id: int) -> None:
        self.sessions[client_id] = self.world.begin(client_id, self.chance.choice((1, 1, 3)))

    def publish(self, client_id: int) -> None:
        if client_id in self.sessions:
            epoch, seq = self.sessions[client_id]
            assert self.sent.get((client_id, seq)) not in self.acked, "no client seq is assigned again"
            self.sent[client_id, seq] = b"%d-%d-%d" % (client_id, seq, len(self.sent))
            self.sessions[client_id] = epoch, seq + 1
            self.send(client_id, seq)

    def repeat(self, client_id: int) -> None:
        known = [seq for client, seq in self.sent if client == client_id]
        if known:
            self.send(client_id, self.chance.choice(known))

    def send(self, client_id: int, seq: int) -> None:
        value = self.sent[client_id, seq]
        try:
            status = self.world.publish(client_id, seq, self.sessions[client_id][0], value)
        except (FencedError, ConflictError):
            return
        assert status is AckStatus.DUPLICATE or value not in self.acked
        self.acked.add(value)

    def pass_time(self, client_id: int) -> None:
        self.world.later(self.chance.randrange(DAY_MS))
        if self.chance.random() < 0.5:
            self.world.store.session_keeper.expire()
        if self.chance.random() < 0.3:
            self.world.live = {ClientId(client_id)}

    def retire(self, client_id: int) -> None:
        if client_id in self.world.known():
            self.world.store.session_keeper.retire(ClientId(client_id))

    def restart(self, _client_id: int) -> None:
        if self.chance.random() < 0.5:
            self.world.store.maintenance.checkpoint()
        self.world.crash() if self.chance.random() < 0.5 else self.world.restart()


@pytest.mark.parametrize("seed", range(4))
def test_retired_sessions_store_nothing_twice(kind: str, seed: int) -> None:
    """INV-SESSION-RETIRED."""
    Model(kind, seed).run(150)


def test_the_model_finds_a_planted_bug(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: new sessions are numbered as if no session had ever been retired."""
    right = Sessions.open

    def wrong(
        self: Sessions, client_id: ClientId, start_seq: ClientSeq, *, is_drawn: bool = False
    ) -> tuple[SessionEpoch, ClientSeq, ClientRow]:
        return right(self, client_id, start_seq, is_drawn=not is_drawn)

    monkeypatch.setattr(Sessions, "open", wrong)

    def run_all() -> None:
        for seed in range(6):
            Model(kind, seed).run(150)

    with pytest.raises(AssertionError):
        run_all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 115))
def test_retired_sessions_store_nothing_twice_in_long_runs(kind: str, seed: int) -> None:
    Model(kind, seed).run(600)


def test_more_clients_than_a_fabric_checkpoint_holds() -> None:
    """63 rows fit: the sequencer evicts others, and loads them again when their client publishes."""
    world = World("ordered", fabric=replace(TINY, checkpoint_size=8 * KIB))
    for client_id in range(1, 200):
        world.begin(client_id)
        assert world.publish(client_id, 1, 1, b"%d" % client_id) is AckStatus.OK
    for client_id in range(1, 200, 7):
        assert world.publish(client_id, 1, 1, b"%d" % client_id) is AckStatus.DUPLICATE
        assert world.publish(client_id, 2, 1, b"again %d" % client_id) is AckStatus.OK
    assert len(world.known()) == 199
    world.store.close()


@pytest.mark.parametrize("brokers", [0, 1])
def test_publishers_of_many_threads_open_and_close(tmp_path: Path, brokers: int) -> None:
    """Open publishers keep their sessions while others are opened."""
    settings = replace(SMALL, sessions_max=12)
    with open_log(tmp_path / "data", settings, config=Config(fabric=TINY), brokers=brokers) as log:
        log.create_topic("events")
        stays = log.publisher("events", client_id=1)
        stays.publish(b"first").result()
        failed: list[Exception] = []

        def work(thread: int) -> None:
            try:
                for number in range(12):
                    with log.publisher("events", client_id=1_000 * thread + number) as publisher:
                        publisher.publish(b"%d-%d" % (thread, number))
                    assert len(log.sessions()) <= 12
            except Exception as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        stays.publish(b"last").result()
        assert [each.client_id for each in log.sessions() if each.is_live] == [1]
        stays.close()
        assert not any(each.is_live for each in log.sessions())
        assert log.describe("events").next_seq == 4 * 12 + 2 + 1
