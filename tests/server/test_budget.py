"""The memory budget for peers: which connection gets memory, in which order, and that all of it is returned."""

import asyncio

import pytest

from seawall.limits import CONTENDED_RESPONSE_SIZE, MEMORY_SMALL_SIZE, MIB
from seawall.server.connection.budget import Budget, PeerMemory

LARGE = MEMORY_SMALL_SIZE + 1


def on_loop(work):
    asyncio.run(work())


def test_a_request_without_space_waits_until_some_is_returned():
    """INV-BUDGET-BOUND."""

    async def work():
        budget = Budget(80 * MIB)
        first, second = (budget.account(80 * MIB) for _ in range(2))
        first.hold(79 * MIB)
        waiting = asyncio.create_task(second.acquire(2 * MIB))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert budget.is_contended
        first.hold(-MIB)
        await waiting
        assert (budget.used, second.used, budget.is_contended) == (80 * MIB, 2 * MIB, False)

    on_loop(work)


def test_connections_are_served_round_robin():
    async def work():
        budget = Budget(80 * MIB)
        holder, greedy, modest = (budget.account(80 * MIB) for _ in range(3))
        holder.hold(80 * MIB)
        served = []

        async def take(account, name):
            await account.acquire(MIB)
            served.append(name)

        tasks = [asyncio.create_task(take(greedy, "greedy")) for _ in range(3)]
        tasks.append(asyncio.create_task(take(modest, "modest")))
        for _ in range(4):
            await asyncio.sleep(0)
            holder.hold(-MIB)
        await asyncio.gather(*tasks)
        assert served == ["greedy", "modest", "greedy", "greedy"]

    on_loop(work)


def test_a_connection_that_has_used_its_share_does_not_delay_others():
    async def work():
        budget = Budget(80 * MIB)
        full, other = budget.account(MIB), budget.account(MIB)
        full.hold(MIB)
        waiting = asyncio.create_task(full.acquire(LARGE))
        await asyncio.sleep(0)
        await other.acquire(LARGE)
        assert not waiting.done()
        assert not budget.is_contended
        full.hold(-MIB)
        await waiting

    on_loop(work)


def test_small_amounts_are_served_while_large_ones_wait_up_to_a_bound():
    async def work():
        budget = Budget(80 * MIB)
        holder, large, small = (budget.account(80 * MIB) for _ in range(3))
        holder.hold(80 * MIB)
        waiting = asyncio.create_task(large.acquire(MIB))
        await asyncio.sleep(0)
        count = 0
        while small.try_reserve(MEMORY_SMALL_SIZE):
            count += 1
        assert count == 10 * MIB // MEMORY_SMALL_SIZE
        assert not waiting.done()
        assert large.fair_size(8 * MIB) == CONTENDED_RESPONSE_SIZE
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert large.fair_size(8 * MIB) == 8 * MIB

    on_loop(work)


def test_a_request_larger_than_the_budget_is_served_alone():
    async def work():
        budget = Budget(8 * MIB)
        account, other = budget.account(8 * MIB), budget.account(8 * MIB)
        await account.acquire(64 * MIB)
        waiting = asyncio.create_task(other.acquire(LARGE))
        await asyncio.sleep(0)
        assert not waiting.done()
        account.hold(-64 * MIB)
        await waiting

    on_loop(work)


@pytest.mark.parametrize("is_granted", [False, True])
def test_a_cancelled_wait_holds_no_memory(is_granted):
    async def work():
        budget = Budget(80 * MIB)
        holder, other = budget.account(80 * MIB), budget.account(80 * MIB)
        holder.hold(80 * MIB)
        waiting = asyncio.create_task(other.acquire(MIB))
        await asyncio.sleep(0)
        if is_granted:
            # It is granted, and the task has not run yet.
            holder.hold(-MIB)
            assert other.used == MIB
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (other.used, budget.is_contended) == (0, False)

    on_loop(work)


def test_a_closed_connection_has_returned_everything():
    """INV-BUDGET-BOUND."""

    async def work():
        memory = PeerMemory(80 * MIB, 80 * MIB)
        gone, other = memory.open(), memory.open()
        gone.working.hold(60 * MIB)
        gone.waiting.hold(MIB)
        assert gone.standing.try_reserve(MIB)
        waiting = asyncio.create_task(other.working.acquire(5 * MIB))
        await asyncio.sleep(0)
        gone.close()
        await waiting
        assert memory.used == 5 * MIB
        # Calls after the close change nothing.
        gone.working.hold(-MIB)
        await gone.working.acquire(MIB)
        assert memory.used == 5 * MIB

    on_loop(work)


def test_a_lease_ends_with_its_block():
    async def work():
        budget = Budget(80 * MIB)
        account = budget.account(80 * MIB)
        with account.lease() as lease:
            await lease.acquire(8 * MIB)
            assert budget.used == 8 * MIB
            lease.resize(MIB)
            assert budget.used == MIB
        assert (budget.used, budget.most) == (0, 8 * MIB)

    on_loop(work)
