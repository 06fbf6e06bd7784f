"""Redis streams with an append-only file."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from seawall.bench.peers.clients.base import HOST
from seawall.bench.peers.system import HOW_TO_GET, Setup


class Redis:
    """One Redis server."""

    key = "redis"
    name = "Redis"

    def missing(self, _programs: Path) -> str | None:
        """The server or the client."""
        if shutil.which("redis-server") is None:
            return "redis-server is not on the path; get it with: apt-get install redis-server"
        if find_spec("redis") is None:
            return f"the Python package redis is not installed; {HOW_TO_GET}"
        return None

    def version(self, _programs: Path) -> str:
        """As the server reports it."""
        line = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        number = next((word[2:] for word in line.split() if word.startswith("v=")), "")
        return f"Redis {number}, redis-py {metadata.version('redis')}"

    def settings(self) -> str:
        """The options that are set."""
        return (
            "appendonly yes, no snapshots; written: appendfsync everysec; synced: appendfsync always; bulk: pipelines "
            "of 1,000 XADD; XREAD BLOCK, XREAD COUNT 1000; hiredis parser"
        )

    def prepare(self, _programs: Path, setup: Setup) -> None:
        """Make the data directory."""
        setup.data.mkdir()

    def command(self, _programs: Path, setup: Setup) -> list[str]:
        """The server with its settings as options."""
        sync = "always" if setup.synced else "everysec"
        options = {"--bind": HOST, "--port": str(setup.port), "--dir": str(setup.data), "--save": ""}
        log = {"--appendonly": "yes", "--appendfsync": sync, "--daemonize": "no", "--loglevel": "warning"}
        return ["redis-server", *(word for pair in (options | log).items() for word in pair)]
