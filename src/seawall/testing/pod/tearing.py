"""What a sequencer leaves that ends in the middle of a step: the last things it wrote are not there yet.

A worker writes its entries one after the other, each with its token last: from some entry on, the rest of its last
stretch has the tokens of a lap before, or none. The frontier counts positions as committed before it tells brokers of
them: from some position on they have no result.
"""

from __future__ import annotations

from random import Random

from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays

__all__ = ["tear_entries", "tear_results"]


def tear_entries(fabric: FabricArrays, chance: Random, written: range) -> None:
    """Take away some of the entries that a worker has written last."""
    entries = len(fabric.goi)
    for position in range(chance.choice(written), written.stop):
        before = position + 1 - entries
        fabric.goi[position % entries]["token"] = before if before > 0 and chance.random() < 0.5 else 0


def tear_results(fabric: FabricArrays, chance: Random, first: int, end: int) -> None:
    """Take away some of the results that the frontier has written last."""
    if first == end:
        return
    for position in range(chance.randint(first, end - 1), end):
        entry = fabric.goi[position % len(fabric.goi)]
        broker, index = int(entry["broker"]), int(entry["pbr_index"])
        if broker != records.NO_BROKER:
            ring = fabric.results[broker]
            ring[index % len(ring)]["token"] = max(0, index + 1 - len(ring))
