"""Commands with `--url`: the same behaviour with a server as with a data directory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from scripted_server import Peer, ScriptedServer

from seawall import connect
from seawall.api.topic_config import Durability, Order, TopicConfig
from seawall.cli.main import seawall
from seawall.wire.lwp2.reading import Fetch


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


def run(server: ScriptedServer, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(seawall, [*arguments, "--url", server.url], input=text)


def test_topics(server: ScriptedServer) -> None:
    assert run(server, "topic", "create", "events").output == "created events (topic 1)\n"
    assert run(server, "topic", "create", "aged", "--set", "ttl_ms=60000").exit_code == 0
    assert run(server, "topic", "list").output.splitlines() == [
        "aged    0 records  0 bytes  empty",
        "events  0 records  0 bytes  empty",
    ]
    assert run(server, "topic", "set", "events", "cap_bytes=1000").output == "changed events\n"
    described = json.loads(run(server, "topic", "describe", "events", "--json").output)
    assert described["config"] == TopicConfig(cap_bytes=1000).to_json()
    assert run(server, "topic", "delete", "events", "--yes").output == "deleted events\n"
    assert "events" not in run(server, "topic", "list").output


def test_settings_and_deletes_work_as_with_a_directory(server: ScriptedServer) -> None:
    created = run(server, "topic", "create", "events", "--order", "5", "--set", "durability=disk", "--json")
    assert json.loads(created.output)["config"] == TopicConfig(order=Order.CLIENT, durability=Durability.DISK).to_json()
    run(server, "pub", "events", text="one\ntwo\nthree\n")
    assert run(server, "delete", "events", "--before", "3", "--yes").output == "deleted 2 records of events\n"
    assert run(server, "delete", "nowhere", "--before", "3", "--yes").exit_code == 2


def test_publish_and_read(server: ScriptedServer) -> None:
    assert run(server, "pub", "events", "--create", text="one\ntwo\nthree\n").output.startswith(
        "3 records, seqs 1 to 3"
    )
    assert run(server, "read", "events").output == "one\ntwo\nthree\n"
    assert run(server, "read", "events", "--from", "2", "--limit", "1").output == "two\n"
    assert run(server, "read", "events", "--from", "latest").output == ""


def test_owners(server: ScriptedServer) -> None:
    run(server, "pub", "events", "--create", text="one\ntwo\n")
    committed = ("sub", "events", "--from", "committed", "--owner", "billing", "--commit")
    assert run(server, *committed, "--limit", "1").output == "one\n"
    assert run(server, *committed).output == "two\n"
    assert run(server, *committed).output == ""


def test_following_waits_for_new_records(server: ScriptedServer) -> None:
    run(server, "pub", "events", "--create", text="one\n")
    publishers: list[threading.Thread] = []

    def publish() -> None:
        with connect(server.url) as log:
            log.publish("events", "two")

    def publish_when_waiting(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch) and request.wait_ms and not publishers:
            publishers.append(threading.Thread(target=publish))
            publishers[0].start()
        return True

    server.script.on_request = publish_when_waiting
    followed = run(server, "sub", "events", "--follow", "--limit", "2", "--owner", "billing", "--commit")
    publishers[0].join()
    assert followed.output == "one\ntwo\n"
    assert set(server.topic("events").cursors.values()) == {3}


def test_a_url_and_a_directory_together_are_refused(server: ScriptedServer, tmp_path: Path) -> None:
    both = run(server, "topic", "list", "--data", str(tmp_path))
    assert both.exit_code == 2
    assert "name two logs" in both.output


def test_a_token_may_come_from_the_environment(server: ScriptedServer) -> None:
    runner = CliRunner(env={"SEAWALL_TOKEN": "secret"})
    assert runner.invoke(seawall, ["topic", "list", "--url", server.url]).exit_code == 0
    assert server.hellos[-1].token == "secret"
    assert run(server, "topic", "list", "--token", "other").exit_code == 0
    assert server.hellos[-1].token == "other"


def test_a_bad_url_is_the_callers_mistake() -> None:
    refused = CliRunner().invoke(seawall, ["topic", "list", "--url", "http://host"])
    assert refused.exit_code == 2
    assert "seawall://host:port" in refused.output
