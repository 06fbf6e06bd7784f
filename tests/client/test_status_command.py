"""`seawall status`: what a server reports of itself, for people and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner
from real_server import RealServer

from seawall.cli.main import seawall


def test_state_brokers_and_load_are_reported(tmp_path: Path) -> None:
    server = RealServer(tmp_path / "data")
    server.start()
    try:
        shown = CliRunner().invoke(seawall, ["status", "--url", server.url])
        told = CliRunner().invoke(seawall, ["status", "--url", server.url, "--json"])
    finally:
        server.stop()
    assert (shown.exit_code, told.exit_code) == (0, 0), shown.output + told.output
    # A name, some space, and a value, which may be empty.
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in shown.output.splitlines())
    assert lines["state"] == "ok"
    assert "1 connections on" in lines["broker 0"]
    assert int(lines["load.peer_memory_limit"]) > int(lines["load.peer_memory"]) >= 0
    document = json.loads(told.output)
    assert document["state"] == "ok"
    assert document["load"]["slow_callbacks"] >= 0
