"""Compiled kernels use no floating point, hold no GIL and allocate nothing."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from seawall.kernels.runtime import atomics, jit
from seawall.kernels.runtime.warm import warm

pytestmark = pytest.mark.skipif(jit.PYTHON_MODE, reason="plain Python infers no types")

warm()
OURS = {key: each for key, each in jit.kernels().items() if each.module.startswith("seawall.kernels.")}

#: What machine code calls to get memory from the heap.
ALLOCATION = ("NRT_Allocate", "NRT_MemInfo_alloc", "NRT_MemInfo_new", "malloc")


def inferred_types(function: Any) -> list[tuple[str, str]]:
    """The steps of a compiled function, and the types that numba inferred for each.

    numba stored them when it compiled the function, and the cache keeps them: nothing is compiled for this.
    """
    steps = []
    for overload in function.overloads.values():
        parts = (line.rpartition("  :: ") for line in str(overload.type_annotation).splitlines())
        steps += [(step.strip("# "), types) for step, sign, types in parts if sign]
    return steps


def inferred_floats(function: Any) -> list[str]:
    """Steps of a compiled function whose types contain a float."""
    return [f"{step}: {types}" for step, types in inferred_types(function) if "float" in types]


@pytest.mark.slow
def test_no_kernel_computes_in_floating_point() -> None:
    assert len(OURS) > 50
    assert [key for key, each in OURS.items() if not inferred_types(each.function)] == []
    floats = {key: inferred_floats(each.function) for key, each in OURS.items()}
    assert {key: steps for key, steps in floats.items() if steps} == {}


def sum_of_indexes(values: Any) -> int:
    total = np.uint64(0)
    for index in range(values.size):
        total += index
    return int(total)


def signed(value: Any) -> int:
    return int(value)


def unsigned(value: Any) -> Any:
    return np.uint64(value)


signed_kernel = numba.njit([jit.int64(jit.int64)])(signed)
unsigned_kernel = numba.njit([jit.uint64(jit.int64)])(unsigned)


def either_of_two(values: Any) -> int:
    found = signed_kernel(3) if values[0] else unsigned_kernel(3)
    return int(found)


@pytest.mark.parametrize("function", [sum_of_indexes, either_of_two])
def test_mixing_u64_with_int64_is_detected(
    function: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """In one function a step computes the float; in the other only the join of two branches does."""
    monkeypatch.setenv("SEAWALL_KERNELS_CACHE_DIR", str(tmp_path))
    request.addfinalizer(jit.cache_directory.cache_clear)
    jit.cache_directory.cache_clear()
    for is_cached in (False, True):
        compiled: Any = jit.kernel(jit.int64(jit.uint64_out))(function)
        compiled.load()
        assert bool(compiled.stats.cache_hits) is is_cached
        assert inferred_floats(compiled)


def grow(values: Any) -> int:
    return int(np.zeros(values.size, np.int64).size)


def allocations(function: Callable[..., Any], signature: Any) -> set[str]:
    """Allocating functions that the compiled code calls."""
    dispatcher = numba.njit([signature], error_model="numpy")(function)
    return {name for code in dispatcher.inspect_asm().values() for name in ALLOCATION if name in code}


@pytest.mark.parametrize("name", ["blocks.check_block", "frames.split_frames", "columns.locate_envelopes"])
def test_parsers_of_foreign_bytes_allocate_nothing(name: str) -> None:
    each = OURS[f"seawall.kernels.codec.{name}"]
    assert allocations(each.source, each.signature) == set()


def test_an_allocation_is_detected() -> None:
    assert allocations(grow, jit.int64(jit.uint64_out))


def test_python_runs_while_a_kernel_runs() -> None:
    """The kernel counts in memory that this thread watches; under the GIL it would see only the ends."""
    counter = np.zeros(1, np.uint64)
    watched = ctypes.c_uint64.from_address(counter.ctypes.data)
    steps, runs = 10_000_000, 0
    seen: set[int] = set()
    while len(seen) < 40 and runs < 30:
        thread = threading.Thread(target=atomics.add_many, args=(counter, 0, steps))
        thread.start()
        while thread.is_alive():
            value = watched.value
            if value % steps:
                seen.add(value)
        thread.join()
        runs += 1
    assert len(seen) >= 40
    assert counter[0] == runs * steps


def test_all_kernels_release_the_gil_but_brief_ones() -> None:
    brief = {each.module for each in OURS.values() if not each.function.targetoptions["nogil"]}
    assert brief == {"seawall.kernels.queues.leases"}
