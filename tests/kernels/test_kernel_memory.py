"""Primitives on bytes and atomics: loads, stores, copies, addresses, prefetch, atomic operations.

In python mode (NUMBA_DISABLE_JIT=1) a primitive is its Python stand-in, so the same tests check that.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.runtime import atomics, jit, memory
from twins.runtime import atomics as atomics_twin
from twins.runtime import memory as memory_twin

EXAMPLES = 20 if jit.PYTHON_MODE else 100
bytes_in, bytes_out, int64, uint64, void = jit.bytes_in, jit.bytes_out, jit.int64, jit.uint64, jit.void


def compiled(primitive: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """A kernel that does nothing but call one primitive."""
    names = ["a", "b", "c", "d", "e"][: len(signature.args)]
    source = f"lambda {', '.join(names)}: primitive({', '.join(names)})"
    function = eval(source, {"primitive": primitive})
    made: Callable[..., Any] = numba.njit([signature], nogil=True, boundscheck=jit.CHECKED_MODE)(function)
    return made


LOADS = {
    "load_u16": compiled(memory.load_u16, int64(bytes_in, int64)),
    "load_u32": compiled(memory.load_u32, int64(bytes_in, int64)),
    "load_u64": compiled(memory.load_u64, uint64(bytes_in, int64)),
    "load_i64": compiled(memory.load_i64, int64(bytes_in, int64)),
}
STORES = {
    "store_u16": compiled(memory.store_u16, void(bytes_out, int64, int64)),
    "store_u32": compiled(memory.store_u32, void(bytes_out, int64, int64)),
    "store_u64": compiled(memory.store_u64, void(bytes_out, int64, int64)),
    "store_u64 of u64": compiled(memory.store_u64, void(bytes_out, int64, uint64)),
}
COPY = compiled(memory.copy_bytes, void(bytes_out, int64, bytes_in, int64, int64))
STREAM = compiled(memory.stream_line, void(bytes_out, int64, bytes_in, int64))
PREFETCH = compiled(memory.prefetch, void(bytes_in, int64))
ADDRESS = compiled(memory.address_of, int64(bytes_in, int64))
FLUSH = compiled(atomics.flush_line, void(bytes_in, int64))
SIGNED_LOAD = compiled(atomics.load_acquire, int64(jit.int64_out, int64))
SIGNED_STORE = compiled(atomics.store_release, void(jit.int64_out, int64, int64))
SIGNED_ADD = compiled(atomics.fetch_add, int64(jit.int64_out, int64, int64))
SIGNED_EXCHANGE = compiled(atomics.compare_exchange, int64(jit.int64_out, int64, int64, int64))


@settings(max_examples=EXAMPLES)
@given(st.binary(min_size=8, max_size=24), st.data())
def test_loads(data: bytes, draw: st.DataObject) -> None:
    array = np.frombuffer(data, np.uint8)
    at = draw.draw(st.integers(0, len(data) - 8))
    for name, load in LOADS.items():
        size, signed = int(name[-2:]) // 8, name == "load_i64"
        expected = int.from_bytes(data[at : at + size], "little", signed=signed)
        assert int(load(array, at)) == expected


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 8), st.integers(-(2**63), 2**63 - 1))
def test_stores(at: int, value: int) -> None:
    for name, store in STORES.items():
        size = int(name.removesuffix(" of u64")[-2:]) // 8
        given_value = value % 2**64 if name.endswith("of u64") else value
        expected = bytearray(b"\xee" * 16)
        expected[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        array = np.full(16, 0xEE, np.uint8)
        store(array, at, given_value)
        assert array.tobytes() == expected


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=40), st.data())
def test_copies(data: bytes, draw: st.DataObject) -> None:
    source = np.frombuffer(data, np.uint8)
    source_at = draw.draw(st.integers(0, len(data)))
    length = draw.draw(st.integers(0, len(data) - source_at))
    target_at = draw.draw(st.integers(0, 5))
    expected = bytearray(b"\xee" * 50)
    expected[target_at : target_at + length] = data[source_at : source_at + length]
    for copy in (COPY, memory.copy_block, memory_twin.copy_block):
        target = np.full(50, 0xEE, np.uint8)
        copy(target, target_at, source, source_at, length)
        assert target.tobytes() == expected


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 1_300), st.integers(0, 70), st.integers(0, 5))
def test_copies_that_bypass_the_caches_write_the_same_bytes(length: int, target_at: int, source_at: int) -> None:
    source = np.arange(length + source_at, dtype=np.int64).astype(np.uint8)
    expected = bytearray(b"\xee" * 1_400)
    expected[target_at : target_at + length] = source[source_at:].tobytes()
    for copy in (memory.copy_out, memory_twin.copy_out):
        target = np.full(1_400, 0xEE, np.uint8)
        copy(target, target_at, source, source_at, length)
        assert target.tobytes() == expected


def test_addresses() -> None:
    array = np.zeros(16, np.uint8)
    assert ADDRESS(array, 3) == array.ctypes.data + 3
    assert ADDRESS(array, 16) == array.ctypes.data + 16


needs_checks = pytest.mark.skipif(
    not (jit.CHECKED_MODE or jit.PYTHON_MODE), reason="compiled kernels check no index: NUMBA_BOUNDSCHECK=1 does"
)

OUTSIDE: dict[str, Callable[[], object]] = {
    **{
        f"{name} at {at}": lambda load=load, at=at: load(np.zeros(8, np.uint8), at)
        for name, load in LOADS.items()
        for at in (-1, 7, 8, 2**40)
    },
    **{
        f"{name} at {at}": lambda store=store, at=at: store(np.zeros(8, np.uint8), at, 1)
        for name, store in STORES.items()
        for at in (-1, 7, 2**40)
    },
    "copy to before the start": lambda: COPY(np.zeros(8, np.uint8), -1, np.zeros(8, np.uint8), 0, 2),
    "copy to after the end": lambda: COPY(np.zeros(8, np.uint8), 7, np.zeros(8, np.uint8), 0, 2),
    "copy from before the start": lambda: COPY(np.zeros(8, np.uint8), 0, np.zeros(8, np.uint8), -1, 1),
    "copy from after the end": lambda: COPY(np.zeros(8, np.uint8), 0, np.zeros(8, np.uint8), 0, 9),
    "copy_block": lambda: memory.copy_block(np.zeros(8, np.uint8), 0, np.zeros(4, np.uint8), 0, 5),
    "flush after the end": lambda: FLUSH(np.zeros(8, np.uint8), 8),
    "flush before the start": lambda: FLUSH(np.zeros(8, np.uint8), -1),
    "flush_lines": lambda: atomics.flush_lines(np.zeros(8, np.uint8), 0, 9),
    "atomic load": lambda: SIGNED_LOAD(np.zeros(2, np.int64), 2),
    "atomic store": lambda: SIGNED_STORE(np.zeros(2, np.int64), 2, 0),
    "atomic add": lambda: SIGNED_ADD(np.zeros(2, np.int64), 2, 0),
    "atomic exchange": lambda: SIGNED_EXCHANGE(np.zeros(2, np.int64), 2, 0, 0),
    "half word": lambda: atomics.load_acquire_u32(np.zeros(3, np.uint32), 3),
}


@needs_checks
@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_outside_raises_where_checks_are_on(name: str) -> None:
    with pytest.raises(IndexError):
        OUTSIDE[name]()


@needs_checks
def test_a_copy_of_no_bytes_checks_no_index() -> None:
    empty = np.zeros(0, np.uint8)
    COPY(empty, 5, empty, 9, 0)


# --- atomics ------------------------------------------------------------------------------------------------------

WIDTHS = {"u64": np.uint64, "u32": np.uint32}


def shared(path: Path, dtype: type[np.unsignedinteger[Any]]) -> tuple[Any, Any]:
    """Two arrays over two mappings of one file, as two processes would have."""
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        maps = [mmap.mmap(file.fileno(), 4096) for _ in range(2)]
    return tuple(np.frombuffer(each, dtype) for each in maps)


@pytest.mark.parametrize("width", WIDTHS)
def test_atomics_over_a_shared_mapping(width: str, tmp_path: Path) -> None:
    here, there = shared(tmp_path / "shared", WIDTHS[width])
    load, store, add, exchange = (
        getattr(atomics, f"{name}_{width}")
        for name in ("load_acquire", "store_release", "fetch_add", "compare_exchange")
    )
    top = int(np.iinfo(WIDTHS[width]).max)
    last = here.size - 1
    store(here, last, top)
    assert load(there, last) == top == there[last]
    assert add(there, last, 1) == top, "wraps around"
    assert load(here, last) == 0
    assert add(here, last, top) == 0
    assert add(here, last, top) == top
    assert load(there, last) == top - 1
    assert exchange(here, last, top, 5) == top - 1
    assert there[last] == top - 1
    assert exchange(here, last, top - 1, top) == top - 1
    assert there[last] == top
    assert not here[:last].any()


@pytest.mark.parametrize("width", WIDTHS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_atomics_equal_their_twins(width: str, data: st.DataObject) -> None:
    numbers = st.one_of(st.integers(0, 3), st.integers(0, int(np.iinfo(WIDTHS[width]).max)))
    initial = data.draw(st.lists(numbers, min_size=3, max_size=3))
    index, one, other = data.draw(st.integers(0, 2)), data.draw(numbers), data.draw(numbers)
    calls = {"load_acquire": (), "store_release": (one,), "fetch_add": (one,), "compare_exchange": (one, other)}
    for name, rest in calls.items():
        outcomes = []
        for module in (atomics, atomics_twin):
            array = np.array(initial, WIDTHS[width])
            outcomes.append((getattr(module, f"{name}_{width}")(array, index, *rest), array.tolist()))
        assert outcomes[0] == outcomes[1]


@settings(max_examples=EXAMPLES)
@given(*[st.one_of(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1))] * 3)
def test_signed_atomics(initial: int, one: int, other: int) -> None:
    array = np.array([7, initial, 7], np.int64)
    assert SIGNED_LOAD(array, 1) == initial
    SIGNED_STORE(array, 1, one)
    assert array.tolist() == [7, one, 7]
    assert SIGNED_ADD(array, 1, other) == one
    total = (one + other + 2**63) % 2**64 - 2**63
    assert array.tolist() == [7, total, 7], "wraps around"
    assert SIGNED_EXCHANGE(array, 1, other, initial) == total
    assert array.tolist() == [7, initial if total == other else total, 7]
    array[1] = one
    assert SIGNED_EXCHANGE(array, 1, one, other) == one
    assert array.tolist() == [7, other, 7]


def test_flushing_changes_nothing() -> None:
    array = np.arange(256, dtype=np.uint8)
    for start, end in ((0, 256), (0, 0), (3, 4), (63, 65), (255, 256), (1, 130)):
        atomics.flush_lines(array, start, end)
        atomics_twin.flush_lines(array, start, end)
        assert array.tolist() == list(range(256))


def test_adding_many_times() -> None:
    for module in (atomics, atomics_twin):
        array = np.array([0, 2**64 - 2], np.uint64)
        assert module.add_many(array, 1, 5) == 5
        assert array.tolist() == [0, 3]


@pytest.mark.skipif(not jit.CHECKED_MODE, reason="only the checked mode checks alignment")
def test_an_unaligned_array_raises_where_checks_are_on() -> None:
    """INV-ATOMIC-ALIGNED"""
    unaligned = np.zeros(20, np.uint8)[1:17].view(np.uint64)
    for call in (lambda: atomics.load_acquire_u64(unaligned, 0), lambda: atomics.fetch_add_u64(unaligned, 1, 1)):
        with pytest.raises(ValueError, match="not aligned"):
            call()


def test_a_line_is_copied_bypassing_the_caches() -> None:
    space = np.zeros(256, np.uint8)
    start = -space.ctypes.data % memory.LINE_SIZE
    source = np.arange(100, dtype=np.uint8)
    STREAM(space, start + memory.LINE_SIZE, source, 7)
    assert space[start + memory.LINE_SIZE : start + 2 * memory.LINE_SIZE].tolist() == list(range(7, 71))
    assert np.count_nonzero(space) == memory.LINE_SIZE


def test_a_prefetch_outside_the_array_is_harmless() -> None:
    array = np.frombuffer(b"unchanged", np.uint8)
    for at in (0, 8, 9, -(2**40), 2**40):
        PREFETCH(array, at)
    assert array.tobytes() == b"unchanged"


def first_byte(address: int) -> int:
    return int(numba.carray(memory.pointer_at(address), 1, np.uint8)[0])


def test_a_pointer_made_from_an_address_reads_that_memory() -> None:
    array = np.array([17, 4], np.uint8)
    assert numba.njit([int64(int64)])(first_byte)(array.ctypes.data + 1) == 4
