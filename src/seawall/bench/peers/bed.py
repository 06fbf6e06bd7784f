"""What a shape of load is measured on: a system with its server and clients, turn by turn.

Servers run in processes of their own, and so do clients, which start anew for each turn. Unless a shape starts servers
itself, they run through all rounds, paused while it is not their turn. Each turn has a new topic, deleted after it, and
begins once all that earlier turns wrote is on the disk: nobody pays for the writes of another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, TypeAlias

from seawall.bench.comparison import ComparedFigure, OpenSide, SideRun
from seawall.bench.peers import client_runs
from seawall.bench.peers.client_process import Figures, Options
from seawall.bench.peers.servers import Server, running
from seawall.bench.peers.system import System, family
from seawall.limits import GIB, MIB

OURS: Final = "seawall"


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes that do not follow from the seconds of a turn. Tests use smaller ones."""

    consumed_size: int = 128 * MIB
    loaded_size: int = 128 * MIB
    recovered_size: int = GIB
    waiting_counts: tuple[int, ...] = (2, 8, 64)
    #: Fewest records of a paced writer, and how many of them come before those that count.
    paced_min: int = 1_000
    paced_warm_up: int = 500
    #: The same for jobs, of which a library may execute some dozens a second.
    jobs_min: int = 100
    jobs_warm_up: int = 20


@dataclass(frozen=True, slots=True)
class Bed:
    """One system, where its programs are, where its files go, and the sizes."""

    system: System
    programs: Path
    directory: Path
    scale: Scale

    @property
    def is_ours(self) -> bool:
        """True for Seawall."""
        return family(self.system) == OURS


class Target:
    """A server that runs, for a shape to drive."""

    def __init__(self, bed: Bed, server: Server) -> None:
        self.bed: Final = bed
        self.server: Final = server
        self._topics = count()

    def options(self, topic: str = "fixed") -> Options:
        """The options of a client of a topic."""
        return Options(self.server.port, topic, synced=self.server.setup.synced)

    def run(self, role: str, options: Options) -> Figures:
        """Run a client process to its end."""
        return client_runs.run_client(self.bed.system.key, role, options)

    def client(self, role: str, options: Options) -> AbstractContextManager[client_runs.ClientRun]:
        """Start a client process."""
        return client_runs.client(self.bed.system.key, role, options)

    @contextmanager
    def new_topic(self) -> Iterator[Options]:
        """Create a topic; yields the options of its clients, and deletes it."""
        options = self.options(f"turn{next(self._topics)}")
        self.run("create", options)
        yield options
        self.run("delete", options)


Work: TypeAlias = Callable[[Target, float], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Shape:
    """One comparison: the systems that take part, Seawall first, its figures, and how to open a side."""

    name: str
    systems: tuple[System, ...]
    figures: tuple[ComparedFigure, ...]
    open: Callable[[Bed], OpenSide]
    warms_up: bool = True


def _leave_empty(_target: Target) -> None:
    """Publish nothing before the first turn."""


def served(work: Work, *, synced: bool, fill: Callable[[Target], None] = _leave_empty) -> Callable[[Bed], OpenSide]:
    """A side with one server for all rounds, which runs during its turns only. `fill` is called once."""

    def opened(bed: Bed) -> AbstractContextManager[SideRun]:
        return _serve(bed, work, fill, synced=synced)

    return lambda bed: partial(opened, bed)


@contextmanager
def _serve(bed: Bed, work: Work, fill: Callable[[Target], None], *, synced: bool) -> Iterator[SideRun]:
    with running(bed.system, bed.programs, bed.directory, synced=synced, is_paused=True) as server:
        target = Target(bed, server)
        fill(target)
        server.pause()

        def run(seconds: float) -> Mapping[str, float]:
            os.sync()
            server.resume()
            try:
                return work(target, seconds)
            finally:
                server.pause()

        yield run


def started(work: Callable[[Bed], Mapping[str, float]]) -> Callable[[Bed], OpenSide]:
    """A side whose every run starts servers itself."""

    @contextmanager
    def opened(bed: Bed) -> Iterator[SideRun]:
        def run(_seconds: float) -> Mapping[str, float]:
            os.sync()
            return work(bed)

        yield run

    return lambda bed: partial(opened, bed)
