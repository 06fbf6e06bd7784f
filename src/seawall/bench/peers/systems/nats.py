"""NATS JetStream with streams in files."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from seawall.bench.peers.clients.base import HOST
from seawall.bench.peers.system import HOW_TO_GET, Setup

#: The first version with `sync_interval`.
_VERSION_MIN: Final = (2, 10)

_CONFIGURATION: Final = """\
listen: "{host}:{port}"
jetstream {{
  store_dir: "{data}"
  max_file_store: 64GB
  {sync}
}}
"""


class Nats:
    """One nats-server."""

    key = "nats"
    name = "NATS"

    def missing(self, programs: Path) -> str | None:
        """The server or the client."""
        if _server(programs) is None:
            return f"nats-server is neither in {programs / 'bin'} nor on the path; {HOW_TO_GET}"
        if (number := _version(programs)) < _VERSION_MIN:
            return f"nats-server {'.'.join(map(str, number))} cannot sync before each ack; {HOW_TO_GET}"
        if find_spec("nats") is None:
            return f"the Python package nats-py is not installed; {HOW_TO_GET}"
        return None

    def version(self, programs: Path) -> str:
        """As the server reports it."""
        number = ".".join(map(str, _version(programs)))
        return f"NATS {number}, nats-py {metadata.version('nats-py')}"

    def settings(self) -> str:
        """The options that are set."""
        return (
            "JetStream, file storage; written: its defaults; synced: sync_interval always; bulk: publish_async() with "
            "8,000 in flight; pushing ordered consumer, fetch(1000) without acks"
        )

    def prepare(self, _programs: Path, setup: Setup) -> None:
        """Write the configuration."""
        sync = "sync_interval: always" if setup.synced else ""
        text = _CONFIGURATION.format(host=HOST, port=setup.port, data=setup.data, sync=sync)
        (setup.directory / "nats.conf").write_text(text, encoding="utf-8")

    def command(self, programs: Path, setup: Setup) -> list[str]:
        """The server with its configuration."""
        return [str(_server(programs)), "--config", str(setup.directory / "nats.conf")]


def _version(programs: Path) -> tuple[int, ...]:
    """The version of the server as numbers."""
    command = [str(_server(programs)), "--version"]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(int(number) for number in re.findall(r"\d+", line)[:3])


def _server(programs: Path) -> str | None:
    """The one that `make peers` built, else the one on the path."""
    return shutil.which("nats-server", path=str(programs / "bin")) or shutil.which("nats-server")
