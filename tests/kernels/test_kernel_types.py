"""What numba made of the kernels: no floats, no GIL, no allocation."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from seawall.kernels import atomics, jit
from seawall.kernels.warm import warm

pytestmark = pytest.mark.skipif(jit.PYTHON_MODE, reason="plain Python infers no types")

warm()
OURS = {key: each for key, each in jit.kernels().items() if each.module.startswith("seawall.kernels.")}

#: What machine code calls to get memory from the heap.
ALLOCATION = ("NRT_Allocate", "NRT_MemInfo_alloc", "NRT_MemInfo_new", "malloc")


def inferred_floats(function: Callable[..., Any], signature: Any) -> list[str]:
    """Names of variables that became floating point when the function is compiled for the signature."""
    dispatcher = numba.njit([signature])(function)
    found = []
    for overload in dispatcher.overloads.values():
        types = overload.type_annotation.typemap
        found += [f"{name}: {each}" for name, each in types.items() if isinstance(each, numba.types.Float)]
    return found


@pytest.mark.slow
def test_no_kernel_computes_in_floating_point() -> None:
    assert len(OURS) > 50
    floats = {key: inferred_floats(each.source, each.signature) for key, each in OURS.items()}
    assert {key: names for key, names in floats.items() if names} == {}


def sum_of_indexes(values: Any) -> int:
    total = np.uint64(0)
    for index in range(values.size):
        total += index
    return int(total)


def test_a_loop_index_added_to_a_u64_would_be_noticed() -> None:
    assert inferred_floats(sum_of_indexes, jit.int64(jit.uint64_out))


def grow(values: Any) -> int:
    return int(np.zeros(values.size, np.int64).size)


def allocations(function: Callable[..., Any], signature: Any) -> set[str]:
    """Allocating functions that the compiled code calls."""
    dispatcher = numba.njit([signature], error_model="numpy")(function)
    return {name for code in dispatcher.inspect_asm().values() for name in ALLOCATION if name in code}


@pytest.mark.parametrize("name", ["blocks.check_block", "frames.split_frames", "columns.locate_envelopes"])
def test_parsers_of_foreign_bytes_allocate_nothing(name: str) -> None:
    each = OURS[f"seawall.kernels.{name}"]
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
