"""The commit frontier of a pod against its model: any entries, finished in any order, across wraps and refusals."""

from __future__ import annotations

import random

import numpy as np
import pytest
from goi_world import ABSENT, BROKERS, DELETED, FULL, GOI, PLAIN, STRONG, TERM, UNKNOWN, Item, Slot, World
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.core.types import Position, Seq, TopicId
from seawall.errors import InvalidInputError, InvariantError, WrongStateError
from seawall.fabric import records
from seawall.fabric.checkpoint import newest_checkpoint
from seawall.kernels.runtime import jit
from seawall.sequencer import shared as private
from seawall.sequencer.frontier import CommitFrontier
from seawall.sequencer.goi_frontier import FrontierStop, GoiFrontier
from seawall.sequencer.shared import SequencerShared
from seawall.wire.format.codes import AckStatus, ErrorCode

EXAMPLES = 8 if jit.PYTHON_MODE else 40
STARTS = (0, 5, 2**40 + 3)


def entries(chance: random.Random, slots: list[Slot], model_items: dict[int, Item]) -> list[Item]:
    """One entry for each slot, of any kind, with SKIPs and CONTROLs between them."""
    made: list[Item] = []
    for slot in slots:
        kind = chance.random()
        if kind < 0.6:
            made.append(Item(slot=slot))
        elif kind < 0.85:
            batches = [position for position, item in model_items.items() if item.slot and not item.kind]
            original = chance.choice([*batches[-200:], UNKNOWN])
            note = chance.choice([(0, 0), (77, 99)])
            made.append(Item(records.FLAG_NOP, slot, int(AckStatus.DUPLICATE), 0, original, note))
        else:
            status = chance.choice([AckStatus.REJECTED, AckStatus.RETRY])
            reason = int(ErrorCode.FENCED) if status == AckStatus.REJECTED else 0
            made.append(Item(records.FLAG_NOP, slot, int(status), reason))
        if chance.random() < 0.1:
            made.append(Item(records.FLAG_SKIP, client=5, seq=3, lost=2, topic=STRONG))
        if chance.random() < 0.05:
            made.append(Item(records.FLAG_CONTROL, topic=8))
    return made


class Driver:
    """Random choices in place of collectors and workers."""

    def __init__(self, seed: int, start: int, workers: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(start=start, workers=workers)
        self.waiting: list[list[Slot]] = [[] for _ in range(BROKERS)]
        self.written: list[list[tuple[int, int]]] = [[] for _ in range(workers)]

    def step(self) -> None:
        chance, world = self.chance, self.world
        for _ in range(chance.randrange(6)):
            broker = chance.randrange(BROKERS)
            topic = chance.choice([PLAIN, PLAIN, STRONG, STRONG, DELETED, FULL, ABSENT])
            slot = world.publish(broker, topic, chance.randrange(1, 9), text=chance.randrange(200))
            if slot:
                self.waiting[broker].append(slot)
        taken = [slot for mine in self.waiting for slot in mine[: chance.randrange(4)]]
        made = entries(chance, taken, world.model.items)
        first = world.reserve(len(made))
        if first is not None and made:
            for broker, mine in enumerate(self.waiting):
                self.waiting[broker] = [slot for slot in mine if slot not in taken]
            for position, item in sorted(enumerate(made, first), key=lambda _: chance.random()):
                world.write(position, item)
            chance.choice(self.written).append((first, first + len(made)))
        for worker, mine in enumerate(self.written):
            for _ in range(chance.randrange(3)):
                if mine:
                    world.report(worker, *mine.pop(0))
        self.commit()

    def commit(self) -> None:
        chance, world = self.chance, self.world
        world.wall_ns += chance.choice([0, 0, 1_000_000, -3_000_000])
        world.settle()
        reported = {position for mine in self.written for first, end in mine for position in range(first, end)}
        assert world.frontier.committed <= min(reported, default=world.shared.reserved)
        world.check()
        for replica in range(2):
            before = int(world.arrays.replica_vector[replica]["durable"])
            world.replicate(replica, max(before, world.frontier.committed - chance.randrange(20)))
        known = world.frontier.durable
        vector = world.arrays.replica_vector["durable"][:2].tolist()
        assert world.frontier.advance_durable([0, 1], 2) == max(known, min(vector)) == world.frontier.durable
        world.frontier.advance_completion()
        for ring in world.rings:
            ring.answers()
        if world.frontier.reserved == world.frontier.committed and chance.random() < 0.5:
            assert world.frontier.write_checkpoint(np.zeros(0, np.uint8)) == world.frontier.committed


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**31), st.sampled_from(STARTS), st.integers(1, 3))
def test_ordered_batches_get_the_numbers_of_the_model(seed: int, start: int, workers: int) -> None:
    driver = Driver(seed, start, workers)
    for _ in range(120):
        driver.step()
    for worker, mine in enumerate(driver.written):
        for first, end in mine:
            driver.world.report(worker, first, end)
    driver.world.settle()
    assert driver.world.frontier.committed == driver.world.frontier.reserved > start + GOI
    driver.world.check()
    assert driver.world.frontier.reconciled == 0


def published(world: World, broker: int = 0, topic: int = PLAIN, **more: int) -> Slot:
    slot = world.publish(broker, topic, **more)
    assert slot is not None
    return slot


def test_a_range_that_is_finished_early_waits_for_the_one_before_it() -> None:
    world = World()
    early, late = world.reserve(2), world.reserve(1)
    assert (early, late) == (0, 2)
    world.write(2, Item(slot=published(world)))
    world.report(1, 2, 3)
    assert (world.step(), world.frontier.committed) == (FrontierStop.DONE, 0)
    for position in (0, 1):
        world.write(position, Item(slot=published(world, 1)))
    world.report(0, 0, 2)
    assert (world.step(), world.frontier.committed) == (FrontierStop.DONE, 3)
    world.check()


def test_a_broker_answers_with_what_the_frontier_wrote() -> None:
    world = World(start=40)
    world.order(Item(slot=published(world, 2, count=4)), Item(slot=published(world, 2, topic=DELETED)))
    world.settle()
    answers = world.rings[2].answers()
    assert answers["position"].tolist() == [40, 41]
    assert answers["base_seq"].tolist() == [1, 0]
    assert answers["status"].tolist() == [AckStatus.OK, AckStatus.REJECTED]
    assert answers["reason"].tolist() == [0, ErrorCode.TOPIC_DELETED]


@pytest.mark.parametrize(
    ("topic", "status", "reason"),
    [
        (PLAIN, AckStatus.OK, 0),
        (STRONG, AckStatus.OK, 0),
        (DELETED, AckStatus.REJECTED, ErrorCode.TOPIC_DELETED),
        (FULL, AckStatus.REJECTED, ErrorCode.READ_ONLY),
        (ABSENT, AckStatus.REJECTED, ErrorCode.TOPIC_NOT_FOUND),
    ],
)
def test_a_topic_admits_or_refuses(topic: int, status: AckStatus, reason: int) -> None:
    world = World()
    world.order(Item(slot=published(world, topic=topic)))
    world.settle()
    side = world.arrays.side[0]
    assert (int(side["status"]), int(side["reason"])) == (status, reason)


@pytest.mark.parametrize("topic", [PLAIN, STRONG])
def test_a_batch_of_another_order_than_its_topic_is_refused(topic: int) -> None:
    world = World()
    world.order(Item(slot=published(world, topic=topic)))
    world.arrays.goi[0]["flags"] ^= records.FLAG_STRONG_ORDER
    world.frontier.step(1, 1)
    assert int(world.arrays.side[0]["reason"]) == ErrorCode.NOT_ALLOWED_BY_TOPIC
    assert world.commit_frontier.topic(TopicId(topic)).record_total == 0


def test_a_missing_ceiling_stops_the_order_and_nothing_overtakes() -> None:
    world = World()
    world.order(
        Item(slot=published(world, count=60)), Item(slot=published(world, count=10)), Item(slot=published(world, 1))
    )
    assert world.step() == FrontierStop.NEEDS_CEILING
    assert world.frontier.committed == 1
    assert world.step() == FrontierStop.NEEDS_CEILING
    world.commit_frontier.set_ceiling(TopicId(PLAIN), Seq(1000))
    assert world.frontier.step(9, world.wall_ns) == FrontierStop.DONE
    assert world.frontier.committed == 3
    assert world.arrays.side["base_seq"][:3].tolist() == [1, 61, 71]


def test_a_control_is_executed_between_its_neighbours() -> None:
    world = World()
    world.order(Item(records.FLAG_CONTROL), Item(slot=published(world)), Item(records.FLAG_CONTROL, topic=6))
    world.settle()
    assert (world.controls, world.frontier.committed) == ([0, 2], 3)
    world.check()


def test_a_control_that_does_not_take_its_position_is_a_bug() -> None:
    world = World()
    world.order(Item(records.FLAG_CONTROL))
    frontier = GoiFrontier(
        world.arrays, world.shared, world.commit_frontier, on_control=lambda _: None, term_start=Position(0)
    )
    with pytest.raises(InvariantError, match="INV-GOI-ORDER"):
        frontier.step(1, 1)


def test_a_duplicate_of_a_refused_batch_is_refused() -> None:
    world = World()
    refused = published(world, topic=FULL)
    again = Item(records.FLAG_NOP, published(world, topic=FULL), int(AckStatus.DUPLICATE), 0, original=0)
    world.order(Item(slot=refused), again)
    world.settle()
    world.check()
    assert int(world.arrays.side[1]["reason"]) == ErrorCode.CLIENT_SEQ_SKIPPED


def test_results_come_after_the_position_that_readers_may_see() -> None:
    """INV-GOI-ORDER: with `committed` where it was, no result is there for what is stamped and not committed."""
    world = World()
    world.order(*(Item(slot=published(world)) for _ in range(3)), Item(records.FLAG_CONTROL))

    def look(position: Position) -> None:
        assert int(world.arrays.control["committed"][0]) == position == 3
        assert world.arrays.results[0]["token"][:3].tolist() == [1, 2, 3]
        world.on_control(position)

    frontier = GoiFrontier(world.arrays, world.shared, world.commit_frontier, on_control=look, term_start=Position(0))
    assert frontier.step(1, 1) == FrontierStop.DONE


def test_the_watchdog_finds_unreported_entries() -> None:
    world = World()
    lost = world.reserve(2)
    assert lost == 0
    for position in (0, 1):
        world.write(position, Item(slot=published(world)))
    world.order(Item(slot=published(world, 1)), worker=1)
    world.step()
    assert world.frontier.committed == 0
    world.now_ns += 2_000
    world.step()
    assert (world.frontier.committed, world.frontier.reconciled) == (3, 1)
    world.check()
    world.report(0, 0, 2)  # late, and no harm
    world.order(Item(slot=published(world, 2)))
    world.step()
    assert world.frontier.committed == 4
    world.check()


def test_the_watchdog_waits_for_missing_entries() -> None:
    world = World()
    world.reserve(1)
    for _ in range(3):
        world.now_ns += 2_000
        assert world.step() == FrontierStop.DONE
    assert (world.frontier.committed, world.frontier.reconciled) == (0, 0)


def test_a_reported_but_missing_entry_stops_the_order_until_it_is_written() -> None:
    world = World()
    assert world.reserve(1) == 0
    item = Item(slot=published(world))
    world.write(0, item, is_whole=False)
    world.report(0, 0, 1)
    assert world.step() == FrontierStop.HOLE
    world.write(0, item)
    assert (world.step(), world.frontier.committed) == (FrontierStop.DONE, 1)


def test_an_entry_of_another_term_is_not_committed() -> None:
    world = World()
    world.order(Item(slot=published(world)))
    world.arrays.goi[0]["term"] = TERM - 1
    with pytest.raises(InvariantError, match="INV-GOI-TERM"):
        world.step()
    assert world.frontier.committed == 0


def test_an_entry_of_a_term_before_counts_below_the_start_of_this_one() -> None:
    world = World()
    world.order(Item(slot=published(world)))
    world.arrays.goi[0]["term"] = TERM - 1
    world.frontier = world.make_frontier(1)
    assert (world.step(), world.frontier.committed) == (FrontierStop.DONE, 1)


def test_durable_is_what_all_members_have_and_never_goes_back() -> None:
    world = World(start=10)
    world.order(*(Item(slot=published(world, broker)) for broker in (0, 1, 2, 0)))
    world.settle()
    frontier = world.frontier
    world.replicate(0, 13)
    world.replicate(3, 99)
    assert frontier.advance_durable([0], 2) == 10
    assert frontier.advance_durable([0, 3], 2) == 13
    assert frontier.advance_durable([0, 1], 2) == 13  # member 1 has nothing yet
    assert frontier.advance_durable([3], 1) == 14 == frontier.durable
    assert frontier.advance_completion() == 4
    assert world.arrays.completion_vector["completed"][:3].tolist() == [2, 1, 1]
    assert frontier.advance_completion() == 0


def test_completion_does_not_pass_a_slot_without_a_durable_result() -> None:
    world = World()
    held, *others = (published(world) for _ in range(3))
    world.order(*(Item(slot=slot) for slot in others))
    world.settle()
    world.replicate(0, 2)
    world.frontier.advance_durable([0], 1)
    assert world.frontier.advance_completion() == 0
    world.order(Item(slot=held))
    world.settle()
    assert world.frontier.advance_completion() == 0
    world.replicate(0, 3)
    world.frontier.advance_durable([0], 1)
    assert world.frontier.advance_completion() == 3


@pytest.mark.parametrize(("members", "least"), [([16], 1), ([-1], 1), ([0], 0)])
def test_an_impossible_view_is_refused(members: list[int], least: int) -> None:
    with pytest.raises((InvalidInputError, ValueError)):
        World().frontier.advance_durable(members, least)


def test_the_floor_follows_the_lower_of_durable_and_checkpoint() -> None:
    world = World(start=7)
    counters = world.shared.counters
    world.order(Item(slot=published(world)), Item(slot=published(world)))
    world.settle()
    world.replicate(0, 8)
    world.frontier.advance_durable([0], 1)
    assert counters[private.FLOOR] == 7
    assert world.frontier.write_checkpoint(np.zeros(64, np.uint8)) == 9
    assert (counters[private.FLOOR], world.frontier.checkpoint_position) == (8, 9)
    world.replicate(0, 9)
    world.frontier.advance_durable([0], 1)
    assert counters[private.FLOOR] == 9


def test_a_checkpoint_has_the_rows_of_its_position() -> None:
    world = World()
    world.order(Item(slot=published(world, count=5)))
    with pytest.raises(WrongStateError, match="step all"):
        world.frontier.write_checkpoint(np.zeros(0, np.uint8))
    world.settle()
    world.frontier.write_checkpoint(np.arange(64, dtype=np.uint8))
    newest = newest_checkpoint(world.arrays)
    assert newest is not None
    assert (newest.generation, newest.position, newest.term) == (2, 1, TERM)
    assert newest.timestamp_ns == world.commit_frontier.last_timestamp_ns
    assert newest.clients.tolist() == list(range(64))
    again = CommitFrontier(topics_max=16)
    again.import_rows(newest.topics)
    assert again.snapshot().topics == world.commit_frontier.snapshot().topics


def test_a_checkpoint_waits_for_what_a_worker_has_not_settled() -> None:
    world = World()
    world.order(Item(slot=published(world)))
    world.settle()
    world.shared.settled[private.LINE_WORDS] = 0
    with pytest.raises(WrongStateError, match="settled by the workers below 0"):
        world.frontier.write_checkpoint(np.zeros(0, np.uint8))


def test_a_checkpoint_is_due_when_half_of_the_index_is_behind_the_last() -> None:
    world = World(start=3)
    world.order(*(Item(records.FLAG_SKIP) for _ in range(GOI // 2 - 1)))
    assert not world.frontier.is_checkpoint_due
    world.order(Item(records.FLAG_SKIP))
    assert world.frontier.is_checkpoint_due
    world.settle()
    world.frontier.write_checkpoint(np.zeros(0, np.uint8))
    assert not world.frontier.is_checkpoint_due


def test_each_step_renews_the_lease() -> None:
    world = World()
    world.frontier.step(1_000, 1)
    assert int(world.arrays.control["lease_ns"][0]) == 1_500


def test_a_frontier_at_another_position_than_the_fabric_is_refused() -> None:
    world = World(start=5)
    with pytest.raises(InvalidInputError, match="recover first"):
        GoiFrontier(
            *(world.arrays, SequencerShared.make(GOI, start=5), CommitFrontier()),
            on_control=world.on_control,
            term_start=Position(5),
        )
