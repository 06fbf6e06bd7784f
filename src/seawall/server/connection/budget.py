"""Memory budget for peers: one budget for the node, a share of it for each connection.

The budget counts every byte of heap that a peer can make the server keep, before or as soon as it is allocated:

    waiting   bytes that wait until a session accepts them: received frames, and requests in flight
    working   bytes that are released within a bounded time: an incoming frame, a fetch response, a block that is being
              decompressed, unsent answers
    standing  memory of a subscription for as long as it exists; refused if there is no space

Waiting bytes may wait for working ones, never the other way around. So each kind has a budget of its own, and none can
starve another: working bytes are always released, by progress or by the time limits of `connection`.

There are two ways to count: `hold` counts bytes that exist already and cannot be refused; `acquire` and `lease` wait
until there is space. Waiting connections are served round-robin. A connection over its own share does not delay others,
and no request overtakes the one that is next. The exception are small requests, for which the budget has an extra
eighth beyond its limit: they are served while large ones wait.

Memory of a fixed size (the shared receive buffer, the rings with undecided batches and with those held back for order
5) is not counted: peers cannot make it grow.

INV-BUDGET-BOUND: memory for peers is granted only while the sum fits the budget, and a closed connection has returned
all of its memory. While nothing else is counted, one grant may be larger than the budget.

A crash loses nothing but counters. Thread-safe: several event loops share a budget. This module must not know what is
counted.
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
    """The memory of one kind that a node holds for all its peers."""

    __slots__ = ("_lock", "_queue", "is_contended", "limit", "most", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        #: The highest value of `used`.
        self.most = 0
        #: True if a request waits because the node, not only its own connection, has no space.
        self.is_contended = False
        self._lock = threading.Lock()
        #: Accounts with waiting requests, the next one first.
        self._queue: deque[Account] = deque()

    @property
    def is_over(self) -> bool:
        """True if more is counted than the limit."""
        return self.used > self.limit

    def account(self, limit: int) -> Account:
        """The account of one connection on the running loop; at most an eighth of the budget."""
        return Account(self, min(limit, self.limit // 8), asyncio.get_running_loop())

    def hold(self, account: Account, size: int) -> None:
        """Count bytes that exist already; a negative `size` counts released bytes."""
        with self._lock:
            self._add(account, size)
            if size < 0 and self._queue:
                self._serve()

    def try_reserve(self, account: Account, size: int) -> bool:
        """Count bytes if there is space now and nothing waits for it; False if not."""
        with self._lock:
            return self._try_reserve(account, size)

    def reserve(self, account: Account, size: int, granted: Callable[[], None]) -> bool:
        """Count bytes now if there is space; else call `granted` on the loop of the account once they are counted."""
        with self._lock:
            if self._try_reserve(account, size):
                return True
            if not account.requests:
                self._queue.append(account)
            account.requests.append((size, granted))
            self._serve()
            return False

    def cancel(self, account: Account, granted: Callable[[], None]) -> bool:
        """Cancel the request with this callback; False if its bytes are counted already."""
        with self._lock:
            kept = [request for request in account.requests if request[1] != granted]
            if len(kept) == len(account.requests):
                return False
            account.requests = deque(kept)
            if not kept:
                self._queue.remove(account)
            self._serve()
            return True

    def close(self, account: Account) -> None:
        """Remove a closed connection and everything counted for it."""
        with self._lock:
            if account.requests:
                account.requests.clear()
                self._queue.remove(account)
            self._add(account, -account.used)
            self._serve()

    def _try_reserve(self, account: Account, size: int) -> bool:
        is_small = size <= limits.MEMORY_SMALL_SIZE
        if not is_small and (account.requests or self.is_contended):
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
        """Grant waiting requests, one of each account in turn, up to the first for which the node has no space."""
        self.is_contended = False
        skipped = 0
        while skipped < len(self._queue):
            account = self._queue[0]
            size, granted = account.requests[0]
            if not account.fits(size):
                skipped += 1
            elif not self._fits(size):
                self.is_contended = True
                return
            else:
                account.requests.popleft()
                self._add(account, size)
                account.loop.call_soon_threadsafe(granted)
                skipped = 0
                if not account.requests:
                    self._queue.popleft()
                    continue
            self._queue.rotate(-1)


class Account:
    """The part of a budget that one connection uses. Used on its own loop."""

    __slots__ = ("_budget", "_is_closed", "limit", "loop", "requests", "used")

    def __init__(self, budget: Budget, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._is_closed = False
        self.limit = limit
        self.loop = loop
        self.used = 0
        #: Waiting requests: bytes, and the callback once they are counted.
        self.requests: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_contended(self) -> bool:
        """True if other connections wait for memory that this one, among others, holds."""
        return self._budget.is_contended

    @property
    def is_over(self) -> bool:
        """True if this connection, or the node, is over its limit."""
        return self._budget.is_over or self.used > self.limit

    def fits(self, size: int) -> bool:
        """True if the share of the connection has space; anything fits an empty one."""
        return self.used + size <= self.limit or not self.used

    def hold(self, size: int) -> None:
        """Count bytes that exist already; a negative `size` counts released bytes."""
        if size and not self._is_closed:
            self._budget.hold(self, size)

    def reserve(self, size: int, granted: Callable[[], None]) -> bool:
        """Count bytes now if there is space; else `granted` is called once they are counted."""
        return self._is_closed or self._budget.reserve(self, size, granted)

    def cancel(self, granted: Callable[[], None]) -> bool:
        """Cancel the request with this callback; False if its bytes are counted already."""
        return self._is_closed or self._budget.cancel(self, granted)

    def try_reserve(self, size: int) -> bool:
        """Count bytes if there is space now; False if not."""
        return self._is_closed or self._budget.try_reserve(self, size)

    def fair_size(self, size: int) -> int:
        """The bytes of `size` to read at once: fewer while other connections wait."""
        return min(size, limits.CONTENDED_RESPONSE_SIZE) if self.is_contended else size

    async def acquire(self, size: int) -> None:
        """Count bytes; waits until there is space."""
        is_granted = self.loop.create_future()

        def granted() -> None:
            if not is_granted.done():
                is_granted.set_result(None)

        if self.reserve(size, granted):
            return
        try:
            await is_granted
        except asyncio.CancelledError:
            if not self.cancel(granted):
                self.hold(-size)
            raise

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Count bytes while the `with` block runs."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            lease.resize(0)

    def close(self) -> None:
        """Release everything that is counted for the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.close(self)


class Lease:
    """Bytes that are counted until the end of a block."""

    __slots__ = ("_account", "size")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.size = 0

    async def acquire(self, size: int) -> None:
        """Count bytes; waits until there is space. Call it before anything else is counted."""
        assert not self.size, "a lease waits before it holds anything"
        await self._account.acquire(size)
        self.size = size

    def fair_size(self, size: int) -> int:
        """The same as `Account.fair_size`."""
        return self._account.fair_size(size)

    def resize(self, size: int) -> None:
        """Change the number of counted bytes."""
        self._account.hold(size - self.size)
        self.size = size


@dataclass(frozen=True, slots=True)
class ConnectionMemory:
    """The accounts of one connection in the three budgets."""

    waiting: Account
    working: Account
    standing: Account

    def close(self) -> None:
        """Release all memory of the connection."""
        for account in (self.waiting, self.working, self.standing):
            account.close()


class PeerMemory:
    """The budgets of a node."""

    def __init__(
        self, limit: int = limits.PEER_MEMORY_SIZE, connection_limit: int = limits.CONNECTION_MEMORY_SIZE
    ) -> None:
        """`limit` applies to all peers together, `connection_limit` to each connection."""
        self.limit = limit
        self.waiting, self.working, self.standing = (Budget(part) for part in _parts(limit))
        self._connection_parts = _parts(connection_limit)

    @property
    def used(self) -> int:
        """Bytes that are counted now."""
        return self.waiting.used + self.working.used + self.standing.used

    def open(self) -> ConnectionMemory:
        """The accounts of one more connection, on the running loop."""
        waiting, working, standing = self._connection_parts
        return ConnectionMemory(
            self.waiting.account(waiting), self.working.account(working), self.standing.account(standing)
        )


def _parts(limit: int) -> tuple[int, int, int]:
    """The parts of a limit for waiting, working and standing memory: most is for working."""
    waiting, standing = limit // 4, limit // 8
    return waiting, limit - waiting - standing, standing
