"""A client's window as sets of seqs: read from the arrays, changed, written back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from seawall.kernels.admission.client_index import IndexTable
from seawall.kernels.admission.client_window import (
    BITS,
    CHECK_DUPLICATE,
    CHECK_FENCED,
    CHECK_MISMATCH,
    CHECK_NEW,
    CHECK_OUTSIDE,
    CHECK_REFUSED,
    CHECK_SKIPPED,
    CHECK_UNKNOWN_CLIENT,
    CLIENT_SEQ_MAX,
    HIGHEST_SEEN,
    NEXT_EXPECTED,
    SESSION_EPOCH,
    SIDE_DECIDED_AT,
    SIDE_MEMORY,
    SLOT_COUNT,
    SLOT_DECISIONS,
    SLOT_HAND,
    STATUS_STORED,
    WINDOW,
    Rows,
    WindowArrays,
    Words,
)
from seawall.kernels.runtime.tables import ABSENT, Values
from twins.admission.client_index import find_row

_UNKNOWN = 0xFFFF_FFFF_FFFF_FFFF
_SPARED = 1 << 32
_NUMBERS = ("position", "base_seq", "timestamp_ns", "block_crc", "reason", "status")


def _seqs(words: Words, row: int, highest: int) -> set[int]:
    """The seqs whose bits are set, in a window that ends at `highest`."""
    bitmap = b"".join(int(word).to_bytes(8, "little") for word in words[row, BITS:])
    return {seq for seq in range(highest - WINDOW + 1, highest + 1) if bitmap[seq % WINDOW // 8] >> seq % 8 & 1}


def _write_seqs(words: Words, row: int, seqs: set[int]) -> None:
    bitmap = sum(1 << seq % WINDOW for seq in seqs)
    for word in range(4):
        words[row, BITS + word] = bitmap >> 64 * word & 0xFFFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class _Client:
    """One client, read from its arrays."""

    row: int
    epoch: int
    next_expected: int
    highest: int
    stored: set[int]
    refused: set[int]
    known: set[int]
    slot: int | None

    @classmethod
    def read(cls, row: int, clients: Words, sides: Words, slots: Words | None) -> _Client:
        highest = int(clients[row, HIGHEST_SEEN])
        slot = None if slots is None or own_memory(sides, slots, row) == ABSENT else int(sides[row, SIDE_MEMORY]) - 1
        return cls(
            row=row,
            epoch=int(clients[row, SESSION_EPOCH]),
            next_expected=int(clients[row, NEXT_EXPECTED]),
            highest=highest,
            stored=_seqs(clients, row, highest),
            refused=_seqs(sides, row, highest),
            known=set() if slot is None or slots is None else _seqs(slots, slot, highest),
            slot=slot,
        )

    def write(self, clients: Words, sides: Words, slots: Words) -> None:
        clients[self.row, NEXT_EXPECTED] = self.next_expected
        clients[self.row, HIGHEST_SEEN] = self.highest
        _write_seqs(clients, self.row, self.stored)
        _write_seqs(sides, self.row, self.refused)
        if self.slot is not None:
            _write_seqs(slots, self.slot, self.known)

    def judge(self, client_seq: int) -> int:
        if not 1 <= client_seq <= CLIENT_SEQ_MAX:
            return CHECK_OUTSIDE
        if not self.highest - 255 <= client_seq <= self.next_expected + 255:
            return CHECK_OUTSIDE
        if client_seq in self.stored:
            return CHECK_DUPLICATE
        if client_seq in self.refused:
            return CHECK_REFUSED
        return CHECK_SKIPPED if client_seq < self.next_expected else CHECK_NEW

    def raise_highest(self, highest: int) -> None:
        self.highest = max(self.highest, highest)
        for seqs in (self.stored, self.refused, self.known):
            seqs -= {seq for seq in seqs if seq <= self.highest - WINDOW}

    def raise_next(self, next_expected: int) -> None:
        self.next_expected = next_expected
        while self.next_expected in self.stored | self.refused:
            self.next_expected += 1


def judge_row(client_seq: int, session_epoch: int, clients: Words, sides: Words, row: int) -> int:
    """Classify a seq of a known client; an epoch of −1 matches any session."""
    client = _Client.read(row, clients, sides, None)
    if session_epoch != -1 and client.epoch % (1 << 32) != session_epoch % (1 << 32):
        return CHECK_FENCED
    return client.judge(client_seq)


def owner_word(slots: Words, slot: int) -> int:
    """The word of a slot in the rows after the memories."""
    count = int(slots[-1, SLOT_COUNT])
    return int(slots[count:].reshape(-1)[slot])


def set_owner_word(slots: Words, slot: int, owner: int) -> None:
    """Set the word of a slot."""
    slots[int(slots[-1, SLOT_COUNT]) :].reshape(-1)[slot] = owner


def own_memory(sides: Words, slots: Words, row: int) -> int:
    """The slot that a client refers to, if the slot refers to the client."""
    named = int(sides[row, SIDE_MEMORY]) - 1
    owners = [owner_word(slots, slot) % (1 << 32) for slot in range(int(slots[-1, SLOT_COUNT]))]
    return named if named >= 0 and owners[named] == row + 1 else ABSENT


def next_memory(slots: Words, slot: int) -> int:
    """The next slot, modulo their number."""
    return (slot + 1) % int(slots[-1, SLOT_COUNT])


def first_result(slot: int) -> int:
    """One cache line (two results) after that of the memory before it, modulo the window."""
    return 2 * slot % WINDOW


def index_of_result(slots: Words, slot: int, seq: int) -> int:
    """The rotated seq, among the 256 results of the memory."""
    return slot * WINDOW + (seq + (owner_word(slots, slot) >> 40)) % WINDOW


def known_result(client_seq: int, sides: Words, slots: Words, row: int) -> int:
    """The index in the client's memory, if the memory knows the seq."""
    slot = own_memory(sides, slots, row)
    if slot == ABSENT or client_seq % WINDOW not in {seq % WINDOW for seq in _seqs(slots, slot, WINDOW)}:
        return ABSENT
    return index_of_result(slots, slot, client_seq)


def check_batch(
    client_id: int,
    session_epoch: int,
    client_seq: int,
    block_crc: int,
    window: WindowArrays,
    answers: Rows,
    index: int,
) -> int:
    """Classify a batch, and copy the result of the original if it is cached."""
    table, clients, sides, slots, results = window
    answers[index] = (_UNKNOWN, 0, 0, 0, 0, 0, 0)
    if client_id >= 1 << 63:
        return CHECK_NEW
    row = find_row(table, clients, client_id)
    if row == ABSENT:
        return CHECK_UNKNOWN_CLIENT
    code = judge_row(client_seq, session_epoch, clients, sides, row)
    at = known_result(client_seq, sides, slots, row)
    if code in (CHECK_DUPLICATE, CHECK_REFUSED) and at >= 0:
        result = results[at]
        if int(result["block_crc"]) != block_crc:
            return CHECK_MISMATCH
        answers[index] = (*(result[name] for name in _NUMBERS), 1)
    return code


def _take_slot(client: _Client, seq: int, sides: Words, slots: Words) -> int:
    """The client's memory, now marked as recently used, or the first unmarked one from the hand on."""
    if client.slot is not None:
        set_owner_word(slots, client.slot, owner_word(slots, client.slot) | _SPARED)
        return client.slot
    count, hand = int(slots[-1, SLOT_COUNT]), int(slots[-1, SLOT_HAND])
    order = [(hand + step) % count for step in range(count)]
    spared = list(takewhile(lambda slot: owner_word(slots, slot) & _SPARED, order))
    for slot in spared:
        set_owner_word(slots, slot, owner_word(slots, slot) - _SPARED)
    slot = order[len(spared) % count]
    slots[-1, SLOT_HAND] = (slot + 1) % count
    sides[client.row, SIDE_MEMORY] = slot + 1
    set_owner_word(slots, slot, client.row + 1 + ((first_result(slot) - seq) % WINDOW << 40))
    client.slot = slot
    return slot


def decide_row(client_seq: int, stored: int, clients: Words, sides: Words, slots: Words, row: int) -> int:
    """Decide a new seq, and count the decision."""
    client = _Client.read(row, clients, sides, slots)
    slot = _take_slot(client, client_seq, sides, slots)
    client.raise_highest(client_seq)
    (client.stored if stored else client.refused).add(client_seq)
    client.known.add(client_seq)
    client.raise_next(client.next_expected)
    client.write(clients, sides, slots)
    decisions = int(slots[-1, SLOT_DECISIONS]) + 1
    slots[-1, SLOT_DECISIONS] = decisions
    sides[row, SIDE_DECIDED_AT] = decisions
    return index_of_result(slots, slot, client_seq)


def refuse_row(client_seq: int, clients: Words, sides: Words, row: int) -> int:
    """Move a seq from the stored to the refused ones."""
    client = _Client.read(row, clients, sides, None)
    if client_seq not in client.stored:
        return 0
    client.stored.remove(client_seq)
    client.refused.add(client_seq)
    _write_seqs(clients, row, client.stored)
    _write_seqs(sides, row, client.refused)
    return 1


def skip_run(end: int, clients: Words, sides: Words, slots: Words, row: int) -> int:
    """Skip the first run of undecided seqs."""
    client = _Client.read(row, clients, sides, slots)
    first = seq = client.next_expected
    while seq < end and seq not in client.stored | client.refused:
        seq += 1
    if seq > first:
        client.raise_highest(seq - 1)
        client.raise_next(seq)
        client.write(clients, sides, slots)
    return seq - first


def decide_batch(
    client_id: int,
    client_seq: int,
    window: WindowArrays,
    outcomes: Rows,
    index: int,
) -> int:
    """Record the outcome of a new batch."""
    table, clients, sides, slots, results = window
    if client_id >= 1 << 63:
        return CHECK_NEW
    row = find_row(table, clients, client_id)
    if row == ABSENT:
        return CHECK_UNKNOWN_CLIENT
    code = judge_row(client_seq, -1, clients, sides, row)
    if code != CHECK_NEW:
        return code
    at = decide_row(client_seq, int(outcomes[index]["status"] == STATUS_STORED), clients, sides, slots, row)
    results[at] = (*(outcomes[index][name] for name in _NUMBERS), 1)
    return CHECK_NEW


def skip_to(
    client_id: int,
    next_expected: int,
    table: IndexTable,
    clients: Words,
    sides: Words,
    slots: Words,
) -> int:
    """Skip every undecided seq below `next_expected`."""
    row = find_row(table, clients, client_id)
    if row == ABSENT:
        return CHECK_UNKNOWN_CLIENT
    client = _Client.read(row, clients, sides, slots)
    if next_expected <= client.next_expected:
        return CHECK_OUTSIDE
    client.raise_highest(next_expected - 1)
    client.raise_next(next_expected)
    client.write(clients, sides, slots)
    return CHECK_NEW


def check_many(
    batches: Rows,
    count: int,
    window: WindowArrays,
    answers: Rows,
    codes: Values,
) -> None:
    """`check_batch` for each batch."""
    for index, batch in enumerate(batches[:count].tolist()):
        client_id, client_seq, session_epoch, block_crc = batch
        codes[index] = check_batch(client_id, session_epoch, client_seq, block_crc, window, answers, index)


def decide_many(
    batches: Rows,
    count: int,
    window: WindowArrays,
    outcomes: Rows,
    codes: Values,
) -> None:
    """`decide_batch` for each batch, in order."""
    for index, batch in enumerate(batches[:count].tolist()):
        client_id, client_seq, *_ = batch
        codes[index] = decide_batch(client_id, client_seq, window, outcomes, index)
