"""The commit cycle, built from the twins of the kernels that it calls."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from seawall.kernels.admission.client_window import CHECK_NEW, NEXT_EXPECTED, ROW_WORDS, SIDE_PAGE, WINDOW_RESULT
from seawall.kernels.admission.frontier import (
    ADMISSION_ROW,
    LAST_TIMESTAMP,
    NEXT_POSITION,
    RUN_DONE,
    STATUS_OK,
    TOPIC_ROW,
)
from seawall.kernels.codec.batch_header import (
    BLOCK_CRC_AT,
    CLIENT_ID_AT,
    CLIENT_SEQ_AT,
    HEADER_SIZE,
    RECORD_COUNT_AT,
    SESSION_EPOCH_AT,
    TOPIC_AT,
)
from seawall.kernels.log import cycle_records as records
from seawall.kernels.log.epochs import EPOCH_HEADER, LOG_NUMBERS, WAL_ROW
from seawall.kernels.ordering.applying import PROGRESS_TIME
from seawall.kernels.ordering.collecting import CURSOR, LINE_WORDS, PBR_TOKEN, TAIL_CLAIMED, TAIL_WORDS
from seawall.kernels.ordering.goi_frontier import (
    COMPLETION_WORDS,
    CONTROL_COMMITTED,
    CONTROL_DURABLE,
    FLAG_STRONG_ORDER,
)
from seawall.kernels.ordering.holding import HELD, READY_HEAD, READY_TAIL, UNSETTLED_HEAD, UNSETTLED_TAIL
from seawall.kernels.ordering.order_entries import FLOOR, RESERVED
from seawall.kernels.runtime.memory import Array, Bytes
from seawall.kernels.runtime.rings import SLOT_WORDS
from seawall.kernels.runtime.tables import ABSENT
from twins.admission.client_frontier import admit_client_batch
from twins.admission.client_index import find_row
from twins.admission.client_window import decide_row, judge_row
from twins.admission.frontier import admit_batch
from twins.log.epochs import list_batch, seal_epoch
from twins.log.staging import write_header
from twins.ordering.applying import batch_in_blog
from twins.ordering.goi_frontier import refusal_of

_NUMBER: Final = np.dtype(np.int64)
_ROW: Final = np.dtype((np.uint64, ROW_WORDS))
_WINDOW: Final[tuple[np.dtype[Any], ...]] = (np.dtype(np.uint32), _ROW, _ROW, _ROW, WINDOW_RESULT)
_TYPES: Final[tuple[np.dtype[Any], ...]] = (
    *(np.dtype(np.uint64), _NUMBER, np.dtype(np.uint8), TOPIC_ROW, _NUMBER, ADMISSION_ROW, WAL_ROW),
    *(*_WINDOW, *_WINDOW, *[_NUMBER] * 8, np.dtype(np.uint8), _NUMBER, records.NEED_ROW, _NUMBER),
    *(
        records.RECEIVED_ROW,
        np.dtype(np.uint8),
        LOG_NUMBERS,
        records.PENDING_NUMBERS,
        _NUMBER,
        _NUMBER,
        WINDOW_RESULT,
        records.DRAFT_ROW,
    ),
)
#: The fields of a batch header that the commit cycle reads.
_BATCH: Final = np.dtype(
    {
        "names": ["seq", "count", "crc", "topic_id", "client_id", "epoch"],
        "formats": ["<i8", "<u4", "<u4", "<u4", "<i8", "<u4"],
        "offsets": [CLIENT_SEQ_AT, RECORD_COUNT_AT, BLOCK_CRC_AT, TOPIC_AT, CLIENT_ID_AT, SESSION_EPOCH_AT],
        "itemsize": HEADER_SIZE,
    }
)
_SLOT: Final = np.dtype(
    [
        *(("offset", np.int64), ("size", np.uint32), ("count", np.uint32), ("topic_id", np.uint32), ("crc", np.uint32)),
        *(("broker", np.uint32), ("flags", np.uint32), ("client_id", np.int64), ("seq", np.int64)),
        *(("epoch", np.uint32), ("reserved", np.uint32), ("token", np.int64)),
    ]
)


def _array_at(address: int, size: int, dtype: np.dtype[Any]) -> Array:
    memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype, size)


def _arrays(cycle: Any) -> SimpleNamespace:
    """All arrays, by name."""
    return SimpleNamespace(
        **{
            name: _array_at(int(cycle[f"{name}_at"]), int(cycle[f"{name}_count"]), dtype)
            for name, dtype in zip(records.CYCLE_ARRAYS, _TYPES, strict=True)
        }
    )


def _encode_drafts(cycle: Any, arrays: SimpleNamespace) -> None:
    """Write a header before each block, and fill its row."""
    at = 0
    for number in range(int(cycle["received"])):
        length, *fields = arrays.drafts[number].tolist()
        start, end = at + HEADER_SIZE, at + HEADER_SIZE + length
        write_header(arrays.buffer, at, arrays.buffer, start, end, *fields)
        row = arrays.received[number]
        row["connection"], row["at"], row["size"], row["is_strong"] = number, at, end - at, 0
        at = end


def _is_idle(cycle: Any, arrays: SimpleNamespace) -> bool:
    if not cycle["is_sequenced"]:
        return True
    position = int(arrays.numbers[NEXT_POSITION])
    control, counters, worker = arrays.control, arrays.counters, arrays.worker
    reached = {int(counters[RESERVED]), int(control[CONTROL_COMMITTED]), int(control[CONTROL_DURABLE])}
    is_idle = worker[READY_HEAD] == worker[READY_TAIL] and worker[UNSETTLED_HEAD] == worker[UNSETTLED_TAIL]
    is_early = position - int(counters[FLOOR]) < int(cycle["checkpoint_after"])
    cursors = arrays.collected[CURSOR::LINE_WORDS][: len(arrays.ends)].tolist()
    is_completed = cursors == arrays.completion[::COMPLETION_WORDS][: len(arrays.ends)].tolist()
    return (
        reached | {int(arrays.reached[0])} == {position}
        and not worker[HELD]
        and bool(is_idle)
        and is_early
        and is_completed
    )


def _ring_order(cycle: Any, arrays: SimpleNamespace) -> list[int]:
    """The ring numbers, starting at `first_ring`."""
    brokers, first = list(range(len(arrays.ends))), int(cycle["first_ring"])
    return brokers[first:] + brokers[:first]


def _slot(arrays: SimpleNamespace, broker: int, index: int) -> tuple[int, Any]:
    """The first word of a slot, and its fields."""
    entries = len(arrays.slots) // (len(arrays.ends) * SLOT_WORDS)
    base = (broker * entries + index % entries) * SLOT_WORDS
    return base, arrays.slots[base : base + SLOT_WORDS].view(_SLOT)[0]


def _batch_offset(arrays: SimpleNamespace, broker: int, slot: Any) -> int:
    if int(slot["size"]) >= records.LARGE_SIZE or int(slot["flags"]) & ~FLAG_STRONG_ORDER:
        return -1
    blog_size = len(arrays.blogs) // len(arrays.ends)
    fields = (int(slot[name]) for name in ("offset", "size", "count", "crc", "topic_id"))
    return batch_in_blog(arrays.blogs, blog_size, broker, *fields)


def _count_need(cycle: Any, arrays: SimpleNamespace, topic_id: int, records: int, size: int) -> bool:
    """Count in one more batch; False if the cycle is full."""
    known = arrays.needs["topic_id"][: cycle["needed"]].tolist()
    is_known = topic_id in known
    if cycle["size"] + size > cycle["size_max"] or not (is_known or len(known) < len(arrays.needs)):
        return False
    if not is_known:
        needs = arrays.needs[len(known)]
        needs["topic_id"] = topic_id
        for name in ("records", "size", "records_left", "bytes_left", "taken_records", "taken_size", "is_reserved"):
            needs[name] = 0
        cycle["needed"] += 1
        known.append(topic_id)
    row = arrays.needs[known.index(topic_id)]
    row["records"] += records
    row["size"] += size
    cycle["size"] += size
    return True


def survey_cycle(cycles: Array) -> int:
    """Count the received batches, then the slots of each ring up to the first that is not eligible."""
    cycle = cycles[0]
    arrays = _arrays(cycle)
    cycle["size"] = cycle["surveyed"] = 0
    if not _is_idle(cycle, arrays):
        return 0
    arrays.needs["records"][: cycle["needed"]] = arrays.needs["size"][: cycle["needed"]] = 0
    count_max = len(arrays.staged) - int(arrays.pending[0]["next"])
    total = 0
    for batch in arrays.received[: cycle["received"]]:
        header = _header(arrays.buffer, int(batch["at"]))
        needed = (int(header["topic_id"]), int(header["count"]), int(batch["size"]))
        if total >= count_max or not _count_need(cycle, arrays, *needed):
            break
        total += 1
    cycle["surveyed"] = total
    for broker in _ring_order(cycle, arrays):
        index = int(arrays.collected[broker * LINE_WORDS + CURSOR])
        claimed = int(arrays.tails[broker * TAIL_WORDS + TAIL_CLAIMED])
        while index < claimed and total < count_max:
            base, slot = _slot(arrays, broker, index)
            if arrays.slots[base + PBR_TOKEN] != index + 1 or _batch_offset(arrays, broker, slot) < 0:
                break
            if not _count_need(cycle, arrays, int(slot["topic_id"]), int(slot["count"]), int(slot["size"])):
                break
            total += 1
            index += 1
        arrays.ends[broker] = index
    return total


def lacks_grants(cycles: Array) -> int:
    """Mark the granted needs; returns how many are not granted."""
    cycle = cycles[0]
    arrays = _arrays(cycle)
    needs, log = arrays.needs[: cycle["needed"]], arrays.log[0]
    fits = int(log["next_at"]) + EPOCH_HEADER + int(cycle["size"]) + int(cycle["headroom"]) <= int(log["limit_at"])
    is_granted = (
        (needs["taken_records"] + needs["records"] <= needs["records_left"])
        & (needs["taken_size"] + needs["size"] <= needs["bytes_left"])
        & (int(cycle["wall_ns"]) < needs["until_ns"])
    )
    needs["is_reserved"] = is_granted & fits
    return int(np.count_nonzero((needs["records"] > 0) & (needs["is_reserved"] == 0)))


def _header(source: Bytes, at: int) -> Any:
    """The header of a batch, as a record."""
    return source[at : at + _BATCH.itemsize].view(_BATCH)[0]


def _row_if_new(window: list[Array], batch: Any) -> int:
    table, clients, sides, *_ = window
    row = find_row(table, clients, int(batch["client_id"]))
    if row == ABSENT or judge_row(int(batch["seq"]), int(batch["epoch"]), clients, sides, row) != CHECK_NEW:
        return ABSENT
    return row


def _window(arrays: SimpleNamespace, whose: str) -> list[Array]:
    return [getattr(arrays, f"{whose}_{name}") for name in ("table", "clients", "sides", "slots", "results")]


def _decide(window: list[Array], row: int, seq: int, *numbers: int) -> None:
    _, clients, sides, slots, results = window
    results[decide_row(seq, 1, clients, sides, slots, row)] = (*numbers, 0, 0, 1)


def _stage_batch(
    cycle: Any, arrays: SimpleNamespace, memory: Bytes, at: int, count: int, source: Bytes, flags: int
) -> int:
    """Decide, number and stage the batch in `source`."""
    batch, size = _header(source, 0), len(source)
    cycle["is_decided"] = 0
    topic_id = int(batch["topic_id"])
    known = arrays.needs["topic_id"][: cycle["needed"]].tolist()
    if topic_id not in known or not arrays.needs[known.index(topic_id)]["is_reserved"]:
        return records.NOT_STAGED
    found = [int(arrays.values[entry]) for entry in np.flatnonzero(arrays.used) if int(arrays.keys[entry]) == topic_id]
    if not found or (cycle["is_sequenced"] and refusal_of(int(arrays.topics[found[0]]["flags"]), flags)):
        return records.NOT_STAGED
    order, store, row = _window(arrays, "order"), _window(arrays, "store"), ABSENT
    has_session = batch["client_id"] >= 0
    if has_session and cycle["is_sequenced"]:
        row = _row_if_new(order, batch)
        if ABSENT in (row, _row_if_new(store, batch)) or order[2][row, SIDE_PAGE]:
            return records.NOT_STAGED
        if flags & FLAG_STRONG_ORDER and batch["seq"] != order[1][row, NEXT_EXPECTED]:
            return records.NOT_STAGED
    memory[at : at + size] = source
    frontier = (arrays.keys, arrays.values, arrays.used, arrays.topics, arrays.numbers)
    given = (memory, at, int(cycle["term"]), int(cycle["wall_ns"]))
    if has_session and not cycle["is_sequenced"]:
        table, clients, sides, slots, results = order
        window = (table, clients, sides, slots, results)
        code = admit_client_batch(*given, frontier, window, arrays.answers, arrays.admitted, 0)
    else:
        code = admit_batch(*given, frontier, arrays.admitted, 0)
    cycle["is_decided"] = code == RUN_DONE
    if code != RUN_DONE or arrays.admitted[0]["status"] != STATUS_OK:
        return records.NOT_STAGED
    list_batch(memory, at, int(arrays.log[0]["next_at"]) + at, size, arrays.staged, int(cycle["first_row"]) + count)
    numbers = arrays.admitted[["position", "base_seq", "timestamp_ns"]][0].tolist()
    if row != ABSENT:
        _decide(order, row, int(batch["seq"]), *numbers, int(batch["crc"]))
    need = arrays.needs[known.index(topic_id)]
    need["taken_records"] += int(batch["count"])
    need["taken_size"] += size
    cycle["is_durable"] |= need["is_durable"]
    cycle["position"], _, cycle["timestamp_ns"] = numbers
    return size


def _stage_received(cycle: Any, arrays: SimpleNamespace, memory: Bytes, at: int) -> tuple[int, int]:
    """Stage the receive buffer; returns the number of staged batches, and their end."""
    count, stopped = 0, -1
    for number, batch in enumerate(arrays.received[: cycle["received"]]):
        batch["is_staged"], batch["status"] = 0, records.UNDECIDED
        if int(batch["connection"]) == stopped or number >= cycle["surveyed"]:
            continue
        source = arrays.buffer[int(batch["at"]) :][: int(batch["size"])]
        flags = FLAG_STRONG_ORDER if batch["is_strong"] else 0
        size = _stage_batch(cycle, arrays, memory, at, count, source, flags)
        if cycle["is_decided"]:
            for name in ("status", "reason", "position", "base_seq", "base_offset", "timestamp_ns"):
                batch[name] = arrays.admitted[0][name].astype(np.int64)
        if size < 0:
            stopped = int(batch["connection"])
            continue
        batch["is_staged"] = 1
        at, count = at + size, count + 1
    return count, at


def _stage_slot(
    cycle: Any, arrays: SimpleNamespace, memory: Bytes, at: int, broker: int, index: int, count: int
) -> int:
    base, slot = _slot(arrays, broker, index)
    source = arrays.blogs[_batch_offset(arrays, broker, slot) :][: int(slot["size"])]
    size = _stage_batch(cycle, arrays, memory, at, count, source, int(slot["flags"]))
    if size > 0:
        numbers = arrays.admitted[["position", "base_seq", "timestamp_ns"]][0].tolist()
        arrays.results[base : base + SLOT_WORDS] = (*numbers, -1, 0, 0, 0, index + 1)
    return size


def stage_cycle(cycles: Array, memory: Bytes) -> int:
    """Stage batch after batch, then write the epoch header."""
    cycle = cycles[0]
    arrays = _arrays(cycle)
    cycle["first_position"] = arrays.numbers[NEXT_POSITION]
    cycle["first_row"], cycle["is_durable"] = arrays.pending[0]["next"], 0
    count, at = _stage_received(cycle, arrays, memory, EPOCH_HEADER)
    cycle["of_rings"] = -count
    for broker in _ring_order(cycle, arrays):
        index = int(arrays.collected[broker * LINE_WORDS + CURSOR])
        while index < arrays.ends[broker]:
            size = _stage_slot(cycle, arrays, memory, at, broker, index, count)
            if size < 0:
                arrays.ends[broker] = index
                break
            at, count, index = at + size, count + 1, index + 1
        arrays.collected[broker * LINE_WORDS + CURSOR] = index
    cycle["of_rings"] += count
    cycle["count"], cycle["size"] = count, at
    if not count:
        return records.NOT_STAGED
    arrays.pending["next"] += count
    arrays.pending["in_flight"] += 1
    salt, epoch, synced_through = (int(arrays.log[0][name]) for name in ("salt", "next_epoch", "synced_through"))
    length, time_ns = at - EPOCH_HEADER, int(arrays.numbers[LAST_TIMESTAMP])
    return seal_epoch(memory, length, count, salt, epoch, synced_through, int(cycle["first_position"]), time_ns)


def stage_arrived(cycles: Array, memory: Bytes) -> int:
    """Survey, then stage, unless something is missing."""
    cycle = cycles[0]
    arrays = _arrays(cycle)
    is_sequenced, received = bool(cycle["is_sequenced"]), int(cycle["received"])
    if len(arrays.staged) - int(arrays.pending[0]["next"]) < received:
        return -records.LACKS_ROWS
    if not is_sequenced:
        _encode_drafts(cycle, arrays)
    total = survey_cycle(cycles)
    if not total or (not is_sequenced and total < received):
        return -records.NOT_ELIGIBLE
    if lacks_grants(cycles) and not (is_sequenced and cycle["is_granted"]):
        return -records.LACKS_GRANTS
    cycle["is_granted"] = 0
    size = stage_cycle(cycles, memory)
    return size if size > 0 else -records.NOT_ELIGIBLE if is_sequenced else 0


def settle_cycle(cycles: Array, first_row: int, count: int) -> None:
    """Update the store's window and the frontiers, then make the rows pending."""
    cycle = cycles[0]
    arrays = _arrays(cycle)
    staged = arrays.staged[first_row : first_row + count].copy()
    if cycle["is_sequenced"]:
        store = _window(arrays, "store")
        for batch in staged:
            if int(batch["client_id"]) >> 63:
                continue
            row = find_row(store[0], store[1], int(batch["client_id"]))
            numbers = [int(batch[name]) for name in ("position", "base_seq", "timestamp_ns", "block_crc")]
            _decide(store, row, int(batch["client_seq"]), *numbers)
        last_ns = int(staged[-1]["timestamp_ns"])
        arrays.applier_progress[PROGRESS_TIME] = max(int(arrays.applier_progress[PROGRESS_TIME]), last_ns)
        next_position = int(staged[-1]["position"]) + 1
        arrays.reached[0] = arrays.counters[RESERVED] = arrays.replica[0] = next_position
        arrays.control[CONTROL_COMMITTED] = arrays.control[CONTROL_DURABLE] = next_position
    pending = arrays.pending[0]
    first_free = int(pending["count"])
    arrays.staged[first_free : first_free + count] = staged
    pending["count"] = first_free + count
    pending["in_flight"] -= 1
    if not pending["in_flight"]:
        pending["next"] = first_free + count


def advance_log(cycles: Array, size: int) -> None:
    """Advance the end of the log by `size` bytes."""
    cycle = cycles[0]
    arrays = _arrays(cycle)
    log = arrays.log[0]
    at, epoch, synced_through = int(log["at"]) + size, int(log["epoch"]) + 1, int(log["synced_through"])
    log["at"], log["epoch"], log["position"] = at, epoch, int(cycle["position"]) + 1
    log["next_at"], log["next_epoch"] = at, epoch + 1
    log["timestamp_ns"] = arrays.numbers[LAST_TIMESTAMP]
    log["synced_through"] = at if cycle["is_durable"] else synced_through
