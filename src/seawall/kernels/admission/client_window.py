"""Detects repeated batches: a window of 256 client seqs for each client, in arrays.

A client is one row of `clients`, eight u64, which is also what snapshots store (64 bytes, little-endian):

    0  8 client_id          16 8 next_expected: lowest client seq not decided     32 32 bitmap: client seq s is
    8  8 session_epoch      24 8 highest_seen: highest client seq decided               bit s mod 256, 1 = stored

and one row of `sides`, eight u64 that are not stored: slot of its memory + 1 (0 = none), number of the last decision,
page of held batches + 1, time limit of a gap (`holding`), and the bitmap of decided seqs that were *refused*.

The *memory* of a client caches its results: one row of `slots` (four zeros, bitmap of seqs with a known result) and 256
results. There are fewer memories than clients; the CLOCK algorithm evicts: the hand takes the next memory, but skips
once a memory whose client was decided since the hand last passed. After the memories, `slots` holds one *owner* word
for each: the owner's row + 1, the second-chance bit, and the rotation. Most lookups of a memory find that another one
owns it by now; these words are so small that all of them stay in the cache. The last row of `slots` holds the number of
memories, the hand, and the count of decisions.

The result of a seq is at (seq + rotation) mod 256. When a memory changes its owner, the rotation is set so that the
first seq falls on a cache line chosen for this memory: clients that come and go touch one line of each memory, a small
part of the whole. The next memory uses the next line; lines that are a whole memory apart would compete for the same
few sets of the cache.

Evicting a memory does not touch the row of its former owner, which would be one more cache miss: a memory belongs to a
client only if each refers to the other.

The window covers client seqs from highest_seen − 255 to next_expected + 255. A seq inside has
    stored bit          decided and stored: a repetition is a duplicate, or a mismatch if its block differs
    refused bit         decided and not stored: a repetition gets the same answer, and never an ack
    no bit, below next  skipped, abandoned, or refused before a restart: never stored, never an ack
    no bit, from next   new

INV-WINDOW-EXACT: no client seq is decided twice, and only a stored batch is called a duplicate. next_expected − 1 ≤
highest_seen ≤ next_expected + 255, so 256 bits distinguish all seqs; the seq next_expected is not decided, and each seq
below it is decided or skipped.

A client id with the top bit set belongs to a connection without a session: its batches are always new, and nothing is
recorded. Batch headers carry the low 32 bits of a session epoch, so the check compares only those.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.admission.client_index import IndexTable, find_row
from seawall.kernels.runtime.jit import int64, int64_out, kernel, record_array, tuple_of, uint32_out, uint64, void
from seawall.kernels.runtime.memory import LINE_SIZE, as_int64
from seawall.kernels.runtime.tables import ABSENT, Values

Words = npt.NDArray[np.uint64]
Rows: TypeAlias = npt.NDArray[np.void]
#: The state of a window: index table, clients, sides, slots, results.
WindowArrays: TypeAlias = tuple[IndexTable, Words, Words, Words, Rows]

WINDOW = 256
#: The highest client seq, low enough that arithmetic on it does not overflow.
CLIENT_SEQ_MAX = 1 << 62

#: Columns of a row of `clients`, `sides` and `slots`. All three have their bitmap in the last four.
ROW_WORDS = 8
BITS = 4
SESSION_EPOCH = 1
NEXT_EXPECTED = 2
HIGHEST_SEEN = 3
SIDE_MEMORY = 0
SIDE_DECIDED_AT = 1
SIDE_PAGE = 2
SIDE_GAP_NS = 3
#: Columns of the last row of `slots`.
SLOT_COUNT = 0
SLOT_HAND = 1
SLOT_DECISIONS = 3

#: An owner word: the owner's row + 1 in the low half, the second-chance bit, and the rotation from this bit on.
OWNER_REFERENCED = 1 << 32
OWNER_ROTATION = 40

#: The identity of one batch, as input of a check.
WINDOW_BATCH = np.dtype(
    [("client_id", np.uint64), ("client_seq", np.uint64), ("session_epoch", np.uint32), ("block_crc", np.uint32)]
)
assert WINDOW_BATCH.itemsize == 24

#: The outcome of a batch. `known` is 0 if the numbers were evicted; position and base seq are then unknown.
WINDOW_RESULT = np.dtype(
    [
        ("position", np.uint64),
        ("base_seq", np.uint64),
        ("timestamp_ns", np.uint64),
        ("block_crc", np.uint32),
        ("reason", np.uint16),
        ("status", np.uint8),
        ("known", np.uint8),
    ]
)
assert WINDOW_RESULT.itemsize == 32

#: `status` of a stored batch, as in an ACK; every other status is a refusal.
STATUS_STORED = 0

#: Results of a check.
CHECK_NEW = 0
CHECK_DUPLICATE = 1
CHECK_REFUSED = 2
CHECK_SKIPPED = 3
CHECK_MISMATCH = 4
CHECK_OUTSIDE = 5
CHECK_FENCED = 6
CHECK_UNKNOWN_CLIENT = 7

_words = types.Array(types.uint64, 2, "C")
_batches = record_array(WINDOW_BATCH)
_results = record_array(WINDOW_RESULT)
#: The type of `WindowArrays`.
window_arrays = tuple_of(uint32_out, _words, _words, _words, _results)
_ONE = np.uint64(1)
_UNKNOWN = np.uint64(0xFFFFFFFFFFFFFFFF)
_SYNTHETIC_SHIFT = np.uint64(63)
_LOW = 0xFFFFFFFF
_RESULTS_PER_LINE = LINE_SIZE // WINDOW_RESULT.itemsize


@kernel(types.boolean(_words, int64, int64), inline=True, counted=False)
def _is_marked(words: Words, row: int, seq: int) -> bool:
    word = words[row, BITS + ((seq >> 6) & 3)]
    return bool((word >> np.uint64(seq & 63)) & _ONE)


@kernel(void(_words, int64, int64), inline=True, counted=False)
def _mark(words: Words, row: int, seq: int) -> None:
    words[row, BITS + ((seq >> 6) & 3)] |= _ONE << np.uint64(seq & 63)


@kernel(void(_words, int64, int64), inline=True, counted=False)
def _unmark(words: Words, row: int, seq: int) -> None:
    words[row, BITS + ((seq >> 6) & 3)] &= ~(_ONE << np.uint64(seq & 63))


@kernel(int64(int64, int64, _words, _words, int64), inline=True, counted=False)
def judge_row(client_seq: int, session_epoch: int, clients: Words, sides: Words, row: int) -> int:
    """Classify a seq of a known client by its bitmaps: a CHECK code. An epoch of -1 is not compared."""
    if session_epoch >= 0 and (as_int64(clients[row, SESSION_EPOCH]) & _LOW) != (session_epoch & _LOW):
        return CHECK_FENCED
    if client_seq < 1 or client_seq > CLIENT_SEQ_MAX:
        return CHECK_OUTSIDE
    next_expected = as_int64(clients[row, NEXT_EXPECTED])
    highest = as_int64(clients[row, HIGHEST_SEEN])
    if client_seq - next_expected >= WINDOW or highest - client_seq >= WINDOW:
        return CHECK_OUTSIDE
    if client_seq > highest:
        return CHECK_NEW
    if _is_marked(clients, row, client_seq):
        return CHECK_DUPLICATE
    if _is_marked(sides, row, client_seq):
        return CHECK_REFUSED
    return CHECK_SKIPPED if client_seq < next_expected else CHECK_NEW


def slot_rows(memories: int) -> int:
    """Rows of `slots` for a number of memories: theirs, the owner words and the last row."""
    return memories + -(-memories // ROW_WORDS) + 1


@kernel(int64(_words, int64), inline=True, counted=False)
def owner_word(slots: Words, slot: int) -> int:
    """The owner word of a slot."""
    first = as_int64(slots[slots.shape[0] - 1, SLOT_COUNT])
    return as_int64(slots[first + (slot >> 3), slot & 7])


@kernel(void(_words, int64, int64), inline=True, counted=False)
def set_owner_word(slots: Words, slot: int, owner: int) -> None:
    """Set the owner word of a slot."""
    first = as_int64(slots[slots.shape[0] - 1, SLOT_COUNT])
    slots[first + (slot >> 3), slot & 7] = owner


@kernel(int64(_words, _words, int64), inline=True, counted=False)
def own_memory(sides: Words, slots: Words, row: int) -> int:
    """The memory slot of a client, or ABSENT if it has none or another client owns it now."""
    slot = as_int64(sides[row, SIDE_MEMORY]) - 1
    return slot if slot >= 0 and owner_word(slots, slot) & _LOW == row + 1 else ABSENT


@kernel(int64(int64), inline=True, counted=False)
def first_result(slot: int) -> int:
    """The index, among its 256 results, at which a memory starts when its owner changes."""
    return slot * _RESULTS_PER_LINE & (WINDOW - 1)


@kernel(int64(_words, int64, int64), inline=True, counted=False)
def index_of_result(slots: Words, slot: int, seq: int) -> int:
    """The index in `results` of a seq, for a memory slot."""
    return slot * WINDOW + ((seq + (owner_word(slots, slot) >> OWNER_ROTATION)) & (WINDOW - 1))


@kernel(int64(int64, _words, _words, int64), inline=True, counted=False)
def known_result(client_seq: int, sides: Words, slots: Words, row: int) -> int:
    """The index in `results` of a decided seq, or ABSENT if it was evicted."""
    slot = own_memory(sides, slots, row)
    if slot == ABSENT or not _is_marked(slots, slot, client_seq):
        return ABSENT
    return index_of_result(slots, slot, client_seq)


@kernel(int64(uint64, int64, int64, int64, window_arrays, _results, int64), counted=False)
def check_batch(
    client_id: np.uint64,
    session_epoch: int,
    client_seq: int,
    block_crc: int,
    window: WindowArrays,
    answers: Rows,
    index: int,
) -> int:
    """Classify a batch: a CHECK code. Writes only `answers[index]`, the result of the original batch."""
    table, clients, sides, slots, results = window
    answer = answers[index]
    answer["position"] = _UNKNOWN
    answer["base_seq"] = 0
    answer["timestamp_ns"] = 0
    answer["block_crc"] = 0
    answer["reason"] = 0
    answer["status"] = 0
    answer["known"] = 0
    if np.uint64(client_id) >> _SYNTHETIC_SHIFT != 0:
        return CHECK_NEW
    row = find_row(table, clients, client_id)
    if row == ABSENT:
        return CHECK_UNKNOWN_CLIENT
    code = judge_row(client_seq, session_epoch, clients, sides, row)
    if code != CHECK_DUPLICATE and code != CHECK_REFUSED:
        return code
    at = known_result(client_seq, sides, slots, row)
    if at == ABSENT:
        return code
    result = results[at]
    if as_int64(result["block_crc"]) != block_crc:
        return CHECK_MISMATCH
    answer["position"] = result["position"]
    answer["base_seq"] = result["base_seq"]
    answer["timestamp_ns"] = result["timestamp_ns"]
    answer["block_crc"] = result["block_crc"]
    answer["reason"] = result["reason"]
    answer["status"] = result["status"]
    answer["known"] = 1
    return code


@kernel(int64(_words, int64), inline=True, counted=False)
def next_memory(slots: Words, slot: int) -> int:
    """The slot after this one, in the order of the hand."""
    return slot + 1 if slot + 1 < as_int64(slots[slots.shape[0] - 1, SLOT_COUNT]) else 0


@kernel(int64(_words, _words, int64, int64), inline=True, counted=False)
def _claim_memory(sides: Words, slots: Words, row: int, seq: int) -> int:
    """The memory slot of a client, now marked as recently used; without one, evict another client's for this seq."""
    slot = own_memory(sides, slots, row)
    if slot != ABSENT:
        set_owner_word(slots, slot, owner_word(slots, slot) | OWNER_REFERENCED)
        return slot
    last = slots.shape[0] - 1
    slot = as_int64(slots[last, SLOT_HAND])
    owner = owner_word(slots, slot)
    while owner & OWNER_REFERENCED != 0:
        set_owner_word(slots, slot, owner & ~OWNER_REFERENCED)
        slot = next_memory(slots, slot)
        owner = owner_word(slots, slot)
    slots[last, SLOT_HAND] = next_memory(slots, slot)
    set_owner_word(slots, slot, (row + 1) | ((first_result(slot) - seq) & (WINDOW - 1)) << OWNER_ROTATION)
    sides[row, SIDE_MEMORY] = slot + 1
    for word in range(BITS, ROW_WORDS):
        slots[slot, word] = 0
    return slot


@kernel(void(_words, _words, _words, int64, int64, int64), inline=True, counted=False)
def _raise_highest(clients: Words, sides: Words, slots: Words, row: int, slot: int, highest: int) -> None:
    """Move the upper end of the window; clears the reused bits, so that the new seqs are undecided."""
    before = as_int64(clients[row, HIGHEST_SEEN])
    for seq in range(max(before + 1, highest - WINDOW + 1), highest + 1):
        _unmark(clients, row, seq)
        _unmark(sides, row, seq)
        if slot != ABSENT:
            _unmark(slots, slot, seq)
    clients[row, HIGHEST_SEEN] = highest


@kernel(void(_words, _words, int64, int64), inline=True, counted=False)
def _raise_next(clients: Words, sides: Words, row: int, next_expected: int) -> None:
    """Advance `next_expected`, past seqs that are decided already."""
    highest = as_int64(clients[row, HIGHEST_SEEN])
    seq = next_expected
    while seq <= highest and (_is_marked(clients, row, seq) or _is_marked(sides, row, seq)):
        seq += 1
    clients[row, NEXT_EXPECTED] = seq


@kernel(int64(int64, int64, _words, _words, _words, int64), inline=True, counted=False)
def decide_row(client_seq: int, stored: int, clients: Words, sides: Words, slots: Words, row: int) -> int:
    """Decide a new seq of a known client as stored (1) or refused (0); returns the index for its result."""
    slot = _claim_memory(sides, slots, row, client_seq)
    if client_seq > as_int64(clients[row, HIGHEST_SEEN]):
        _raise_highest(clients, sides, slots, row, slot, client_seq)
    if stored != 0:
        _mark(clients, row, client_seq)
    else:
        _mark(sides, row, client_seq)
    _mark(slots, slot, client_seq)
    if client_seq == as_int64(clients[row, NEXT_EXPECTED]):
        _raise_next(clients, sides, row, client_seq)
    sentinel = slots.shape[0] - 1
    decisions = as_int64(slots[sentinel, SLOT_DECISIONS]) + 1
    slots[sentinel, SLOT_DECISIONS] = decisions
    sides[row, SIDE_DECIDED_AT] = decisions
    return index_of_result(slots, slot, client_seq)


@kernel(int64(int64, _words, _words, int64), counted=False)
def refuse_row(client_seq: int, clients: Words, sides: Words, row: int) -> int:
    """Change a decided seq from stored to refused; returns 1, or 0 if it is below the window or not stored."""
    if as_int64(clients[row, HIGHEST_SEEN]) - client_seq >= WINDOW or not _is_marked(clients, row, client_seq):
        return 0
    _unmark(clients, row, client_seq)
    _mark(sides, row, client_seq)
    return 1


@kernel(int64(int64, _words, _words, _words, int64), counted=False)
def skip_run(end: int, clients: Words, sides: Words, slots: Words, row: int) -> int:
    """Skip the undecided seqs from next_expected to the first decided one, at most to `end`; returns how many."""
    first = seq = as_int64(clients[row, NEXT_EXPECTED])
    highest = as_int64(clients[row, HIGHEST_SEEN])
    while seq < end and (seq > highest or not (_is_marked(clients, row, seq) or _is_marked(sides, row, seq))):
        seq += 1
    if seq > first:
        if seq - 1 > highest:
            _raise_highest(clients, sides, slots, row, own_memory(sides, slots, row), seq - 1)
        _raise_next(clients, sides, row, seq)
    return seq - first


@kernel(int64(uint64, int64, window_arrays, _results, int64), counted=False)
def decide_batch(
    client_id: np.uint64,
    client_seq: int,
    window: WindowArrays,
    outcomes: Rows,
    index: int,
) -> int:
    """Record `outcomes[index]` as the outcome of a batch; returns CHECK_NEW, or why it recorded nothing."""
    table, clients, sides, slots, results = window
    if np.uint64(client_id) >> _SYNTHETIC_SHIFT != 0:
        return CHECK_NEW
    row = find_row(table, clients, client_id)
    if row == ABSENT:
        return CHECK_UNKNOWN_CLIENT
    code = judge_row(client_seq, -1, clients, sides, row)
    if code != CHECK_NEW:
        return code
    outcome = outcomes[index]
    stored = as_int64(outcome["status"] == STATUS_STORED)
    result = results[decide_row(client_seq, stored, clients, sides, slots, row)]
    result["position"] = outcome["position"]
    result["base_seq"] = outcome["base_seq"]
    result["timestamp_ns"] = outcome["timestamp_ns"]
    result["block_crc"] = outcome["block_crc"]
    result["reason"] = outcome["reason"]
    result["status"] = outcome["status"]
    result["known"] = 1
    return CHECK_NEW


@kernel(int64(uint64, int64, uint32_out, _words, _words, _words), counted=False)
def skip_to(
    client_id: np.uint64,
    next_expected: int,
    table: IndexTable,
    clients: Words,
    sides: Words,
    slots: Words,
) -> int:
    """Skip every undecided seq below `next_expected`; returns CHECK_NEW, or CHECK_OUTSIDE if there is none.

    The caller guarantees that `next_expected` is at most CLIENT_SEQ_MAX.
    """
    row = find_row(table, clients, client_id)
    if row == ABSENT:
        return CHECK_UNKNOWN_CLIENT
    if next_expected <= as_int64(clients[row, NEXT_EXPECTED]):
        return CHECK_OUTSIDE
    if next_expected - 1 > as_int64(clients[row, HIGHEST_SEEN]):
        _raise_highest(clients, sides, slots, row, own_memory(sides, slots, row), next_expected - 1)
    _raise_next(clients, sides, row, next_expected)
    return CHECK_NEW


@kernel(void(_batches, int64, window_arrays, _results, int64_out), counted=False)
def check_many(
    batches: Rows,
    count: int,
    window: WindowArrays,
    answers: Rows,
    codes: Values,
) -> None:
    """`check_batch` for each of the first `count` batches, all against the current window."""
    for index in range(count):
        batch = batches[index]
        client_id = batch["client_id"]
        epoch = as_int64(batch["session_epoch"])
        client_seq = as_int64(batch["client_seq"])
        crc = as_int64(batch["block_crc"])
        codes[index] = check_batch(client_id, epoch, client_seq, crc, window, answers, index)


@kernel(void(_batches, int64, window_arrays, _results, int64_out), counted=False)
def decide_many(
    batches: Rows,
    count: int,
    window: WindowArrays,
    outcomes: Rows,
    codes: Values,
) -> None:
    """`decide_batch` for each of the first `count` batches, in order; a repetition is not decided again."""
    for index in range(count):
        batch = batches[index]
        client_id = batch["client_id"]
        client_seq = as_int64(batch["client_seq"])
        codes[index] = decide_batch(client_id, client_seq, window, outcomes, index)
