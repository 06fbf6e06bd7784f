"""Memory that a node holds for its peers: one budget for the node, a share of it for each connection.

Every byte that a peer can make the server keep on its heap is counted, before it is kept or as soon as it is there:

    waiting   bytes that wait until a session takes them: received frames, and the requests that are under way
    working   bytes that go away by themselves within a bounded time: a frame that is being received, a portion that is
              read for a reader, a block that is decompressed, answers that are not sent
    standing  what a subscription takes for as long as it lasts; refused where there is no room

Waiting bytes may wait for working ones, never the other way around. So each kind has a budget of its own, and none can
starve another: working bytes always come free, by progress or by the time limits of `connection`.

Two ways to count: `hold` counts what is there already and cannot be refused; `acquire` and `lease` wait until there is
room. Whoever waits is served in turn, one connection after the other; a connection that has used up its own share does
not hold up the others, and nobody overtakes the one whose turn it is. Only small amounts do, for which an eighth is
kept beyond the limit: small requests are served while large ones wait.

What lies in memory of a fixed size (the shared receive buffer, the rings with batches that are not decided and those
held back for order 5) is not counted: peers cannot make it grow.

INV-BUDGET-BOUND: memory for peers is granted only while the sum fits the budget, and a closed connection has returned
all of its memory. Where nothing else is counted, one grant may be larger.

A crash takes nothing but numbers. Safe from the loops of several brokers. This module must not know what is counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from seawall import limits

__all__ = ["Account", "Budget", "ConnectionMemory", "Lease", "PeerMemory"]


class Budget:
    """Bytes of one kind that a node holds for all its peers."""

    __slots__ = ("_lock", "_queue", "is_contended", "limit", "most", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        #: The most that was ever counted.
        self.most = 0
        #: Whether somebody waits because the node, and not its own connection, has no room.
        self.is_contended = False
        self._lock = threading.Lock()
        #: Accounts with somebody who waits, the next one first.
        self._queue: deque[Account] = deque()

    @property
    def is_over(self) -> bool:
        """Whether more is counted than there should be."""
        return self.used > self.limit

    def account(self, limit: int) -> Account:
        """The share of one connection, on the running loop; one has no more than an eighth."""
        return Account(self, min(limit, self.limit // 8), asyncio.get_running_loop())

    def change(self, account: Account, size: int) -> None:
        """Count bytes that are there already, or, if `size` is negative, that are gone."""
        with self._lock:
            self._add(account, size)
            if size < 0 and self._queue:
                self._serve()

    def try_take(self, account: Account, size: int) -> bool:
        """Count bytes if there is room now, and nobody waits for it; whether there was."""
        with self._lock:
            return self._take(account, size)

    def take(self, account: Account, size: int, granted: Callable[[], None]) -> bool:
        """Count bytes if there is room now; else call `granted` on the loop of the account when they are counted."""
        with self._lock:
            if self._take(account, size):
                return True
            if not account.tickets:
                self._queue.append(account)
            account.tickets.append((size, granted))
            self._serve()
            return False

    def leave(self, account: Account, granted: Callable[[], None]) -> bool:
        """Nobody waits with this callback any more; false if its bytes are counted already."""
        with self._lock:
            kept = [ticket for ticket in account.tickets if ticket[1] != granted]
            if len(kept) == len(account.tickets):
                return False
            account.tickets = deque(kept)
            if not kept:
                self._queue.remove(account)
            self._serve()
            return True

    def close(self, account: Account) -> None:
        """A connection is gone, with everything that was counted for it."""
        with self._lock:
            if account.tickets:
                account.tickets.clear()
                self._queue.remove(account)
            self._add(account, -account.used)
            self._serve()

    def _take(self, account: Account, size: int) -> bool:
        is_small = size <= limits.MEMORY_SMALL_SIZE
        if not is_small and (account.tickets or self.is_contended):
            return False
        if not account.fits(size) or not self._fits(size):
            return False
        self._add(account, size)
        return True

    def _fits(self, size: int) -> bool:
        limit = self.limit + self.limit // 8 if size <= limits.MEMORY_SMALL_SIZE else self.limit
        return self.used + size <= limit or not self.used

    def _add(self, account: Account, size: int) -> None:
        account.used += size
        self.used += size
        self.most = max(self.most, self.used)

    def _serve(self) -> None:
        """Grant what has room now, one ticket of each account in turn, up to one that the node has no room for."""
        self.is_contended = False
        skipped = 0
        while skipped < len(self._queue):
            account = self._queue[0]
            size, granted = account.tickets[0]
            if not account.fits(size):
                skipped += 1
            elif not self._fits(size):
                self.is_contended = True
                return
            else:
                account.tickets.popleft()
                self._add(account, size)
                account.loop.call_soon_threadsafe(granted)
                skipped = 0
                if not account.tickets:
                    self._queue.popleft()
                    continue
            self._queue.rotate(-1)


class Account:
    """What one connection has of a budget. Used on its own loop."""

    __slots__ = ("_budget", "_is_closed", "limit", "loop", "tickets", "used")

    def __init__(self, budget: Budget, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._is_closed = False
        self.limit = limit
        self.loop = loop
        self.used = 0
        #: Who waits: how many bytes, and what to call when they are counted.
        self.tickets: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_contended(self) -> bool:
        """Whether other connections wait for what this one, among others, holds."""
        return self._budget.is_contended

    @property
    def is_over(self) -> bool:
        """Whether this connection, or the node, holds more than it should."""
        return self._budget.is_over or self.used > self.limit

    def fits(self, size: int) -> bool:
        """Whether the share of the connection has room for so many bytes; something always fits an empty one."""
        return self.used + size <= self.limit or not self.used

    def hold(self, size: int) -> None:
        """Count bytes that are there already, or, if `size` is negative, that are gone."""
        if size and not self._is_closed:
            self._budget.change(self, size)

    def take(self, size: int, granted: Callable[[], None]) -> bool:
        """Count bytes if there is room now; else `granted` is called once they are counted."""
        return self._is_closed or self._budget.take(self, size, granted)

    def leave(self, granted: Callable[[], None]) -> bool:
        """Wait no more with this callback; false if its bytes are counted already."""
        return self._is_closed or self._budget.leave(self, granted)

    def try_take(self, size: int) -> bool:
        """Count bytes if there is room now; whether there was."""
        return self._is_closed or self._budget.try_take(self, size)

    def portion(self, size: int) -> int:
        """How much of so many bytes is read at once: less while others wait, so that more of them are served."""
        return min(size, limits.CONTENDED_PORTION_SIZE) if self.is_contended else size

    async def acquire(self, size: int) -> None:
        """Count bytes, and wait until they have room."""
        turn = self.loop.create_future()

        def granted() -> None:
            if not turn.done():
                turn.set_result(None)

        if self.take(size, granted):
            return
        try:
            await turn
        except asyncio.CancelledError:
            if not self.leave(granted):
                self.hold(-size)
            raise

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Count bytes while the block runs."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            lease.resize(0)

    def close(self) -> None:
        """The connection is gone: nothing is counted for it any more."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.close(self)


class Lease:
    """Bytes that are counted for now."""

    __slots__ = ("_account", "size")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.size = 0

    async def acquire(self, size: int) -> None:
        """Count bytes, and wait until they have room; once, before anything else is counted."""
        assert not self.size, "who waits holds nothing"
        await self._account.acquire(size)
        self.size = size

    def portion(self, size: int) -> int:
        """As `Account.portion`."""
        return self._account.portion(size)

    def resize(self, size: int) -> None:
        """It is known now how many bytes they are."""
        self._account.hold(size - self.size)
        self.size = size


@dataclass(frozen=True, slots=True)
class ConnectionMemory:
    """What one connection has of both budgets."""

    waiting: Account
    working: Account
    standing: Account

    def close(self) -> None:
        """The connection is gone."""
        for account in (self.waiting, self.working, self.standing):
            account.close()


class PeerMemory:
    """The budgets of a node."""

    def __init__(
        self, limit: int = limits.PEER_MEMORY_SIZE, connection_limit: int = limits.CONNECTION_MEMORY_SIZE
    ) -> None:
        """`limit` is for all peers together, `connection_limit` for each connection."""
        self.limit = limit
        self.waiting, self.working, self.standing = (Budget(part) for part in _parts(limit))
        self._connection_parts = _parts(connection_limit)

    @property
    def used(self) -> int:
        """Bytes that are held now."""
        return self.waiting.used + self.working.used + self.standing.used

    def open(self) -> ConnectionMemory:
        """What one more connection has of them, on the running loop."""
        waiting, working, standing = self._connection_parts
        return ConnectionMemory(
            self.waiting.account(waiting), self.working.account(working), self.standing.account(standing)
        )


def _parts(limit: int) -> tuple[int, int, int]:
    """What may wait, work and stand of a limit: most of it works."""
    waiting, standing = limit // 4, limit // 8
    return waiting, limit - waiting - standing, standing
