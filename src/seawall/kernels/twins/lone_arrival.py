"""What the kernels of `lone_arrival` mean, by the twins they are made of."""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import numpy as np

from seawall.kernels import lone_arrival as places
from seawall.kernels.client_window import CHECK_NEW, NEXT_EXPECTED, ROW_WORDS, SIDE_PAGE, WINDOW_RESULT
from seawall.kernels.epochs import EPOCH_HEADER, WAL_ROW
from seawall.kernels.frontier import ADMISSION_ROW, LAST_TIMESTAMP, NEXT_POSITION, RUN_DONE, TOPIC_ROW
from seawall.kernels.goi_frontier import COMPLETION_WORDS, CONTROL_COMMITTED, CONTROL_DURABLE, FLAG_STRONG_ORDER
from seawall.kernels.holding import HELD, READY_HEAD, READY_TAIL, UNSETTLED_HEAD, UNSETTLED_TAIL
from seawall.kernels.memory import Array, Bytes
from seawall.kernels.order_entries import FLOOR, RESERVED
from seawall.kernels.tables import ABSENT, Values
from seawall.kernels.twins.client_index import find_row
from seawall.kernels.twins.client_window import decide_row, judge_row
from seawall.kernels.twins.epochs import list_batch
from seawall.kernels.twins.frontier import Header, admit_batch, header_at
from seawall.kernels.twins.goi_frontier import refusal_of
from seawall.kernels.twins.lone_batch import seal_epoch

_NUMBER: Final = np.dtype(np.int64)
_ROW: Final = np.dtype((np.uint64, ROW_WORDS))
_WINDOW: Final[tuple[np.dtype[Any], ...]] = (np.dtype(np.uint32), _ROW, _ROW, _ROW, WINDOW_RESULT)
_TYPES: Final[tuple[np.dtype[Any], ...]] = (
    *(np.dtype(np.uint64), _NUMBER, np.dtype(np.uint8), TOPIC_ROW, _NUMBER, ADMISSION_ROW, WAL_ROW),
    *(*_WINDOW, *_WINDOW, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER),
)


class _Pod(NamedTuple):
    """Words of a pod."""

    control: Values
    counters: Values
    replica: Values
    tails: Values
    completion: Values
    worker: Values


def _array_at(address: int, size: int, dtype: np.dtype[Any]) -> Array:
    memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype, size)


def _arrays(desk: Values) -> list[Array]:
    told = desk[places.KEYS : places.OPERATION].tolist()
    return [_array_at(*pair) for pair in zip(told[::2], told[1::2], _TYPES, strict=True)]


def _row_if_new(window: list[Array], header: Header) -> int:
    where, clients, sides, *_ = window
    row = find_row(where, clients, header.client_id) if header.client_id < 1 << 63 else ABSENT
    if row == ABSENT or sides[row, SIDE_PAGE]:
        return ABSENT
    code = judge_row(header.client_seq, header.session_epoch, clients, sides, row)
    return row if code == CHECK_NEW else ABSENT


def _decide(desk: Values, window: list[Array], header: Header) -> None:
    _, clients, sides, slots, results = window
    at = decide_row(header.client_seq, 1, clients, sides, slots, _row_if_new(window, header))
    results[at] = (*desk[places.POSITION : places.TERM].tolist(), header.block_crc, 0, 0, 1)


def _is_at_rest(desk: Values, pod: _Pod, position: int) -> bool:
    reached = {
        *(int(pod.counters[RESERVED]), int(pod.control[CONTROL_COMMITTED]), int(pod.control[CONTROL_DURABLE])),
        int(desk[places.FOLLOWED]),
    }
    worker = pod.worker
    is_idle = worker[READY_HEAD] == worker[READY_TAIL] and worker[UNSETTLED_HEAD] == worker[UNSETTLED_TAIL]
    is_early = position - pod.counters[FLOOR] < desk[places.CHECKPOINT_AFTER]
    is_completed = pod.tails[::8].tolist() == pod.completion[::COMPLETION_WORDS].tolist()
    return reached == {position} and not worker[HELD] and bool(is_idle) and bool(is_early) and is_completed


def order_lone_arrival(
    memory: Bytes, desk: Values, source: Bytes, at: int, size: int, is_strong: int, copied: int, address: int
) -> int:
    """Everything that has to be so, then the batch with its numbers, its row, and the window."""
    keys, values, used, topics, numbers, rows, staged, *arrays = _arrays(desk)
    order_window, store_window, pod = arrays[:5], arrays[5:10], _Pod(*arrays[10:])
    header = header_at(source, at)
    position = int(numbers[NEXT_POSITION])
    row = _row_if_new(order_window, header)
    found = [int(values[entry]) for entry in np.flatnonzero(used) if int(keys[entry]) == header.topic_id]
    flags = FLAG_STRONG_ORDER if is_strong else 0
    if not _is_at_rest(desk, pod, position) or ABSENT in (row, _row_if_new(store_window, header)):
        return places.PASSES_ON
    if not found or refusal_of(int(topics[found[0]]["flags"]), flags):
        return places.PASSES_ON
    if is_strong and header.client_seq != order_window[1][row, NEXT_EXPECTED]:
        return places.PASSES_ON
    memory[EPOCH_HEADER : EPOCH_HEADER + copied] = source[at : at + copied]
    term, wall_ns = int(desk[places.TERM]), int(desk[places.WALL_NS])
    code = admit_batch(memory, EPOCH_HEADER, term, wall_ns, keys, values, used, topics, numbers, rows, 0)
    if code != RUN_DONE:
        return places.PASSES_ON
    desk[places.POSITION : places.TERM] = rows[["position", "base_seq", "timestamp_ns"]][0].tolist()
    list_batch(memory, EPOCH_HEADER, address, size, staged, int(desk[places.STAGED_ROW]))
    _decide(desk, order_window, header)
    return RUN_DONE


def stage_lone_arrival(memory: Bytes, desk: Values, source: Bytes, at: int, size: int, is_strong: int) -> int:
    """The same with all of the batch, and the header of the epoch."""
    address = int(desk[places.ADDRESS]) + EPOCH_HEADER
    if order_lone_arrival(memory, desk, source, at, size, is_strong, size, address) != RUN_DONE:
        return places.PASSES_ON
    numbers = _arrays(desk)[4]
    salt, epoch, synced_through = desk[places.SALT : places.ADDRESS].tolist()
    position = int(desk[places.POSITION])
    return seal_epoch(memory, size, 1, salt, epoch, synced_through, position, int(numbers[LAST_TIMESTAMP]))


def settle_lone_arrival(desk: Values, memory: Bytes) -> None:
    """The store's window, and everything that says how far the order has come."""
    arrays = _arrays(desk)
    pod = _Pod(*arrays[17:])
    _decide(desk, arrays[12:17], header_at(memory, EPOCH_HEADER))
    following = int(desk[places.POSITION]) + 1
    pod.counters[RESERVED] = pod.replica[0] = following
    pod.control[CONTROL_COMMITTED] = pod.control[CONTROL_DURABLE] = following
