"""Collecting as lists: a broker's slots from its cursor on, and one queue for each worker."""

from __future__ import annotations

from seawall.kernels.ordering import collecting as names
from seawall.kernels.runtime.rings import CONSUMED, COUNTER_WORDS, PRODUCED, SLOT_WORDS, Words


def worker_of(client_id: int, workers: int) -> int:
    """Two multiplications of 32 bits, and the fraction of the workers that the result's middle stands for."""
    wide = client_id % (1 << 63)
    first = (wide ^ wide >> 32) % (1 << 32) * 0x85EBCA6B
    second = (first ^ first >> 32) % (1 << 32) * 0x85EBCA6B
    return (second >> 16) % (1 << 16) * workers >> 16


def is_given_up(collected: Words, line: int, index: int, now_ns: int, stuck_after_ns: int) -> int:
    """Whether the broker is dead, or its slot has been waited for long enough."""
    mine = collected[line : line + names.LINE_WORDS]
    if mine[names.IS_DEAD]:
        return 1
    if mine[names.WAITED_INDEX] != index:
        mine[names.WAITED_INDEX], mine[names.WAITED_SINCE] = index, now_ns
    return int(now_ns >= mine[names.WAITED_SINCE] + stuck_after_ns)


def push_ref(queue_words: Words, queue_counters: Words, worker: int, ref: int) -> int:
    """Put a ref into the queue of a worker that has room."""
    counts = queue_counters.reshape(-1, COUNTER_WORDS)
    queue = queue_words.reshape(len(counts), -1)[worker]
    produced, consumed = int(counts[worker, PRODUCED]), int(counts[worker, CONSUMED])
    if produced == consumed + len(queue):
        return 0
    queue[produced % len(queue)] = ref
    counts[worker, PRODUCED] += 1
    return 1


def collect_ring(
    slots: Words,
    pbr_entries: int,
    tails: Words,
    broker: int,
    taken: Words,
    collected: Words,
    queue_words: Words,
    queue_counters: Words,
    limit: int,
    now_ns: int,
    stuck_after_ns: int,
) -> int:
    """Pass slots on, one after another, until one has to wait."""
    line = broker * names.LINE_WORDS
    mine = collected[line : line + names.LINE_WORDS]
    ring = slots.reshape(-1, pbr_entries, SLOT_WORDS)[broker]
    marks = taken.reshape(-1, pbr_entries)[broker]
    workers = queue_counters.size // COUNTER_WORDS
    first = int(mine[names.CURSOR])
    claimed = int(tails[broker * names.TAIL_WORDS + names.TAIL_CLAIMED])
    for index in range(first, min(claimed, first + limit)):
        slot = ring[index % pbr_entries]
        if not (index < mine[names.RESUME_UNTIL] and marks[index % pbr_entries] == index + 1):
            ref, worker = (broker << names.BROKER_SHIFT) + index, broker % workers
            ready = slot[names.PBR_TOKEN] == index + 1
            if not ready:
                if not is_given_up(collected, line, index, now_ns, stuck_after_ns):
                    break
                ref += names.STUCK
            elif slot[names.PBR_CLIENT] >= 0 and not int(slot[names.PBR_FLAGS]) >> 32 & names.FLAG_NOP:
                worker = worker_of(int(slot[names.PBR_CLIENT]), workers)
            if not push_ref(queue_words, queue_counters, worker, ref):
                break
            mine[names.STUCK_TOTAL] += not ready
        mine[names.CURSOR] = index + 1
    return int(mine[names.CURSOR]) - first


def collect_rings(
    slots: Words,
    pbr_entries: int,
    tails: Words,
    brokers: Words,
    taken: Words,
    collected: Words,
    queue_words: Words,
    queue_counters: Words,
    limit: int,
    now_ns: int,
    stuck_after_ns: int,
) -> int:
    """One broker after the other."""
    state = (taken, collected, queue_words, queue_counters, limit, now_ns, stuck_after_ns)
    return sum(collect_ring(slots, pbr_entries, tails, int(broker), *state) for broker in brokers)


def start_cursor(collected: Words, broker: int, cursor: int, resume_until: int) -> None:
    """A line that waits for nothing."""
    line = broker * names.LINE_WORDS
    collected[line : line + names.LINE_WORDS] = (cursor, names.NO_SLOT, 0, 0, resume_until, 0, 0, 0)
