"""Suite `peers`: Seawall beside the systems that users would pick instead, on the same machine in the same run.

The shapes of load are in `peers/shapes.py`, the systems in `peers/systems`; each shape names the systems that take part
in it. A system that is not on this machine is reported with the way to get it, and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from seawall.bench.comparison import Comparison, Side
from seawall.bench.harness import BenchContext
from seawall.bench.peers.bed import OURS, Bed, Scale, Shape
from seawall.bench.peers.shapes import shapes
from seawall.bench.peers.system import DEFAULT_PROGRAMS, System, family
from seawall.errors import InvalidInputError


def suite(context: BenchContext) -> Iterator[Comparison]:
    """List the comparisons of this suite."""
    return compared(context, Scale())


def compared(context: BenchContext, scale: Scale) -> Iterator[Comparison]:
    """List the selected comparisons at a scale."""
    selection = context.selection
    known = shapes(scale)
    families = _families(shape for named in known.values() for shape in named)
    wanted = _selected("shape", selection.shapes, list(known))
    chosen = {OURS, *_selected("system", selection.only, families)}
    programs = (selection.programs or DEFAULT_PROGRAMS).expanduser()
    # A shape without any of the chosen systems would show Seawall alone.
    selected = [
        (shape, systems)
        for name in wanted
        for shape in known[name]
        if len(systems := [each for each in shape.systems if family(each) in chosen]) > 1
    ]
    if not selected:
        raise InvalidInputError(f"no shape of {', '.join(wanted)} has {', '.join(selection.only)}")
    everyone = {system.key: system for _, systems in selected for system in systems}
    missing = {key: reason for key, system in everyone.items() if (reason := system.missing(programs)) is not None}
    descriptions = _descriptions((each for each in everyone.values() if each.key not in missing), programs)

    def side(shape: Shape, system: System) -> Side:
        bed = Bed(system, programs, Path(context.directory), scale)
        return Side(system.name, descriptions[system.name], shape.open(bed))

    for shape, systems in selected:
        ours, *others = [side(shape, system) for system in systems if system.key not in missing]
        absent = {system.name: missing[system.key] for system in systems if system.key in missing}
        yield Comparison(shape.name, shape.figures, ours, tuple(others), absent, shape.warms_up)


def _families(known: Iterable[Shape]) -> list[str]:
    """The names of all other systems in options, in the order of their turns."""
    names = dict.fromkeys(family(system) for shape in known for system in shape.systems)
    return [name for name in names if name != OURS]


def _descriptions(systems: Iterable[System], programs: Path) -> Mapping[str, str]:
    """Versions and settings by the names in reports; Seawall has settings for each kind of shape."""
    found: dict[str, list[str]] = {}
    for system in systems:
        found.setdefault(system.name, [system.version(programs)]).append(system.settings())
    return {name: "; ".join(texts) for name, texts in found.items()}


def _selected(what: str, chosen: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """The chosen names in the order of the known ones; all if none is chosen."""
    for name in chosen:
        if name not in known:
            raise InvalidInputError(f"unknown {what} {name!r}: choose from {', '.join(known)}")
    return [name for name in known if name in chosen] if chosen else known
