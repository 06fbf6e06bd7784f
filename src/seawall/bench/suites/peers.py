"""Suite `peers`: Seawall beside the systems that users would pick instead, on the same machine in the same run.

The shapes of load are in `peers/shapes.py`, the systems in `peers/systems`. A system that is not on this machine is
reported with the way to get it, and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from seawall.bench.comparison import Comparison, Side
from seawall.bench.harness import BenchContext
from seawall.bench.peers.shapes import Bed, Scale, Shape, shapes
from seawall.bench.peers.system import DEFAULT_PROGRAMS, System
from seawall.bench.peers.systems.kafka import Kafka
from seawall.bench.peers.systems.nats import Nats
from seawall.bench.peers.systems.redis import Redis
from seawall.bench.peers.systems.seawall import Seawall
from seawall.errors import InvalidInputError

#: The other systems, in the order of their turns.
PEERS: Final[tuple[System, ...]] = (Kafka(), Redis(), Nats())


def suite(context: BenchContext) -> Iterator[Comparison]:
    """List the comparisons of this suite."""
    return compared(context, Scale())


def compared(context: BenchContext, scale: Scale) -> Iterator[Comparison]:
    """List the selected comparisons at a scale."""
    selection = context.selection
    known = shapes(scale)
    wanted = _selected("shape", selection.shapes, list(known))
    keys = _selected("system", selection.only, [peer.key for peer in PEERS])
    programs = (selection.programs or DEFAULT_PROGRAMS).expanduser()
    peers = [peer for peer in PEERS if peer.key in keys]
    missing = {peer.name: reason for peer in peers if (reason := peer.missing(programs)) is not None}
    found = [Seawall(), *(peer for peer in peers if peer.name not in missing)]
    descriptions = {system.name: f"{system.version(programs)}; {system.settings()}" for system in found}

    def side(shape: Shape, system: System) -> Side:
        bed = Bed(system, programs, Path(context.directory), scale)
        return Side(system.name, descriptions[system.name], shape.open(bed))

    for name in wanted:
        for shape in known[name]:
            ours, *others = [side(shape, system) for system in found]
            yield Comparison(shape.name, shape.figures, ours, tuple(others), missing, shape.warms_up)


def _selected(what: str, chosen: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """The chosen names in the order of the known ones; all if none is chosen."""
    for name in chosen:
        if name not in known:
            raise InvalidInputError(f"unknown {what} {name!r}: choose from {', '.join(known)}")
    return [name for name in known if name in chosen] if chosen else known
