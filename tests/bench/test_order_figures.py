"""The figures of suite `order`: every batch is ordered, order 5 is kept, and processes exit cleanly."""

from __future__ import annotations

import numpy as np
import pytest

from seawall.bench.subjects import order_rings
from seawall.bench.subjects.order_pod import STRONG, WEAK, running_pod
from seawall.bench.subjects.order_rings import SLOTS, FilledRings, Load
from seawall.bench.subjects.order_writers import SAMPLES, WriterLoad
from seawall.fabric import records
from seawall.kernels.runtime import jit

pytestmark = pytest.mark.skipif(jit.PYTHON_MODE, reason="rings of the real size take minutes in plain Python")

LOADS = (
    Load(),
    Load(is_strong=True),
    Load(is_strong=True, reordered_percent=10),
    Load(clients=1_000),
    Load(clients=30_000, is_strong=True, reordered_percent=10),
)


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_filled_rings_are_ordered_and_freed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_rings, "ENTRIES", 2 * SLOTS)
    rings = FilledRings(load)
    fabric = rings._fabric
    for lap in range(1, 4):
        assert rings.fill() == SLOTS
        published = fabric.pbr[0][["client_id", "client_seq"]].copy()
        rings.drain()
        entries = fabric.goi[(np.arange(SLOTS) + (lap - 1) * SLOTS) % len(fabric.goi)]
        assert not (entries["flags"] & np.uint32(records.FLAG_NOP | records.FLAG_SKIP)).any()
        assert (fabric.results[0]["status"] == 0).all()
        assert int(fabric.completion_words[0][records.COMPLETION_COMPLETED]) == lap * SLOTS
        # A stable sort by client keeps the order of each client's batches.
        by_client = entries[np.argsort(entries["client_id"], kind="stable")]
        if load.is_strong:
            same = by_client["client_id"][1:] == by_client["client_id"][:-1]
            steps = by_client["client_seq"][1:].astype(np.int64) - by_client["client_seq"][:-1].astype(np.int64)
            assert (steps[same] == 1).all()
        assert sorted(published.tolist()) == sorted(entries[["client_id", "client_seq"]].tolist())


def test_one_batch_of_ten_is_out_of_order() -> None:
    rings = FilledRings(Load(is_strong=True, reordered_percent=10))
    _, seqs = rings._next_batches()
    assert 0.099 < np.count_nonzero(seqs != np.arange(1, SLOTS + 1)) / SLOTS <= 0.1


def test_a_pod_of_processes_answers_its_writers_and_exits() -> None:
    loads = [
        WriterLoad(1_000, WEAK, 32, 64, 32),
        WriterLoad(1_001, WEAK, 200_000, 4, 2),
        WriterLoad(5_000, STRONG, 32, 32, 32, leaves_gap=True),
    ]
    with running_pod(loads) as pod:
        before = pod.cpu_ns()
        with pod.publishing():
            while min(board.acked for board in pod.boards[:2]) < 100:
                pod.wait_for_acks()
        for board in pod.boards[:2]:
            latencies = board.latencies()
            assert 100 <= latencies.size <= SAMPLES
            assert (latencies > 0).all()
        assert pod.cpu_ns() > before
    assert [process.exit_code for process in pod.processes] == [0] * 5
