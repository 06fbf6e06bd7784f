"""Which batches of a publisher are decided: a window of 256 client seqs for each client, in arrays.

A client is one row of `clients`, eight u64, which is also what snapshots store (64 bytes, little-endian):

    0  8 client_id          16 8 next_expected: lowest client seq not decided     32 32 bitmap: client seq s is
    8  8 session_epoch      24 8 highest_seen: highest client seq decided               bit s mod 256, 1 = stored

and one row of `sides`, eight u64 that are not stored: place of its memory + 1 (0 = none), when it was last decided,
page of held batches + 1, time allowed to a gap (`holding`), and the bitmap of decided seqs that were *refused*. The
*memory* of a client is one row of `slots` (four zeros, bitmap of seqs with a known result) and 256 results. There are
fewer memories than clients. Who needs one takes that which the hand points at; one whose client was decided again since
the hand came by is spared, once. Behind the memories come their *keepers*, a word for each: the owner's row + 1,
whether it has a second chance, and its turn. Most looks at a memory find that it is another's by now, and keepers are
so small together that they stay near. The last row of `slots` says how many memories there are, has the hand, and
counts decisions.

The result of a seq is at seq + turn mod 256. A memory that changes hands is turned so that the seq it begins with is on
a line of the memory's own: clients that come and go touch one line of each memory, a small part of all of it. From
memory to memory that line is the next one, because lines that are whole memories apart would all belong into the same
few places of a cache.

A client whose memory was taken is not told, for that would be one more line from afar: a memory belongs to a client
only where each names the other.

Told apart exactly: client seqs from highest_seen − 255 to next_expected + 255. Inside,
    stored bit          decided and stored: a repetition is a duplicate, or a mismatch if its block is another one
    refused bit         decided and not stored: a repetition gets the same answer, and never an ack
    no bit, below next  skipped, abandoned, or refused before a restart: never stored, never an ack
    no bit, from next   new

INV-WINDOW-EXACT: no client seq is decided twice, and only a stored batch is called a duplicate. next_expected − 1 ≤
highest_seen ≤ next_expected + 255, so 256 bits tell all seqs apart; the seq next_expected is not decided, and each seq
below it is decided or skipped.

A client id with the top bit set belongs to a connection without a session: it passes, and leaves nothing behind.
Batch headers carry the low 32 bits of a session epoch, so those are what is compared.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.admission.client_index import IndexTable, find_row
from seawall.kernels.runtime.jit import int64, int64_out, kernel, record_array, uint32_out, uint64, void
from seawall.kernels.runtime.memory import LINE_SIZE, as_int64
from seawall.kernels.runtime.tables import ABSENT, Values

Words = npt.NDArray[np.uint64]
Rows: TypeAlias = npt.NDArray[np.void]

WINDOW = 256
#: Client seqs end here, far from where adding to one would overflow.
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

#: A keeper: the owner's row + 1 in the low half, a bit for its second chance, its turn from this bit on.
KEEPER_SPARED = 1 << 32
KEEPER_TURN = 40

#: What is asked of the window: one batch.
WINDOW_BATCH = np.dtype(
    [("client_id", np.uint64), ("client_seq", np.uint64), ("session_epoch", np.uint32), ("block_crc", np.uint32)]
)
assert WINDOW_BATCH.itemsize == 24

#: What became of a batch. `known` is 0 where the numbers are forgotten; position and base seq are then unknown.
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

#: `status` of a result that was stored, as in an ACK; every other status is a refusal.
STATUS_STORED = 0

#: What a check finds.
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
#: The arrays of all windows, as most kernels take them.
_window = (uint32_out, _words, _words, _words, _results)
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
    """What a seq of a known client is, as far as the bitmaps tell; an epoch of -1 is not compared."""
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
    """Rows of `slots` for so many memories; the last one has their number."""
    return memories + -(-memories // ROW_WORDS) + 1


@kernel(int64(_words, int64), inline=True, counted=False)
def keeper_of(slots: Words, slot: int) -> int:
    """The keeper of a slot."""
    first = as_int64(slots[slots.shape[0] - 1, SLOT_COUNT])
    return as_int64(slots[first + (slot >> 3), slot & 7])


@kernel(void(_words, int64, int64), inline=True, counted=False)
def set_keeper(slots: Words, slot: int, keeper: int) -> None:
    """Give a slot another keeper."""
    first = as_int64(slots[slots.shape[0] - 1, SLOT_COUNT])
    slots[first + (slot >> 3), slot & 7] = keeper


@kernel(int64(_words, _words, int64), inline=True, counted=False)
def own_memory(sides: Words, slots: Words, row: int) -> int:
    """The slot of a client, or ABSENT if it has none or another client has taken it."""
    slot = as_int64(sides[row, SIDE_MEMORY]) - 1
    return slot if slot >= 0 and keeper_of(slots, slot) & _LOW == row + 1 else ABSENT


@kernel(int64(int64), inline=True, counted=False)
def first_result(slot: int) -> int:
    """Which of its 256 results a memory begins with when another client takes it."""
    return slot * _RESULTS_PER_LINE & (WINDOW - 1)


@kernel(int64(_words, int64, int64), inline=True, counted=False)
def result_place(slots: Words, slot: int, seq: int) -> int:
    """Where a memory has the result of a seq."""
    return slot * WINDOW + ((seq + (keeper_of(slots, slot) >> KEEPER_TURN)) & (WINDOW - 1))


@kernel(int64(int64, _words, _words, int64), inline=True, counted=False)
def known_result(client_seq: int, sides: Words, slots: Words, row: int) -> int:
    """Where the result of a decided seq is, or ABSENT if it is forgotten."""
    slot = own_memory(sides, slots, row)
    if slot == ABSENT or not _is_marked(slots, slot, client_seq):
        return ABSENT
    return result_place(slots, slot, client_seq)


@kernel(int64(uint64, int64, int64, int64, *_window, _results, int64), counted=False)
def check_batch(
    client_id: np.uint64,
    session_epoch: int,
    client_seq: int,
    block_crc: int,
    places: IndexTable,
    clients: Words,
    sides: Words,
    slots: Words,
    results: Rows,
    answers: Rows,
    index: int,
) -> int:
    """What a batch is: a CHECK code. Nothing changes but `answers[index]`, which holds the original's result."""
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
    row = find_row(places, clients, client_id)
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
    """Where the hand goes from a slot."""
    return slot + 1 if slot + 1 < as_int64(slots[slots.shape[0] - 1, SLOT_COUNT]) else 0


@kernel(int64(_words, _words, int64, int64), inline=True, counted=False)
def _memory_of(sides: Words, slots: Words, row: int, seq: int) -> int:
    """The slot of a client, which is spared the next time; taken from another one if it had none, for a seq."""
    slot = own_memory(sides, slots, row)
    if slot != ABSENT:
        set_keeper(slots, slot, keeper_of(slots, slot) | KEEPER_SPARED)
        return slot
    last = slots.shape[0] - 1
    slot = as_int64(slots[last, SLOT_HAND])
    keeper = keeper_of(slots, slot)
    while keeper & KEEPER_SPARED != 0:
        set_keeper(slots, slot, keeper & ~KEEPER_SPARED)
        slot = next_memory(slots, slot)
        keeper = keeper_of(slots, slot)
    slots[last, SLOT_HAND] = next_memory(slots, slot)
    set_keeper(slots, slot, (row + 1) | ((first_result(slot) - seq) & (WINDOW - 1)) << KEEPER_TURN)
    sides[row, SIDE_MEMORY] = slot + 1
    for word in range(BITS, ROW_WORDS):
        slots[slot, word] = 0
    return slot


@kernel(void(_words, _words, _words, int64, int64, int64), inline=True, counted=False)
def _raise_highest(clients: Words, sides: Words, slots: Words, row: int, slot: int, highest: int) -> None:
    """Move the upper end of the window; seqs that come into it are not decided, whoever had their bits before."""
    before = as_int64(clients[row, HIGHEST_SEEN])
    for seq in range(max(before + 1, highest - WINDOW + 1), highest + 1):
        _unmark(clients, row, seq)
        _unmark(sides, row, seq)
        if slot != ABSENT:
            _unmark(slots, slot, seq)
    clients[row, HIGHEST_SEEN] = highest


@kernel(void(_words, _words, int64, int64), inline=True, counted=False)
def _raise_next(clients: Words, sides: Words, row: int, next_expected: int) -> None:
    """Move the lower end of what is open, over all that is decided already."""
    highest = as_int64(clients[row, HIGHEST_SEEN])
    seq = next_expected
    while seq <= highest and (_is_marked(clients, row, seq) or _is_marked(sides, row, seq)):
        seq += 1
    clients[row, NEXT_EXPECTED] = seq


@kernel(int64(int64, int64, _words, _words, _words, int64), inline=True, counted=False)
def decide_row(client_seq: int, stored: int, clients: Words, sides: Words, slots: Words, row: int) -> int:
    """Decide a seq that is new to a known client, as stored (1) or refused (0): where its result goes."""
    slot = _memory_of(sides, slots, row, client_seq)
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
    return result_place(slots, slot, client_seq)


@kernel(int64(int64, _words, _words, int64), counted=False)
def refuse_row(client_seq: int, clients: Words, sides: Words, row: int) -> int:
    """A seq that was decided as stored was refused after all: 1, or 0 if the window has left it behind."""
    if as_int64(clients[row, HIGHEST_SEEN]) - client_seq >= WINDOW or not _is_marked(clients, row, client_seq):
        return 0
    _unmark(clients, row, client_seq)
    _mark(sides, row, client_seq)
    return 1


@kernel(int64(int64, _words, _words, _words, int64), counted=False)
def skip_run(end: int, clients: Words, sides: Words, slots: Words, row: int) -> int:
    """Give up the undecided seqs from next expected on, up to the first decided one and `end` at most; how many."""
    first = seq = as_int64(clients[row, NEXT_EXPECTED])
    highest = as_int64(clients[row, HIGHEST_SEEN])
    while seq < end and (seq > highest or not (_is_marked(clients, row, seq) or _is_marked(sides, row, seq))):
        seq += 1
    if seq > first:
        if seq - 1 > highest:
            _raise_highest(clients, sides, slots, row, own_memory(sides, slots, row), seq - 1)
        _raise_next(clients, sides, row, seq)
    return seq - first


@kernel(int64(uint64, int64, *_window, _results, int64), counted=False)
def decide_batch(
    client_id: np.uint64,
    client_seq: int,
    places: IndexTable,
    clients: Words,
    sides: Words,
    slots: Words,
    results: Rows,
    outcomes: Rows,
    index: int,
) -> int:
    """Record `outcomes[index]` as the fate of a batch: CHECK_NEW, or the code for which nothing was recorded."""
    if np.uint64(client_id) >> _SYNTHETIC_SHIFT != 0:
        return CHECK_NEW
    row = find_row(places, clients, client_id)
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
    places: IndexTable,
    clients: Words,
    sides: Words,
    slots: Words,
) -> int:
    """Give up every undecided seq below `next_expected`: CHECK_NEW, or CHECK_OUTSIDE if there is none such.

    The caller has checked that `next_expected` is at most CLIENT_SEQ_MAX.
    """
    row = find_row(places, clients, client_id)
    if row == ABSENT:
        return CHECK_UNKNOWN_CLIENT
    if next_expected <= as_int64(clients[row, NEXT_EXPECTED]):
        return CHECK_OUTSIDE
    if next_expected - 1 > as_int64(clients[row, HIGHEST_SEEN]):
        _raise_highest(clients, sides, slots, row, own_memory(sides, slots, row), next_expected - 1)
    _raise_next(clients, sides, row, next_expected)
    return CHECK_NEW


@kernel(void(_batches, int64, *_window, _results, int64_out), counted=False)
def check_many(
    batches: Rows,
    count: int,
    places: IndexTable,
    clients: Words,
    sides: Words,
    slots: Words,
    results: Rows,
    answers: Rows,
    codes: Values,
) -> None:
    """`check_batch` for each of the first `count` batches, all against the window as it is now."""
    for index in range(count):
        batch = batches[index]
        client_id = batch["client_id"]
        epoch = as_int64(batch["session_epoch"])
        client_seq = as_int64(batch["client_seq"])
        crc = as_int64(batch["block_crc"])
        codes[index] = check_batch(
            client_id, epoch, client_seq, crc, places, clients, sides, slots, results, answers, index
        )


@kernel(void(_batches, int64, *_window, _results, int64_out), counted=False)
def decide_many(
    batches: Rows,
    count: int,
    places: IndexTable,
    clients: Words,
    sides: Words,
    slots: Words,
    results: Rows,
    outcomes: Rows,
    codes: Values,
) -> None:
    """`decide_batch` for each of the first `count` batches, in order; a repetition finds itself decided."""
    for index in range(count):
        batch = batches[index]
        client_id = batch["client_id"]
        client_seq = as_int64(batch["client_seq"])
        codes[index] = decide_batch(client_id, client_seq, places, clients, sides, slots, results, outcomes, index)
