"""A node in its own process: where it listens, how it shuts down, and what is stored after a kill."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from lwp2_peer import Peer, world

from seawall.cli.main import seawall
from seawall.cli.token_file import read_access
from seawall.core.types import TopicId
from seawall.engine.api.open_log import open_log
from seawall.errors import InvalidInputError
from seawall.server.connection.access import Right
from seawall.wire.format.codes import AckStatus, ErrorCode, GapReason, ReadBy
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp1.requests import CreateTopic
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Error, Goodbye


class Process:
    """A node that was started, and its exit."""

    def __init__(self, data: Path, *arguments: str):
        self.run_file = data.parent / "run.json"
        command = [sys.executable, "-m", "seawall", "serve", "--port", "0", "--run-file", str(self.run_file)]
        command += arguments if "--dev" in arguments else ["--data", str(data), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        #: It prints its address once it listens, or ends.
        self.first_line = self.process.stdout.readline()
        assert self.first_line, self.process.stderr.read()
        self.address = json.loads(self.run_file.read_text())["lwp"]

    async def connect(self):
        host, _, port = self.address.rpartition(":")
        return Peer(*await asyncio.open_connection(host, int(port), limit=64 << 20))

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self):
        """Exit code and output."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err


@contextmanager
def node(data, *arguments):
    made = Process(data, *arguments)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


async def create(peer, name=b"events"):
    peer.ask(CreateTopic(name.decode()), request_id=50)
    frame = await peer.frame()
    assert frame.header.id == 50
    return json.loads(bytes(frame.payload))


def test_a_node_prints_its_address_and_shuts_down_orderly(tmp_path):
    async def work(made):
        peer = await made.connect()
        await peer.hello()
        topic = await create(peer)
        assert (topic["id"], topic["name"]) == (1, "events")
        assert (await peer.publish(1, b"one"))["base_seq"] == 1
        made.signal(signal.SIGTERM)
        goodbye = await peer.answer(Goodbye)
        assert (goodbye.code, goodbye.drain_ms) == (ErrorCode.SHUTTING_DOWN, 25_000)
        await peer.ended()

    with node(tmp_path / "data") as made:
        assert made.address in made.first_line
        assert json.loads(made.run_file.read_text())["pid"] == made.process.pid
        asyncio.run(work(made))
        code, said = made.ended()
        assert (code, "has stopped." in said) == (0, True)
        assert not made.run_file.exists()
    with open_log(tmp_path / "data") as log:
        # The next seq is the next: nothing had to be recovered.
        assert log.publish("events", b"two").seqs == range(2, 3)
        assert [record.value for batch in log.read("events") for record in batch] == [b"one", b"two"]
        assert not log.verify().findings


@pytest.mark.parametrize("again", [True, False])
def test_a_drain_that_does_not_complete_is_cut_off(tmp_path, again):
    """A peer that receives no answers keeps a connection open until the deadline, or until a second signal.

    INV-NODE-DRAINED: the directory is recovered by the next opening, and nothing that was acked is missing.
    """

    async def work(made):
        peer = await made.connect()
        await peer.hello()
        await create(peer)
        await peer.publish(1, *(os.urandom(1 << 20) for _ in range(12)))
        for number in range(40):
            peer.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1 << 22, 0), request_id=number)
        await peer.writer.drain()
        other = await made.connect()
        await other.hello(8)
        made.signal(signal.SIGINT)
        await other.answer(Goodbye)
        await other.ended()
        if again:
            made.signal(signal.SIGINT)
        code, said = await asyncio.to_thread(made.ended)
        assert code == 1, said
        assert ("immediately" in said) == again
        assert "recovers" in said
        peer.close()

    with node(tmp_path / "data", "--drain", "60" if again else "0.2") as made:
        asyncio.run(work(made))
    with open_log(tmp_path / "data") as log:
        # Whatever seqs may have been seen are not given again.
        assert log.publish("events", b"after").seqs.start > 13
        items = list(log.follow("events"))
        assert [item.reason for item in items if isinstance(item, Gap)] == [GapReason.CRASH]
        assert sum(len(item) for item in items if not isinstance(item, Gap)) == 13
        assert not log.verify().findings


def test_a_kill_loses_nothing_that_was_acked(tmp_path):
    acked = []

    async def publish(made):
        peer = await made.connect()
        await peer.hello()
        await create(peer)
        sent = 0
        while len(acked) < 600:
            while sent - len(acked) < 100:
                sent += 1
                peer.send(peer.batch(1, b"%d" % sent))
            acked.extend(row["client_seq"] for row in await peer.acks(1))
        made.process.kill()
        made.process.wait()
        peer.close()

    async def resume(made):
        peer = await made.peer()
        next_seq = peer.welcome.next_seq
        assert next_seq > max(acked)
        # Batches of unknown outcome are sent again, and so is the last stored one.
        for seq in range(next_seq - 1, next_seq + 20):
            row = await peer.publish(1, b"%d" % seq, seq=seq)
            assert row["status"] == (AckStatus.DUPLICATE if seq < next_seq else AckStatus.OK)
        peer.close()
        return next_seq + 19

    with node(tmp_path / "data") as made:
        asyncio.run(publish(made))
    assert made.run_file.exists()

    async def start_again():
        async with world(tmp_path) as made:
            return await resume(made)

    last = asyncio.run(start_again())
    with open_log(tmp_path / "data") as log:
        values = [record.value for item in log.follow("events") if hasattr(item, "block") for record in item]
        assert values == [b"%d" % seq for seq in range(1, last + 1)]


def test_a_dev_node_that_is_cut_off_leaves_no_files(tmp_path):
    async def work(made):
        peer = await made.connect()
        await peer.hello()
        await create(peer)
        await peer.publish(1, os.urandom(8 << 20))
        for number in range(40):
            peer.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1 << 24, 0), request_id=number)
        await peer.writer.drain()
        made.signal(signal.SIGINT)
        while "received SIGINT" not in (await asyncio.to_thread(made.process.stdout.readline)):
            pass
        made.signal(signal.SIGINT)
        assert (await asyncio.to_thread(made.ended))[0] == 1
        peer.close()

    with node(tmp_path / "data", "--dev") as made:
        data = Path(made.first_line.split()[2])
        asyncio.run(work(made))
        assert not data.parent.exists()


def test_the_commands_that_a_dev_node_prints_work_and_it_leaves_no_files(tmp_path):
    command = tmp_path / "seawall"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m seawall "$@"\n')
    command.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with node(tmp_path / "data", "--dev") as made:
        data = Path(made.first_line.split()[2])
        assert data.is_dir()
        lines = []
        while not lines or "log.publish" not in lines[-1]:
            lines.append(made.process.stdout.readline())
        publish, read, follow = [line.strip() for line in lines if " seawall " in line and "--url" in line]
        code = textwrap.dedent("".join(lines[lines.index("  import seawall\n") :]))
        done = subprocess.run(
            ["sh", "-c", publish], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        done = CliRunner().invoke(seawall, shlex.split(read)[1:])
        assert done.stdout.split() == ["999", "1000"], done.output
        following = subprocess.Popen(["sh", "-c", f"exec {follow}"], env=environ, stdout=subprocess.PIPE, text=True)
        try:
            # It starts with the next record: publish records until it has started.
            seen = asyncio.run(_first_line(following, code))
        finally:
            following.terminate()
            following.communicate()
        assert seen in ("1001\n", "1002\n")
        made.signal(signal.SIGTERM)
        assert made.ended()[0] == 0
        assert not data.parent.exists()


async def _first_line(following, code):
    line = asyncio.ensure_future(asyncio.to_thread(following.stdout.readline))
    while not line.done():
        await asyncio.to_thread(exec, code, {})
        await asyncio.wait((line,), timeout=0.2)
    return line.result()


@pytest.fixture(scope="module")
def node_with_tokens(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens")
    (path / "tokens").write_text("# known tokens\nsecret\nmachine write_only\n")
    with node(path / "data", "--token-file", str(path / "tokens")) as made:
        made.data = path / "data"
        yield made


def test_a_peer_without_a_token_is_refused(node_with_tokens):
    async def work(made):
        peer = await made.connect()
        assert (await peer.hello()).code == ErrorCode.AUTHENTICATION_REQUIRED
        await peer.hello(token="machine")
        await create(peer)
        assert (await peer.publish(1, b"one"))["base_seq"] == 1
        peer.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1000, 0))
        assert (await peer.answer(Error)).code == ErrorCode.ACCESS_DENIED
        peer.close()

    asyncio.run(work(node_with_tokens))


def test_a_directory_has_one_node(node_with_tokens):
    second = CliRunner().invoke(seawall, ["serve", "--data", str(node_with_tokens.data), "--port", "0"])
    assert second.exit_code == 1
    assert "one process at a time" in second.output


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "no token"), ("a b c\n", "line 1"), ("x\na nonsense\n", "line 2"), ("a read_rate=1\n", "line 1")],
)
def test_a_bad_token_file_is_refused(tmp_path, text, problem):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=problem):
        read_access(str(path), 0, takes_certificates=False)


def test_tokens_are_read_by_lines(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("one\n\n# no token\ntwo write_only\nfast read_rate=10MiB\n")
    access = read_access(str(path), 0, takes_certificates=False)
    assert access.rate_of("fast") is not None
    assert access.rate_of("one") is None
    assert [access.right_of(token) for token in ("one", "two", "three")] == [Right.ALL, Right.WRITE_ONLY, None]
    assert read_access("", 0, takes_certificates=False).is_open
