"""`seawall status`: the state of a server as text and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner
from real_server import RealServer

from seawall.cli.main import seawall


def test_state_brokers_and_load_are_reported(tmp_path: Path) -> None:
    with RealServer(tmp_path / "data") as server:
        shown = CliRunner().invoke(seawall, ["status", "--url", server.url])
        as_json = CliRunner().invoke(seawall, ["status", "--url", server.url, "--json"])
    assert (shown.exit_code, as_json.exit_code) == (0, 0), shown.output + as_json.output
    # A name, at least two spaces, and a value, which may be empty.
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in shown.output.splitlines())
    assert lines["state"] == "ok"
    assert "1 connections on" in lines["broker 0"]
    assert int(lines["load.peer_memory_limit"]) > int(lines["load.peer_memory"]) >= 0
    document = json.loads(as_json.output)
    assert document["state"] == "ok"
    assert document["load"]["slow_callbacks"] >= 0
