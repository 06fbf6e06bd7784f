"""Warm recovery: interrupt a run anywhere, recover from the fabric alone, and compare with the model."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from goi_world import ABSENT, BROKERS, CHUNK, FULL, GOI, PLAIN, SLOTS, STRONG, UNKNOWN, Item, Slot, World
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.core.clock import HybridClock
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, SessionEpoch, TimestampNs, TopicId
from seawall.errors import CorruptionError, WrongStateError
from seawall.fabric import records
from seawall.kernels.runtime import jit
from seawall.sequencer.client_window import BatchResult, ClientWindow
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers
from seawall.sequencer.goi_frontier import FrontierStop
from seawall.sequencer.recovery import WarmRecovery
from seawall.sequencer.shared import SequencerShared
from seawall.wire.format.codes import AckStatus, ErrorCode

EXAMPLES = 4 if jit.PYTHON_MODE else 25
WORKERS = 2
SYNTHETIC = 1 << 63


def worker_of(client_id: ClientId) -> int:
    return client_id % WORKERS


def new_topic(number: int) -> Item:
    return Item(records.FLAG_CONTROL, topic=number, makes=TopicNumbers(TopicId(number), ceiling=Seq(40)))


class Pod(World):
    """A world whose controls create topics and open sessions, and which can crash and recover."""

    def __init__(self, start: int = 0) -> None:
        self.reference = ClientWindow(clients_max=64)
        self.referred = start
        self.ends: dict[tuple[int, int], int] = {}
        self.stored: dict[int, bytes] = {}
        super().__init__(start=start, workers=WORKERS)

    def on_control(self, position: Position) -> None:
        super().on_control(position)
        self.make_topic(position)

    def make_topic(self, position: Position) -> None:
        made = self.model.items[position].makes
        if made:
            self.commit_frontier.add_topic(made)

    def step(self) -> FrontierStop:
        before = self.model.committed
        stop = super().step()
        for position in range(before, self.model.committed):
            stamp, slot = self.model.stamps[position], self.model.items[position].slot
            if slot and stamp.base_seq and not self.model.items[position].kind:
                self.ends[slot.topic, position] = stamp.base_offset + slot.raw
        return stop

    def refer(self, end: int) -> bytes:
        """The rows of clients behind a position, entry after entry, as a window has them."""
        for position in range(self.referred, end):
            item, stamp = self.model.items[position], self.model.stamps[position]
            if item.kind == records.FLAG_CONTROL and item.client:
                self.reference.open(ClientId(item.client), SessionEpoch(1), ClientSeq(1))
            elif item.kind == records.FLAG_SKIP:
                self.reference.skip_to(ClientId(item.client), ClientSeq(item.seq + item.lost))
            elif not item.kind and item.slot and item.slot.client < SYNTHETIC:
                result = BatchResult(
                    item.slot.crc,
                    Position(position),
                    Seq(stamp.base_seq),
                    TimestampNs(stamp.timestamp_ns),
                    AckStatus(stamp.status),
                    stamp.reason,
                )
                self.reference.decide(ClientId(item.slot.client), ClientSeq(item.slot.seq), result)
        self.referred = max(end, self.referred)
        return self.reference.export_rows()

    def checkpoint(self, *, leave_out: int = 0) -> None:
        """All rows as a checkpoint has them, some of them evicted to storage."""
        rows = self.refer(self.frontier.committed)
        self.reference = ClientWindow(clients_max=64)
        self.reference.import_rows(rows)
        kept = [rows[at : at + 64] for at in range(0, len(rows), 64)]
        self.stored = {int.from_bytes(row[:8], "little"): row for row in kept[:leave_out]}
        self.frontier.write_checkpoint(np.frombuffer(b"".join(kept[leave_out:]), np.uint8))

    # --- crash and recovery ---------------------------------------------------------------------------------------

    def crash(self, chance: random.Random, *, unreported: int = 0) -> None:
        """Lose what is private; results of the last positions, and stamps above committed, are not what they were."""
        committed, durable = self.model.committed, self.frontier.durable
        for position in range(max(durable, committed - unreported), committed):
            slot = self.model.items[position].slot
            if slot and slot.index >= int(self.arrays.completion_vector[slot.broker]["completed"]):
                self.arrays.results[slot.broker][slot.index % SLOTS]["token"] = 0
        for position in range(committed, committed + CHUNK):
            if self.arrays.goi[position % GOI]["token"] != position + 1:
                break
            if position % 3:
                self.arrays.side[position % GOI] = (chance.randrange(9), 2, 0, 9, 77, 77, 77)
        for position, item in self.model.items.items():
            if position >= committed:
                self.model.items[position] = replace(item, note=(0, 0))

    def recover(self) -> WarmRecovery:
        committed = self.model.committed
        tokens = self.arrays.goi["token"]
        start = committed
        while tokens[start % GOI] == start + 1:
            start += 1
        checkpoint = self.frontier.checkpoint_position
        self.commit_frontier = CommitFrontier(topics_max=16, rows_max=1)
        recovery = WarmRecovery(self.arrays, self.commit_frontier)
        assert (recovery.committed, recovery.start, recovery.term) == (committed, start, self.term + 1)
        assert not (tokens > start).any()
        self.term = recovery.term
        replayed: list[int] = []

        def replay_control(position: Position) -> None:
            replayed.append(position)
            self.make_topic(position)

        recovery.replay_topics(replay_control, lambda topic, position: Offset(self.ends[topic, position]))
        assert replayed == self.controls_in(checkpoint, committed)
        self.check_topics()
        resumes = recovery.restore_results()
        self.check_results_up_to(committed)
        dropped = [self.model.items.pop(position) for position in sorted(self.model.items) if position >= start]
        self.check_taken(resumes, dropped)
        self.shared = SequencerShared.make(GOI, workers=WORKERS, start=start)
        self.frontier = self.make_frontier(start, start)
        self.settle()
        assert self.frontier.committed == start
        self.check_clients(recovery, checkpoint)
        return recovery

    def controls_in(self, first: int, end: int) -> list[int]:
        items = self.model.items
        return [at for at in range(first, end) if items[at].kind == records.FLAG_CONTROL]

    def check_topics(self) -> None:
        clock = self.commit_frontier.last_timestamp_ns
        assert clock >= self.model.clock.last_ns
        self.model.clock = HybridClock(clock)
        assert self.commit_frontier.next_position == self.model.committed
        for topic in self.model.topics.values():
            found = self.commit_frontier.topic(topic.topic_id)
            assert found.next_seq <= found.ceiling <= topic.ceiling
            assert replace(found, ceiling=topic.ceiling) == topic
            if not topic.is_deleted:
                self.commit_frontier.set_ceiling(topic.topic_id, topic.ceiling)

    def check_results_up_to(self, committed: int) -> None:
        assert committed == self.model.committed
        self.check_results()

    def check_taken(self, resumes: tuple[object, ...], dropped: list[Item]) -> None:
        gone = {(item.slot.broker, item.slot.index) for item in dropped if item.slot}
        taken = {(item.slot.broker, item.slot.index) for item in self.model.items.values() if item.slot}
        assert not gone & taken
        for broker, resume in enumerate(resumes):
            completed = int(self.arrays.completion_vector[broker]["completed"])
            assert resume.cursor == completed
            expected = sorted(index for each, index in taken if each == broker and index >= completed)
            assert resume.taken.tolist() == expected

    def check_clients(self, recovery: WarmRecovery, checkpoint: int) -> None:
        windows = [ClientWindow(clients_max=64) for _ in range(WORKERS)]
        replayed: list[int] = []

        def replay_control(position: Position) -> None:
            replayed.append(position)
            client = self.model.items[position].client
            if client:
                windows[worker_of(ClientId(client))].open(ClientId(client), SessionEpoch(1), ClientSeq(1))

        def import_client(client_id: ClientId) -> bool:
            return windows[worker_of(client_id)].import_rows(self.stored[client_id]) == 1

        recovery.replay_clients(windows, worker_of, on_control=replay_control, import_client=import_client)
        assert replayed == self.controls_in(checkpoint, recovery.start)
        rows = self.refer(recovery.start)
        found = {
            rows_of[at : at + 64]
            for rows_of in map(ClientWindow.export_rows, windows)
            for at in range(0, len(rows_of), 64)
        }
        evicted = {row for client, row in self.stored.items() if not any(ClientId(client) in each for each in windows)}
        assert found | evicted == {rows[at : at + 64] for at in range(0, len(rows), 64)}


class Driver:
    """Random publishers, workers and crashes."""

    def __init__(self, seed: int, start: int) -> None:
        self.chance = random.Random(seed)
        self.pod = Pod(start)
        self.clients: dict[int, int] = {}
        self.newest_client = 100
        self.topics = [PLAIN, STRONG, FULL, ABSENT]
        self.waiting: list[list[Slot]] = [[] for _ in range(BROKERS)]
        self.written: list[tuple[int, int, int]] = []
        self.decided: set[tuple[int, int]] = set()

    def publish(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(6)):
            broker = chance.randrange(BROKERS)
            client, seq = SYNTHETIC, 1
            if self.clients and chance.random() < 0.7:
                client = chance.choice([*self.clients])
                seq = max(1, self.clients[client] + chance.choice([0, 0, 0, 3, -1]))
            text = chance.randrange(100)
            slot = self.pod.publish(
                broker, chance.choice(self.topics), chance.randrange(1, 5), client=client, seq=seq, text=text
            )
            if slot:
                self.waiting[broker].append(slot)
                if client != SYNTHETIC:
                    self.clients[client] = seq + 1

    def items(self, slots: list[Slot]) -> list[Item]:
        """The entries that a worker would write: seqs in order, SKIPs for missing ones, NOPs for the rest."""
        made: list[Item] = []
        for slot in slots:
            if slot.client not in self.clients and slot.client != SYNTHETIC:
                # Its session was opened after the hole, and is not open any more.
                made.append(Item(records.FLAG_NOP, slot, int(AckStatus.REJECTED), int(ErrorCode.FENCED)))
            elif slot.client == SYNTHETIC or (slot.client, slot.seq) not in self.decided:
                lost = []
                seq = slot.seq - 1
                while slot.client != SYNTHETIC and seq > 0 and (slot.client, seq) not in self.decided:
                    lost.append(seq)
                    seq -= 1
                if lost:
                    made.append(
                        Item(records.FLAG_SKIP, client=slot.client, seq=seq + 1, lost=len(lost), topic=slot.topic)
                    )
                made.append(Item(slot=slot))
                self.decided |= {(slot.client, each) for each in (slot.seq, *lost)}
            else:
                made.append(Item(records.FLAG_NOP, slot, int(AckStatus.DUPLICATE), 0, UNKNOWN, (5, 6)))
        if self.chance.random() < 0.1:
            self.newest_client += 1
            self.clients[self.newest_client] = 1
            made.append(Item(records.FLAG_CONTROL, client=self.newest_client))
        if self.chance.random() < 0.03 and len(self.topics) < 12:
            self.topics.append(20 + len(self.topics))
            made.append(new_topic(self.topics[-1]))
        return made

    def order(self) -> None:
        chance, pod = self.chance, self.pod
        taken = [slot for mine in self.waiting for slot in mine[: chance.randrange(4)]]
        known = set(self.decided), dict(self.clients), list(self.topics)
        made = self.items(taken)
        first = pod.reserve(len(made))
        if first is None or not made:
            self.decided, self.clients, self.topics = known
            return
        self.waiting = [[slot for slot in mine if slot not in taken] for mine in self.waiting]
        for position, item in enumerate(made, first):
            pod.write(position, item)
        self.written.append((chance.randrange(WORKERS), first, first + len(made)))

    def commit(self) -> None:
        chance, pod = self.chance, self.pod
        chance.shuffle(self.written)
        self.written.sort(key=lambda each: each[0])
        mine: dict[int, list[tuple[int, int]]] = {}
        for worker, first, end in self.written:
            mine.setdefault(worker, []).append((first, end))
        self.written = []
        for worker, ranges in mine.items():
            ranges.sort()
            reported = chance.randrange(len(ranges) + 1)
            for first, end in ranges[:reported]:
                pod.report(worker, first, end)
            self.written += [(worker, first, end) for first, end in ranges[reported:]]
        pod.wall_ns += chance.choice([0, 2_000_000])
        pod.settle()
        if chance.random() < 0.5:
            pod.replicate(0, max(pod.frontier.durable, pod.frontier.committed - chance.randrange(20)))
            pod.frontier.advance_durable([0], 1)
            pod.frontier.advance_completion()
            for ring in pod.rings:
                ring.answers()
        if pod.frontier.reserved == pod.frontier.committed and chance.random() < 0.4:
            pod.checkpoint(leave_out=chance.randrange(3))

    def crash(self) -> None:
        """Some entries that are not committed lose their tokens, as if they had not been finished."""
        chance, pod = self.chance, self.pod
        open_positions = range(pod.frontier.committed, pod.frontier.reserved)
        for position in open_positions:
            if chance.random() < 0.1:
                pod.arrays.goi[position % GOI]["token"] = chance.choice([0, max(0, position + 1 - GOI)])
        pod.crash(chance, unreported=chance.randrange(12))
        recovery = pod.recover()
        kept = {(item.slot.broker, item.slot.index) for item in pod.model.items.values() if item.slot}
        self.waiting = [[] for _ in range(BROKERS)]
        for (broker, index), slot in sorted(pod.slots.items()):
            completed = int(pod.arrays.completion_vector[broker]["completed"])
            if (broker, index) not in kept and index >= completed:
                self.waiting[broker].append(slot)
        self.written = []
        self.decided = set()
        sessions: set[int] = set()
        for item in pod.model.items.values():
            if item.kind == records.FLAG_SKIP:
                self.decided |= {(item.client, seq) for seq in range(item.seq, item.seq + item.lost)}
            elif item.kind == records.FLAG_CONTROL and item.client:
                sessions.add(item.client)
            elif item.slot and not item.kind:
                self.decided.add((item.slot.client, item.slot.seq))
        self.clients = {client: seq for client, seq in self.clients.items() if client in sessions}
        self.topics = [topic for topic in self.topics if topic in pod.model.topics or topic == ABSENT]
        assert recovery.start == pod.frontier.committed == pod.frontier.reserved


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**31), st.sampled_from([0, 9, 2**40 + 1]))
def test_a_pod_that_crashes_repeatedly_continues_like_the_model(seed: int, start: int) -> None:
    driver = Driver(seed, start)
    for step in range(150):
        driver.publish()
        driver.order()
        driver.commit()
        driver.pod.check()
        if driver.chance.random() < 0.05 or step == 149:
            driver.crash()
            driver.pod.check()
    assert driver.pod.frontier.committed > start + GOI


def published(pod: Pod, broker: int = 0, topic: int = PLAIN, **more: int) -> Slot:
    slot = pod.publish(broker, topic, **more)
    assert slot is not None
    return slot


RUN = 9


@pytest.mark.parametrize(("written", "committed"), [(w, c) for w in range(RUN + 1) for c in range(w + 1)])
def test_a_run_interrupted_anywhere_is_recovered(written: int, committed: int) -> None:
    """Entries below `written` have tokens, and one after the hole; those below `committed` are; results are missing."""
    pod = Pod(start=GOI - 4)
    first = pod.order(Item(records.FLAG_CONTROL, client=11), Item(records.FLAG_CONTROL, client=12))
    pod.settle()
    begin = pod.reserve(RUN)
    assert begin == first + 2
    kinds = [Item(slot=published(pod, at % BROKERS, client=11 + at % 2, seq=1 + at // 2, count=2)) for at in range(RUN)]
    kinds[4] = Item(records.FLAG_SKIP, client=11, seq=3, lost=1)
    kinds[6] = new_topic(30)
    for at, item in enumerate(kinds):
        pod.write(begin + at, item, is_whole=at < written or at == written + 1)
    if committed:
        pod.report(0, begin, begin + committed)
    pod.settle()
    assert pod.frontier.committed == begin + committed
    pod.crash(random.Random(1), unreported=RUN)
    recovery = pod.recover()
    assert recovery.start == begin + written
    assert recovery.scrubbed == (written + 1 < RUN)
    slots = [item.slot for item in kinds[:committed] if item.slot]
    assert recovery.results_written == len(slots)
    pod.check()


def test_recovering_twice_equals_recovering_once() -> None:
    """INV-RECOVERY-TWICE."""
    pod = Pod()
    pod.order(*(Item(slot=published(pod, broker)) for broker in range(BROKERS)))
    pod.settle()
    pod.crash(random.Random(2), unreported=3)
    WarmRecovery(pod.arrays, CommitFrontier()).restore_results()
    pod.term += 1
    assert pod.recover().results_written == 0
    pod.check()


def test_a_slot_whose_entry_is_lapped_is_still_taken() -> None:
    """One slot is held for a lap of the order: after it are slots with results and without entries."""
    pod = Pod()
    held = published(pod, 2)
    first = pod.order(*(Item(slot=published(pod, 2)) for _ in range(3)))
    for _ in range(5):
        pod.order(*(Item(records.FLAG_NOP, published(pod, at % 2), int(AckStatus.RETRY)) for at in range(60)))
        pod.settle()
        pod.replicate(0, pod.frontier.committed)
        pod.frontier.advance_durable([0], 1)
        pod.frontier.advance_completion()
        for ring in pod.rings:
            ring.answers()
        pod.checkpoint()
    assert pod.frontier.committed > first + GOI
    pod.crash(random.Random(3))
    recovery = WarmRecovery(pod.arrays, CommitFrontier())
    resume = recovery.restore_results()[2]
    assert (resume.cursor, resume.taken.tolist()) == (held.index, [1, 2, 3])


def test_a_fabric_without_a_checkpoint_is_not_recovered() -> None:
    pod = Pod()
    for slot in pod.arrays.checkpoints:
        slot[:64] = 0
    with pytest.raises(CorruptionError, match="no valid checkpoint: remove the fabric"):
        WarmRecovery(pod.arrays, CommitFrontier())


@pytest.mark.parametrize(("name", "value"), [("durable", 3), ("committed", 1000)])
def test_contradictory_counts_are_not_recovered(name: str, value: int) -> None:
    pod = Pod()
    pod.arrays.control[name] = value
    with pytest.raises(CorruptionError, match="start again, from the data directory"):
        WarmRecovery(pod.arrays, CommitFrontier())


def test_missing_committed_entries_are_not_skipped() -> None:
    pod = Pod()
    pod.order(Item(slot=published(pod)))
    pod.settle()
    pod.arrays.goi[0]["token"] = 0
    with pytest.raises(CorruptionError, match="entries between 0 and 1 are missing"):
        WarmRecovery(pod.arrays, CommitFrontier())


def test_clients_are_replayed_only_when_all_is_committed() -> None:
    pod = Pod()
    pod.order(Item(slot=published(pod)))
    recovery = WarmRecovery(pod.arrays, CommitFrontier())
    with pytest.raises(WrongStateError, match="step the frontier first"):
        recovery.replay_clients([], worker_of, on_control=pod.on_control, import_client=lambda _: False)


def test_a_client_without_a_row_is_corruption() -> None:
    pod = Pod()
    pod.order(Item(slot=published(pod, client=11, seq=4)))
    pod.settle()
    recovery = WarmRecovery(pod.arrays, CommitFrontier())
    with pytest.raises(CorruptionError, match="000b has batches in the order but no row"):
        recovery.replay_clients(
            [ClientWindow(clients_max=4)] * WORKERS, worker_of, on_control=pod.on_control, import_client=lambda _: False
        )
