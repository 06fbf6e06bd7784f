"""Expires gaps: skips the client seqs that did not arrive in time, and releases the batches held after them.

Every run of undecided seqs below the lowest held one becomes a SKIP, which takes a position and no seq; then the held
batches that are now next expected are released. The client's page has the time limit of a gap (`holding`).

INV-GAP-UNDECIDED: a SKIP never covers a decided client seq, and a skipped seq is never stored. The window refuses it
afterwards.

`state[NEXT_DEADLINE]` is never later than the first deadline, so nothing else needs checking until then.
"""

from __future__ import annotations

from seawall.kernels.admission.client_window import (
    NEXT_EXPECTED,
    SIDE_PAGE,
    WINDOW,
    WindowArrays,
    skip_run,
    window_arrays,
)
from seawall.kernels.ordering.collecting import slot_of_ref
from seawall.kernels.ordering.deciding import PBR_TOPIC, release_held
from seawall.kernels.ordering.holding import (
    HELD,
    HOLD_REF,
    HOLD_WORDS,
    KIND_SHIFT,
    KIND_SKIP,
    NEVER,
    NEXT_DEADLINE,
    PAGE_GAP_NS,
    PAGE_GAP_SINCE,
    PAGE_HEAD,
    PAGE_LAST_SEEN,
    PAGE_OWNER,
    PAGE_WORDS,
    READY_TAIL,
    READY_WORDS,
    SILENCE_NS,
    SKIPPED_TOTAL,
    HoldArrays,
    hold_arrays,
    push_ready,
)
from seawall.kernels.runtime.jit import int64, int64_in, kernel, void
from seawall.kernels.runtime.memory import as_int64
from seawall.kernels.runtime.rings import Words

#: The maximal number of ready items for the SKIPs of one client.
SKIPS_MAX = WINDOW

_LOW = 0xFFFFFFFF


@kernel(void(int64_in, int64, int64, int64, window_arrays, hold_arrays), counted=False)
def _skip_gap(
    slots: Words,
    pbr_entries: int,
    row: int,
    now_ns: int,
    window: WindowArrays,
    held: HoldArrays,
) -> None:
    """Push SKIPs up to the lowest held seq of a client, and release the batches after them."""
    _, clients, sides, memories, _ = window
    holds, pages, ready, state = held
    first_slot = (as_int64(sides[row, SIDE_PAGE]) - 1) * PAGE_WORDS + PAGE_HEAD
    lowest = as_int64(clients[row, NEXT_EXPECTED])
    while pages[first_slot + (lowest & (WINDOW - 1))] == 0:
        lowest += 1
    hold = as_int64(pages[first_slot + (lowest & (WINDOW - 1))])
    base = slot_of_ref(as_int64(holds[hold * HOLD_WORDS + HOLD_REF]), pbr_entries)
    topic = slots[base + PBR_TOPIC] & _LOW
    while as_int64(clients[row, NEXT_EXPECTED]) < lowest:
        first = as_int64(clients[row, NEXT_EXPECTED])
        count = skip_run(lowest, clients, sides, memories, row)
        push_ready(ready, state, topic << KIND_SHIFT | count, KIND_SKIP, row, first)
        state[SKIPPED_TOTAL] += count
    release_held(slots, pbr_entries, row, now_ns, window, held)


@kernel(int64(int64_in, int64, int64, window_arrays, hold_arrays), counted=False)
def expire_gaps(
    slots: Words,
    pbr_entries: int,
    now_ns: int,
    window: WindowArrays,
    held: HoldArrays,
) -> int:
    """Skip the gaps past their deadline, with a SKIP for each run of missing seqs; returns how many seqs."""
    _, pages, ready, state = held
    if state[HELD] == 0 or now_ns < state[NEXT_DEADLINE]:
        return 0
    before = as_int64(state[SKIPPED_TOTAL])
    state[NEXT_DEADLINE] = NEVER
    for page in range(pages.size // PAGE_WORDS):
        head = page * PAGE_WORDS
        row = as_int64(pages[head + PAGE_OWNER]) - 1
        if row < 0:
            continue
        deadline = as_int64(pages[head + PAGE_GAP_SINCE] + pages[head + PAGE_GAP_NS])
        if pages[head + PAGE_GAP_NS] == 0:
            since = max(as_int64(pages[head + PAGE_LAST_SEEN]), as_int64(pages[head + PAGE_GAP_SINCE]))
            deadline = since + as_int64(state[SILENCE_NS])
        space = ready.size // READY_WORDS - state[READY_TAIL]
        if now_ns >= deadline and space > state[HELD] + SKIPS_MAX:
            _skip_gap(slots, pbr_entries, row, now_ns, window, held)
        else:
            state[NEXT_DEADLINE] = min(as_int64(state[NEXT_DEADLINE]), deadline)
    return as_int64(state[SKIPPED_TOTAL]) - before
