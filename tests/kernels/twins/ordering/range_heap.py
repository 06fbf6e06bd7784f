"""Written ranges, sorted on each change: the heap's arrays hold them in rising order."""

from __future__ import annotations

from seawall.kernels.ordering.range_heap import RANGE_WORDS
from seawall.kernels.runtime.rings import CONSUMED, PRODUCED, Words


def join_ranges(firsts: Words, ends: Words, counts: Words, taken: Words, limit: int) -> int:
    """Join ranges from the lowest on, up to the first hole."""
    waiting = sorted(zip(firsts[: counts[0]].tolist(), ends[: counts[0]].tolist(), strict=True))
    while waiting and waiting[0][0] <= limit:
        limit = max(limit, waiting.pop(0)[1])
    _keep(waiting, firsts, ends, counts)
    return limit


def drain_ranges(
    words: Words, counters: Words, firsts: Words, ends: Words, counts: Words, taken: Words, limit: int
) -> int:
    """Join each item, push it to the heap, or leave it in the ring."""
    items = words.reshape(-1, RANGE_WORDS)
    for index in range(int(counters[CONSUMED]), int(counters[PRODUCED])):
        first, end = items[index % len(items)].tolist()
        if first <= limit:
            limit = max(limit, end)
        elif counts[0] == len(firsts):
            break
        else:
            waiting = [*zip(firsts[: counts[0]].tolist(), ends[: counts[0]].tolist(), strict=True), (first, end)]
            _keep(sorted(waiting), firsts, ends, counts)
        counters[CONSUMED] = index + 1
    return join_ranges(firsts, ends, counts, taken, limit)


def _keep(waiting: list[tuple[int, int]], firsts: Words, ends: Words, counts: Words) -> None:
    counts[0] = len(waiting)
    for at, (first, end) in enumerate(waiting):
        firsts[at], ends[at] = first, end
