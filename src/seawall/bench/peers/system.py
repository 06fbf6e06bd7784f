"""What the benchmark knows of a system: how to find, set up and start its server, and which client drives it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: The directory below the user's cache that `make peers` fills.
DEFAULT_PROGRAMS = Path("~/.cache/seawall/peers")
#: Says how to get what is missing.
HOW_TO_GET = "get it with: make peers"


@dataclass(frozen=True, slots=True)
class Setup:
    """Where one server runs, and whether it must sync records before their acks."""

    directory: Path
    #: A directory in memory, for servers that share memory between their processes.
    shared: Path
    port: int
    #: A second free port, for servers that need one for themselves.
    inner_port: int
    synced: bool
    #: True if the server is paused at times: it must not take that for a failure.
    is_paused: bool = False

    @property
    def data(self) -> Path:
        """The data directory of the server."""
        return self.directory / "data"


class System(Protocol):
    """One system under test. `programs` is the directory with its programs, if it is not installed elsewhere."""

    @property
    def key(self) -> str:
        """The name of the client in `client_process`. Its family, up to the first hyphen, is the name in options."""
        ...

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    def missing(self, programs: Path) -> str | None:
        """What is missing on this machine and the command that gets it; None if the system can run."""
        ...

    def version(self, programs: Path) -> str:
        """Versions of server and client."""
        ...

    def settings(self) -> str:
        """What differs from the defaults, when records are written, when synced, and the options of the client."""
        ...

    def prepare(self, programs: Path, setup: Setup) -> None:
        """Write configuration files and format the data directory, if that is needed."""
        ...

    def command(self, programs: Path, setup: Setup) -> list[str]:
        """The command that serves a prepared directory."""
        ...


def family(system: System) -> str:
    """The name in options, which systems with one server and several clients or settings share."""
    return system.key.partition("-")[0]
