"""Every kernel has a twin that takes the same arguments, and machine code depends on nothing outside the package."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import seawall.kernels
import twins
from seawall.kernels.runtime import jit
from seawall.kernels.runtime.warm import kernel_modules, warm

KERNELS = Path(seawall.kernels.__file__).parent
TWINS = Path(twins.__file__).parent

#: Kernels of the sequencer's workers: one twin for all of them, a worker built from dicts.
ONE_MODEL = {
    "ordering.holding": (
        "push_ready unhold bounce oldest_hold start_gap hold_batch needed_from bounce_pinned bounce_client"
    ),
    "ordering.collecting": "slot_of_ref",
    "runtime.prefetch": "prefetch_rows",
    "ordering.deciding": "release_held drain_refs",
    "ordering.gaps": "expire_gaps",
    "ordering.order_entries": (
        "wrap_floor reserve_positions has_range_space write_entries settle_entries reserve_repeatedly"
    ),
}

#: Kernels without a twin, each with the reason.
WITHOUT_TWIN = {
    **{
        f"{module}.{name}": "is compared with a model, entry by entry, in tests/sequencer/test_order_worker_model.py"
        for module, names in ONE_MODEL.items()
        for name in names.split()
    },
    "network.batch_arrival.receive_batch": "makes system calls; sum_arrived, called for each piece, has a twin",
    "network.chunk_arrival.receive_chunks": "makes system calls; check_chunks, called for each piece, has a twin",
    "runtime.disk_ring.request_signal": "signals another thread",
    "runtime.disk_ring.execute": "is a system call",
    "runtime.disk_ring.measure_chain": "measures time",
    "runtime.disk_ring.wake_server": "signals another thread",
    "runtime.disk_ring.wake_server_and_request_signal": "signals another thread",
    "runtime.disk_ring.serve_pending": "makes system calls; its bookkeeping (refusal, settle) has twins",
    "runtime.disk_ring.serve_resident": "serves until a stop is requested",
    "runtime.disk_ring.take_completion": "sleeps until another thread signals",
    "runtime.disk_ring.wake_submitter": "signals another thread",
    "network.waiting_exchange.exchange_one_batch": "makes system calls; its parts (seal and read) have twins",
    **{
        f"runtime.locks.{name}": "calls the C library, and other threads wait for it"
        for name in ("acquire_lock", "acquire_lock_within", "release_lock", "try_acquire_lock")
    },
    **{
        f"network.publish_cycle.{name}": "makes system calls; the steps (commit_cycle, publish_io) have twins"
        for name in ("run_cycles", "settle_received", "stage_received")
    },
    "network.publish_io.receive_batches": "makes system calls; accept_batches has a twin",
    "network.publish_io.send_acks": "makes system calls; what it sends (write_ack) has a twin",
    "runtime.rings.consume_pattern": "a stress loop against another process",
    "runtime.rings.produce_pattern": "a stress loop against another process",
    "network.waiting_publisher.publish_pipelined": "makes system calls; count_acked, which counts answers, has a twin",
    "network.waiting_publisher.publish_waiting": "makes system calls; its parts are those of waiting_exchange",
    "codec.values.send_values": "makes system calls; what it sends (join_part) has a twin",
    "runtime.uring.serve_uring": "serves until a stop is requested",
}

#: Twins that work on an object instead of the kernel's arrays.
ON_OBJECTS = {"table_find", "table_put", "table_remove", "heap_push", "heap_pop"}


def public_kernels() -> dict[str, jit.Kernel]:
    warm()
    prefix = "seawall.kernels."
    found = {f"{each.module.removeprefix(prefix)}.{each.name}": each for each in jit.kernels().values()}
    ours = {name: each for name, each in found.items() if each.module.startswith(prefix)}
    return {name: each for name, each in ours.items() if not each.name.startswith("_")}


def twin_of(name: str) -> object:
    module, _, function = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"twins.{module}"), function, None)
    except ModuleNotFoundError:
        return None


def test_every_public_kernel_has_a_twin_or_a_reason() -> None:
    names = set(public_kernels())
    assert len(names) > 40
    assert {name for name in names if twin_of(name) is None} == set(WITHOUT_TWIN)


@pytest.mark.parametrize("name", sorted(set(public_kernels()) - set(WITHOUT_TWIN)))
def test_a_twin_has_the_parameters_of_its_kernel(name: str) -> None:
    twin = twin_of(name)
    assert callable(twin)
    expected = list(inspect.signature(public_kernels()[name].source).parameters)
    given = list(inspect.signature(twin).parameters)
    if name.rpartition(".")[2] in ON_OBJECTS:
        expected = [parameter for parameter in expected if parameter not in ("keys", "values", "used", "counts")]
        given = given[1:]
    assert given == expected


def test_every_twin_module_has_a_kernel_module() -> None:
    modules = {Path(*name.split(".")[2:]).with_suffix(".py") for name in kernel_modules()}
    assert {path.relative_to(TWINS) for path in TWINS.rglob("*.py") if path.stem != "__init__"} <= modules


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.py")), ids=lambda path: path.stem)
def test_kernels_import_nothing_of_seawall_that_the_cache_key_does_not_cover(path: Path) -> None:
    own = {name for name in imported_modules(path) if name.startswith("seawall")}
    assert all(name.startswith("seawall.kernels") for name in own)
    assert not any(name.startswith("twins") for name in own)


@pytest.mark.parametrize("path", sorted(TWINS.rglob("*.py")), ids=lambda path: path.stem)
def test_twins_import_no_numba_themselves(path: Path) -> None:
    assert not [name for name in imported_modules(path) if name.split(".")[0] in ("numba", "llvmlite")]


def test_warming_reports_each_module_once() -> None:
    seen: list[tuple[str, int, int]] = []
    seconds = warm(lambda name, done, total: seen.append((name, done, total)))
    names = kernel_modules()
    assert seconds >= 0
    assert "seawall.kernels.runtime.warm" not in names
    assert seen == [(name, index, len(names)) for index, name in enumerate(names, start=1)]


def test_importing_the_package_loads_no_numba() -> None:
    check = "import sys, seawall.kernels, seawall.kernels.runtime.warm; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True)


FIRST_CALLS = """
import sys
import numpy as np
from seawall.kernels.codec import frames
from seawall.kernels.runtime import atomics, disk_ring, memory, warm

warm.warm()
before = set(sys.modules)
data = np.frombuffer(bytearray(b"LAN"), np.uint8)
memory.copy_block(np.zeros(3, np.uint8), 0, data, 0, 3)
frames.split_frames(data, 0, 3, 10, np.zeros(2, frames.FRAME_ROW), np.zeros(frames.STATE_SIZE, np.int64))
atomics.load_acquire_u32(np.zeros(2, np.uint32), 0)
disk_ring.submit_slots(np.zeros(disk_ring.ring_words(2), np.int64))
assert set(sys.modules) == before, set(sys.modules) - before
"""


def test_calling_a_kernel_imports_nothing() -> None:
    """An import on a thread's first call could leave a child, forked at that moment, waiting for a lock forever."""
    subprocess.run([sys.executable, "-W", "error", "-c", FIRST_CALLS], check=True)
