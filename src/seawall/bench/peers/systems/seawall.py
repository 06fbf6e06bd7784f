"""Seawall: `seawall serve` with its default settings."""

from __future__ import annotations

import sys
from pathlib import Path

import seawall
from seawall.bench.peers.system import Setup


class Seawall:
    """`seawall serve` of this installation."""

    key = "seawall"
    name = "Seawall"

    def missing(self, _programs: Path) -> str | None:
        """Nothing: it is this package."""
        return None

    def version(self, _programs: Path) -> str:
        """The version of this package."""
        return f"seawall {seawall.__version__}"

    def settings(self) -> str:
        """The classes of the topics."""
        return (
            "written: topics of class disk; synced: class fsync; publisher with its defaults, lists of 2 MiB or one "
            "call for each record; records(), read_arrow()"
        )

    def prepare(self, _programs: Path, _setup: Setup) -> None:
        """Nothing: a new directory is set up by its first start."""

    def command(self, _programs: Path, setup: Setup) -> list[str]:
        """The command line. A killed node leaves its shared memory behind, so that has a directory to be removed."""
        options = ["--data", str(setup.data), "--port", str(setup.port)]
        return [sys.executable, "-m", "seawall", "--set", f"fabric.directory={setup.shared}", "serve", *options]
