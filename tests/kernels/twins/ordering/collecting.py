"""Collecting as lists: a broker's slots from its cursor on, and one queue for each worker."""

from __future__ import annotations

from seawall.kernels.ordering import collecting as names
from seawall.kernels.runtime.rings import CONSUMED, COUNTER_WORDS, PRODUCED, SLOT_WORDS, Words


def worker_of(client_id: int, workers: int) -> int:
    """Two 32-bit multiplications; the middle 16 bits, as a fraction, select the worker."""
    wide = client_id % (1 << 63)
    first = (wide ^ wide >> 32) % (1 << 32) * 0x85EBCA6B
    second = (first ^ first >> 32) % (1 << 32) * 0x85EBCA6B
    return (second >> 16) % (1 << 16) * workers >> 16


def is_abandoned(collected: Words, line: int, index: int, now_ns: int, stuck_after_ns: int) -> int:
    """1 if the broker is dead or the wait for its slot has timed out."""
    mine = collected[line : line + names.LINE_WORDS]
    if mine[names.IS_DEAD]:
        return 1
    if mine[names.WAITED_INDEX] != index:
        mine[names.WAITED_INDEX], mine[names.WAITED_SINCE] = index, now_ns
    return int(now_ns >= mine[names.WAITED_SINCE] + stuck_after_ns)


def push_ref(queue_words: Words, queue_counters: Words, worker: int, ref: int) -> int:
    """Append a ref to the queue of a worker if it has space."""
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
    """Queue slot after slot until one has to wait."""
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
                if not is_abandoned(collected, line, index, now_ns, stuck_after_ns):
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
    """`collect_ring` for each broker."""
    state = (taken, collected, queue_words, queue_counters, limit, now_ns, stuck_after_ns)
    return sum(collect_ring(slots, pbr_entries, tails, int(broker), *state) for broker in brokers)


def start_cursor(collected: Words, broker: int, cursor: int, resume_until: int) -> None:
    """Reset the line of a broker."""
    line = broker * names.LINE_WORDS
    collected[line : line + names.LINE_WORDS] = (cursor, names.NO_SLOT, 0, 0, resume_until, 0, 0, 0)
