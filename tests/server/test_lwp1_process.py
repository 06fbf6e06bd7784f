"""Version 1 with a node in its own process: what is stored after a kill and after an orderly shutdown."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from v1_clients import ACK, PythonClient, record
from v1_server import Served, served


class Process:
    """A node that was started."""

    def __init__(self, data: Path) -> None:
        run_file = data.parent / "run.json"
        command = [sys.executable, "-m", "seawall", "serve", "--data", str(data), "--port", "0"]
        self.process = subprocess.Popen([*command, "--run-file", str(run_file)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        # It prints its address once it listens.
        assert self.process.stdout.readline()
        host, _, port = json.loads(run_file.read_text())["lwp"].rpartition(":")
        self.address = str(host), int(port)


@contextmanager
def node(data: Path) -> Iterator[Process]:
    made = Process(data)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


async def everything(client: PythonClient, topic: int) -> list[bytes]:
    offset, found = 0, []
    while (step := await client.poll(topic, offset))[1]:
        offset, found = step[0], found + step[1]
    return found


def test_a_kill_loses_nothing_that_was_acked(tmp_path: Path) -> None:
    acked = 0

    async def publish(made: Process) -> None:
        nonlocal acked
        client = await PythonClient.connect(made.address)
        topic = await client.create("events")
        sent = 0
        while acked < 500:
            while sent - acked < 200:
                sent += 1
                client.send(client.ingest(record(b"%d" % sent), topic))
            assert await client.acks(1) == [acked + 1]
            acked += 1
        made.process.kill()
        made.process.wait()
        client.writer.transport.abort()

    async def check(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        found = await everything(client, 1)
        # Maybe more than was acked, never less, and in the order of sending.
        assert len(found) >= acked
        assert found == [b"%d" % number for number in range(1, len(found) + 1)]
        end = (await client.fetch(1, 0xFFFF_FFFF_FFFF_FFFF, 1))[0]
        await client.publish(1, record(b"more"))
        assert (await client.fetch(1, end))[2] == record(b"more")
        await client.close()

    with node(tmp_path / "data") as made:
        asyncio.run(publish(made))
    served(None, tmp_path, check)


def test_an_orderly_shutdown_answers_every_accepted_frame(tmp_path: Path) -> None:
    answered: list[int] = []

    async def publish(made: Process) -> None:
        client = await PythonClient.connect(made.address)
        topic = await client.create("events")
        client.send(*(client.ingest(record(b"%d" % number), topic) for number in range(1, 501)))
        assert (await client.receive()).flags == ACK
        made.process.send_signal(signal.SIGTERM)
        try:
            while True:
                assert (await client.receive()).flags == ACK
                answered.append(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        client.writer.transport.abort()

    async def check(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        # Everything that was accepted was answered.
        assert len(await everything(client, 1)) == len(answered) + 1
        await client.close()

    with node(tmp_path / "data") as made:
        asyncio.run(publish(made))
        assert made.process.wait(60) == 0
    served(None, tmp_path, check)
