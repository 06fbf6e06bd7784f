"""Atomics and rings between processes on one mapping: no update is lost, torn or doubled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from seawall.kernels.runtime import jit, rings

pytestmark = [
    pytest.mark.skipif(jit.PYTHON_MODE, reason="Python stand-ins are atomic under one GIL only"),
    pytest.mark.slow,
]

#: Fewer steps in checked mode: the code is slower and uses the same instruction.
SCALE = 10 if jit.CHECKED_MODE else 1
ADDITIONS = 5_000_000 // SCALE
EXCHANGES = 200_000 // SCALE
SLOTS = 10_000_000 // SCALE
FILE_SIZE = 64 * 1024
DEADLINE_S = 120

PROLOGUE = """
import mmap, sys
import numpy as np
from seawall.kernels.runtime import atomics, rings

path, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "r+b") as file:
    words = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint64)
"""

ADD = "assert atomics.add_many(words, 0, count) == count"

#: An increment counts only if no other process changed the value between load and exchange.
ADD_BY_EXCHANGE = """
done = 0
while done < count:
    before = atomics.load_acquire_u64(words, 8)
    done += atomics.compare_exchange_u64(words, 8, before, before + 1) == before
"""

PASS_SLOTS = """
signed = words.view(np.int64)
counters, slots = signed[: rings.COUNTER_WORDS], signed[rings.COUNTER_WORDS :][: 256 * rings.SLOT_WORDS]
work = rings.consume_pattern if number else rings.produce_pattern
outcome = work(slots, counters, 0, count, np.zeros(rings.CONTENT_WORDS, np.int64))
assert outcome == count, f"slot {-1 - outcome} is torn, lost or repeated"
"""


def run(work: str, path: Path, processes: int, count: int) -> npt.NDArray[np.uint64]:
    """Run the same work in several processes over one file; returns the final content of the file."""
    path.write_bytes(bytes(FILE_SIZE))
    command = [sys.executable, "-W", "error", "-c", PROLOGUE + work, str(path)]
    started = [subprocess.Popen([*command, str(number), str(count)]) for number in range(processes)]
    try:
        assert [process.wait(DEADLINE_S) for process in started] == [0] * processes
    finally:
        for process in started:
            process.kill()
            process.wait()
    return np.frombuffer(path.read_bytes(), np.uint64)


def test_no_addition_of_four_processes_is_lost(tmp_path: Path) -> None:
    assert run(ADD, tmp_path / "counter", 4, ADDITIONS)[0] == 4 * ADDITIONS


def test_no_exchange_of_three_processes_is_lost(tmp_path: Path) -> None:
    assert run(ADD_BY_EXCHANGE, tmp_path / "counter", 3, EXCHANGES)[8] == 3 * EXCHANGES


def test_a_ring_between_two_processes_loses_nothing(tmp_path: Path) -> None:
    words = run(PASS_SLOTS, tmp_path / "ring", 2, SLOTS)
    assert words[rings.PRODUCED] == words[rings.CONSUMED] == SLOTS
