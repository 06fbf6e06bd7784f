"""A model of an order worker, with dicts and sets, that the arrays are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from order_pod import SYNTHETIC

UNKNOWN = (1 << 64) - 1
DUPLICATE, REJECTED, RETRY = 1, 2, 4
FENCED, OUTSIDE, SKIPPED, MISMATCH = 0x24, 0x25, 0x26, 0x28
STRONG, SKIP, SKIP_RANGE, NOP, CONTROL = 1, 8, 16, 32, 64


@dataclass(eq=False)
class Slot:
    """A slot as its broker published it; an abandoned one has no fields."""

    broker: int
    index: int
    client: int = 0
    seq: int = 0
    crc: int = 0
    topic: int = 0
    epoch: int = 0
    flags: int = 0


@dataclass(eq=False)
class Fate:
    """The result of a stored batch."""

    crc: int
    position: int = UNKNOWN
    numbers: tuple[int, int] = (0, 0)
    reason: int = 0


@dataclass(eq=False)
class Entry:
    """An entry to write: its slot, and its result."""

    flags: int
    slot: Slot | None = None
    status: int = 0
    reason: int = 0
    fate: Fate | None = None
    client: int = 0
    seq: int = 0
    count: int = 0
    topic: int = 0
    #: Numbers that were known when it was decided.
    numbers: tuple[int, int] = (0, 0)


@dataclass(eq=False)
class Client:
    epoch: int
    next: int
    highest: int
    gap_ns: int = 0
    stored: set[int] = field(default_factory=set)
    refused: dict[int, int] = field(default_factory=dict)
    known: dict[int, Fate] = field(default_factory=dict)
    held: dict[int, Slot] = field(default_factory=dict)
    gap_since: int = 0
    last_seen: int = 0
    page: int = -1

    def judge(self, slot: Slot) -> str:
        if slot.epoch != self.epoch:
            return "fenced"
        if slot.seq < 1 or not self.highest - 255 <= slot.seq <= self.next + 255:
            return "outside"
        if slot.seq in self.stored:
            return "duplicate"
        return "refused" if slot.seq in self.refused or slot.seq < self.next else "new"

    def raise_highest(self, seq: int) -> None:
        self.highest = max(self.highest, seq)
        for gone in range(min((*self.stored, *self.refused, self.highest)), self.highest - 255):
            self.stored.discard(gone)
            self.refused.pop(gone, None)
            self.known.pop(gone, None)

    def raise_next(self, seq: int) -> None:
        self.next = seq
        while self.next in self.stored or self.next in self.refused:
            self.next += 1


class Worker:
    """One worker; `hold_high`, `pin_limit`, `silence_ns` as in its settings, `pages` clients hold at a time."""

    def __init__(self, hold_high: int, pages: int, pin_limit: int, silence_ns: int, memories: int) -> None:
        self.hold_high, self.pin_limit, self.silence_ns = hold_high, pin_limit, silence_ns
        self.clients: dict[int, Client] = {}
        self.ready: list[Entry] = []
        self.unsettled: list[tuple[Fate, Client, int]] = []
        self.holding: list[tuple[Client, Slot]] = []
        self.free_pages = list(range(pages))
        #: Whose results are remembered, from the hand on, and which of them are spared once.
        self.memories: list[Client | None] = [None] * memories
        self.spared: list[Client] = []

    def nop(self, slot: Slot, status: int, reason: int = 0) -> None:
        self.ready.append(Entry(NOP, slot, status, reason))

    def take(self, slot: Slot, now: int) -> None:
        """Decide on one slot."""
        if slot.flags & NOP:
            return self.nop(slot, RETRY)
        if slot.client >= SYNTHETIC:
            return self.ready.append(Entry(slot.flags & 5, slot))
        client = self.clients.get(slot.client)
        if client is None:
            return self.nop(slot, REJECTED, FENCED)
        verdict = client.judge(slot)
        if verdict != "fenced":
            client.last_seen = now
        if verdict == "new":
            return self.take_new(client, slot, now)
        fate = client.known.get(slot.seq)
        if verdict in ("duplicate", "refused") and fate and fate.crc != slot.crc:
            return self.nop(slot, REJECTED, MISMATCH)
        if verdict == "duplicate":
            numbers = fate.numbers if fate else (0, 0)
            return self.ready.append(Entry(NOP, slot, DUPLICATE, 0, fate, numbers=numbers))
        reasons = {"fenced": FENCED, "outside": OUTSIDE, "refused": fate.reason if fate else SKIPPED}
        return self.nop(slot, REJECTED, reasons[verdict] or SKIPPED)

    def take_new(self, client: Client, slot: Slot, now: int) -> None:
        other = client.held.get(slot.seq)
        if other:
            self.nop(slot, *((RETRY, 0) if other.crc == slot.crc else (REJECTED, MISMATCH)))
        elif slot.flags & STRONG and slot.seq > client.next:
            self.hold(client, slot, now)
        else:
            self.store(client, slot)
            self.release(client, now)

    def store(self, client: Client, slot: Slot) -> None:
        fate = Fate(slot.crc)
        self.remember(client)
        client.raise_highest(slot.seq)
        client.stored.add(slot.seq)
        client.known[slot.seq] = fate
        client.raise_next(client.next)
        self.ready.append(Entry(slot.flags & 5, slot, fate=fate))

    def remember(self, client: Client) -> None:
        """The client's memory is spared the next time; if it has none it gets the first that is not spared."""
        if client in self.memories:
            self.spared.append(client)
            return
        while (owner := self.memories.pop(0)) in self.spared:
            self.spared = [each for each in self.spared if each is not owner]
            self.memories.append(owner)
        if owner:
            owner.known.clear()
        self.memories.append(client)

    def evict(self, client_id: int) -> None:
        """Forget everything that a row does not keep."""
        client = self.clients[client_id]
        busy = [*(each for each, _ in self.holding), *(each for _, each, _ in self.unsettled)]
        assert client not in busy
        assert not [entry for entry in self.ready if entry.fate and entry.fate in client.known.values()]
        client.refused.clear()
        client.known.clear()
        client.gap_ns = 0
        self.memories = [None if owner is client else owner for owner in self.memories]
        self.spared = [each for each in self.spared if each is not client]

    def hold(self, client: Client, slot: Slot, now: int) -> None:
        while len(self.holding) >= self.hold_high or (client.page < 0 and not self.free_pages):
            self.bounce(*self.holding[0], RETRY)
        if client.page < 0:
            client.page = self.free_pages.pop(0)
            client.gap_since = client.last_seen = now
        client.held[slot.seq] = slot
        self.holding.append((client, slot))

    def unhold(self, client: Client, slot: Slot) -> None:
        del client.held[slot.seq]
        self.holding.remove((client, slot))
        if not client.held:
            self.free_pages.insert(0, client.page)
            client.page = -1

    def bounce(self, client: Client, slot: Slot, status: int, reason: int = 0) -> None:
        self.unhold(client, slot)
        self.nop(slot, status, reason)

    def release(self, client: Client, now: int) -> None:
        released = False
        while client.next in client.held:
            slot = client.held[client.next]
            self.unhold(client, slot)
            self.store(client, slot)
            released = True
        if released:
            client.gap_since = now

    def bounce_pinned(self, cursors: list[int], needed: list[int]) -> None:
        """Slots too far behind a cursor, and those below the first whose bytes are not needed."""
        for broker, cursor in enumerate(cursors):
            for client, slot in list(self.holding):
                is_pinning = cursor - slot.index >= self.pin_limit or slot.index < needed[broker]
                if slot.broker == broker and is_pinning:
                    self.bounce(client, slot, RETRY)

    def deadline(self, client: Client) -> int:
        if client.gap_ns:
            return client.gap_since + client.gap_ns
        return max(client.last_seen, client.gap_since) + self.silence_ns

    def expire(self, now: int) -> None:
        """Skip the missing seqs of clients whose timeout is over, by the number of their page."""
        waiting = [(client.page, client_id) for client_id, client in self.clients.items() if client.held]
        for _, client_id in sorted(waiting):
            if now >= self.deadline(self.clients[client_id]):
                self.skip_gap(client_id, now)

    def skip_gap(self, client_id: int, now: int) -> None:
        client = self.clients[client_id]
        lowest = min(client.held)
        topic = client.held[lowest].topic
        while client.next < lowest:
            first = seq = client.next
            while seq < lowest and seq not in client.stored and seq not in client.refused:
                seq += 1
            flags = SKIP | SKIP_RANGE if seq - first > 1 else SKIP
            self.ready.append(Entry(flags, client=client_id, seq=first, count=seq - first, topic=topic))
            client.raise_highest(seq - 1)
            client.raise_next(seq)
        self.release(client, now)

    def open(self, client_id: int, epoch: int, start: int, gap_ns: int) -> int:
        client = self.clients.setdefault(client_id, Client(epoch, start, start - 1))
        client.epoch, client.gap_ns = epoch, gap_ns
        for seq in sorted(client.held, key=lambda each: each % 256):
            self.bounce(client, client.held[seq], REJECTED, FENCED)
        self.ready.append(Entry(CONTROL, None, client=client_id, seq=client.next))
        return client.next

    def settle(self, committed: int, refusals: dict[int, int]) -> None:
        while self.unsettled and self.unsettled[0][0].position < committed:
            fate, client, seq = self.unsettled.pop(0)
            reason = refusals.get(fate.position, 0)
            if not reason:
                fate.numbers = (fate.position + 1_000, fate.position + 2_000)
            elif seq in client.stored:
                client.stored.remove(seq)
                client.refused[seq] = fate.reason = reason
