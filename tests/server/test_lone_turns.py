"""Batches that a connection sends upon each answer are taken without a turn of the loop; nobody else can tell."""

import asyncio
import sys
from pathlib import Path

import pytest
import uvloop
from lwp2_peer import world
from quick_peers import IN_A_ROW

import seawall
from seawall.engine import lone_way
from seawall.kernels import lone_turn
from seawall.server import ingest

#: Calls that have taken several batches, when a peer has shown what it does.
ENOUGH = 100


class Calls:
    """How many batches each call of the kernel took."""

    def __init__(self):
        self.counts = []

    def have_taken_several(self):
        return sum(count > 1 for count in self.counts) >= ENOUGH


@pytest.fixture
def calls(monkeypatch):
    """Those of a server whose disk is never slow."""
    monkeypatch.setattr(ingest, "_ALONE_S", -1.0)
    monkeypatch.setattr(lone_way, "LONG_WRITE_NS", 1 << 62)
    real, made = lone_turn.take_lone_turns, Calls()

    def counted(memory, desk, *arguments):
        done = real(memory, desk, *arguments)
        made.counts.append(int(desk[lone_turn.TAKEN_BATCHES]))
        return done

    monkeypatch.setattr(lone_turn, "take_lone_turns", counted)
    return made


def serving(work):
    """Run `work` on a loop that tells who else wants its thread."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


class QuickPeer:
    """A process that plays one of the parts of `quick_peers`."""

    def __init__(self, process):
        self._process = process

    @classmethod
    async def begin(cls, role, made):
        command = (sys.executable, Path(__file__).with_name("quick_peers.py"), role, *map(str, made.address))
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def until(self, is_enough):
        """Let it go on until something was seen, and end it; how many rounds it made."""
        while not is_enough() and self._process.returncode is None:
            await asyncio.sleep(0.01)
        output, _ = await self._process.communicate(b"")
        assert self._process.returncode == 0
        assert is_enough()
        return int(output)


async def values(log, topic="events"):
    return [record.value for batch in await log.read(topic, max_bytes=1 << 30) for record in batch]


def test_they_are_stored_acked_and_read(tmp_path, calls):
    published = []

    async def work():
        async with world(tmp_path) as made:
            peer = await QuickPeer.begin("publish", made)
            rounds = await peer.until(calls.have_taken_several)
            published.extend(b"%d" % number for number in range(rounds * IN_A_ROW))
            assert await values(made.log) == published

    serving(work())
    with seawall.open(tmp_path / "data") as log:
        assert [record.value for batch in log.read("events", max_bytes=1 << 30) for record in batch] == published
        assert log.verify().is_sound


def test_what_was_acked_is_there_to_be_read_elsewhere(tmp_path, calls):
    async def work():
        async with world(tmp_path) as made:
            peer = await QuickPeer.begin("publish_and_read", made)
            assert await peer.until(calls.have_taken_several)

    serving(work())


def test_who_follows_is_told_of_each(tmp_path, calls):
    async def work():
        async with world(tmp_path) as made:
            peer = await QuickPeer.begin("publish", made)
            followed = []

            async def follow():
                async for item in made.log.subscriber("events"):
                    followed.extend(record.value for record in item)

            following = asyncio.create_task(follow())
            rounds = await peer.until(lambda: len(followed) >= 1_000)
            while len(followed) < rounds * IN_A_ROW:
                await asyncio.sleep(0.01)
            following.cancel()
            assert followed == [b"%d" % number for number in range(rounds * IN_A_ROW)]

    serving(work())


def test_whatever_else_comes_upon_an_answer_is_taken_as_ever(tmp_path, calls):
    """Pings, several at once, halves, repetitions and other topics, each behind some that are waited for."""

    async def work():
        async with world(tmp_path, topics=("events", "others")) as made:
            peer = await QuickPeer.begin("talk", made)
            rounds = await peer.until(calls.have_taken_several)
            kinds = rounds // 5
            assert await values(made.log) == [b"quick"] * (rounds * IN_A_ROW + kinds * 4)
            assert await values(made.log, "others") == [b"quick"] * (kinds * 3)

    serving(work())


def test_two_who_publish_so_both_go_on(tmp_path, calls):
    async def work():
        async with world(tmp_path, topics=("events", "others")) as made:
            peers = [await QuickPeer.begin("talk", made) for _ in range(2)]
            while len(made.listener.connections) < 2:
                await asyncio.sleep(0.01)
            later = len(calls.counts) + 30
            rounds = await asyncio.gather(*(peer.until(lambda: len(calls.counts) > later) for peer in peers))
            assert all(rounds)
            assert len(await values(made.log)) == sum(each * IN_A_ROW + each // 5 * 4 for each in rounds)
            while made.listener.connections:
                await asyncio.sleep(0.01)

    serving(work())
