"""What numba made of the kernels: no floats, no GIL, no allocation."""

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
    """What a compiled function does step by step, and the types that numba found for each step.

    It wrote them down when it compiled the function, and the cache keeps what it wrote: nothing is compiled for this.
    """
    steps = []
    for overload in function.overloads.values():
        parts = (line.rpartition("  :: ") for line in str(overload.type_annotation).splitlines())
        steps += [(step.strip("# "), types) for step, sign, types in parts if sign]
    return steps


def inferred_floats(function: Any) -> list[str]:
    """Steps of a compiled function that have to do with floating point."""
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
def test_a_u64_that_is_mixed_with_an_int64_would_be_noticed(
    function: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a loop index in sight, and one where no step but the meeting of two ways makes the float."""
    monkeypatch.setattr(jit, "cache_directory", lambda: tmp_path)
    for is_cached in (False, True):
        compiled: Any = jit._compile(function, jit.int64(jit.uint64_out))
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


def test_an_allocation_would_be_noticed() -> None:
    assert allocations(grow, jit.int64(jit.uint64_out))


def test_python_goes_on_while_a_kernel_runs() -> None:
    """The kernel counts in memory that this thread watches; under the GIL it could see 0 and the end, and no more."""
    counter = np.zeros(1, np.uint64)
    watched = ctypes.c_uint64.from_address(counter.ctypes.data)
    rounds = 200_000_000
    seen = set()
    thread = threading.Thread(target=atomics.add_many, args=(counter, 0, rounds))
    thread.start()
    while thread.is_alive() and len(seen) < 50:
        seen.add(watched.value)
    # No need to wait for the rest: what was asked is answered once the count was caught on its way.
    assert len({value for value in seen if 0 < value < rounds}) >= 40
    thread.join()
    assert counter[0] == rounds


def test_all_kernels_release_the_gil() -> None:
    assert all(each.function.targetoptions["nogil"] for each in OURS.values())
