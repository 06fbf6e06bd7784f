"""Undo the last writes of a sequencer, to simulate a crash in the middle of a step.

A worker writes its entries in sequence, each with its token last. After a crash, the entries of its last run have from
some entry on the tokens of the previous lap, or none. The frontier counts positions as committed before it writes their
results for the brokers. After a crash, the results are missing from some position on.
"""

from __future__ import annotations

from random import Random

from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays

__all__ = ["tear_entries", "tear_results"]


def tear_entries(fabric: FabricArrays, chance: Random, written: range) -> None:
    """Remove some of the last entries of a worker."""
    entries = len(fabric.goi)
    for position in range(chance.choice(written), written.stop):
        before = position + 1 - entries
        fabric.goi[position % entries]["token"] = before if before > 0 and chance.random() < 0.5 else 0


def tear_results(fabric: FabricArrays, chance: Random, first: int, end: int) -> None:
    """Remove some of the last results of the frontier."""
    if first == end:
        return
    for position in range(chance.randint(first, end - 1), end):
        entry = fabric.goi[position % len(fabric.goi)]
        broker, index = int(entry["broker"]), int(entry["pbr_index"])
        if broker != records.NO_BROKER:
            ring = fabric.results[broker]
            ring[index % len(ring)]["token"] = max(0, index + 1 - len(ring))
