"""Files that fail while they are sent: the connection closes once, and the reader gets past the damage next time."""

from __future__ import annotations

import errno
import os

import pytest
from lwp2_peer import Data, parse_answer, world

from seawall import limits
from seawall.core.types import TopicId
from seawall.limits import KIB, MIB
from seawall.server.read import fetch_responses
from seawall.server.read.unfit_ranges import UnfitRanges
from seawall.wire.format.codes import Command, Features, GapReason, ReadBy, ReadFlags
from seawall.wire.lwp2.reading import Fetch, Gap
from seawall.wire.lwp2.subscriptions import Subscribe

LARGE = os.urandom(128 * KIB)
BATCHES = 6
#: The batch that cannot be read from the disk.
BAD_SEQ = 4


def test_the_number_of_remembered_ranges_is_bounded() -> None:
    unfit = UnfitRanges(2)
    assert not unfit.reach_into("a", 0, 1)
    unfit.note("a", 5 * MIB + 7)
    assert unfit.reach_into("a", 5 * MIB, 1)
    assert unfit.reach_into("a", 4 * MIB, 16 * MIB)
    assert not unfit.reach_into("a", 4 * MIB, MIB)
    assert not unfit.reach_into("a", 6 * MIB, MIB)
    assert not unfit.reach_into("b", 5 * MIB, 1)
    unfit.note("b", 0)
    unfit.note("a", 5 * MIB)
    unfit.note("c", 0)
    assert (len(unfit), unfit.failures) == (2, 4)
    assert [unfit.reach_into(path, at, 1) for path, at in (("a", 5 * MIB), ("b", 0), ("c", 0))] == [True, False, True]


class BadDisk:
    """The system calls that read a file, which fail inside one range of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.range = range(0)
        self._sendfile, self._preadv = os.sendfile, os.preadv
        patch.setattr(os, "sendfile", self.sendfile)
        patch.setattr(os, "preadv", self.preadv)

    def sendfile(self, target: int, source: int, at: int, size: int) -> int:
        return self._sendfile(target, source, at, self._readable(at, size))

    def preadv(self, file: int, buffers: list[memoryview], at: int, flags: int = 0) -> int:
        size = sum(map(len, buffers))
        if self.range and at < self.range.stop and at + size > self.range.start:
            raise OSError(errno.EIO, "Input/output error")
        return self._preadv(file, buffers, at, flags)

    def _readable(self, at: int, size: int) -> int:
        if not self.range or at >= self.range.stop or at + size <= self.range.start:
            return size
        if at >= self.range.start:
            raise OSError(errno.EIO, "Input/output error")
        return self.range.start - at


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BadDisk:
    monkeypatch.setattr(fetch_responses, "UNFIT", UnfitRanges(limits.UNFIT_BLOCKS_MAX))
    return BadDisk(monkeypatch)


@pytest.mark.parametrize("by_push", [False, True], ids=["fetched", "pushed"])
def test_a_reader_gets_past_a_bad_sector(on_each_loop, tmp_path, disk, by_push):
    async def work():
        async with world(tmp_path) as made:
            publisher = await made.peer(features=0xFF)
            for _ in range(BATCHES):
                await publisher.publish(1, LARGE)
            [path] = (tmp_path / "data" / "topics" / "00000001").glob("*.active")
            at = 4096 + (BAD_SEQ - 1) * (path.read_bytes().find(b"LANC", 4097 + 96) - 4096)
            disk.range = range(at + 64 * KIB, at + 68 * KIB)
            seq, ends, gaps, seqs = 1, 0, [], []
            while seq <= BATCHES:
                reader = await made.peer(8 + ends, features=int(Features.PUSH | Features.STORED_BLOCKS))
                ask(reader, seq, by_push)
                while seq <= BATCHES and (answer := await answer_of(reader)) is not None:
                    if isinstance(answer, Gap):
                        gaps.append((answer.first, answer.last, answer.reason))
                        seq = answer.last + 1
                    elif isinstance(answer, Data):
                        seqs += [header.base_seq for header, _ in answer.batches]
                        seq = answer.prefix.next_seq
                    if not by_push and seq <= BATCHES:
                        ask(reader, seq, by_push)
                reader.close()
                ends += seq <= BATCHES
                assert ends < 3, f"the reader makes no progress at seq {seq}"
            assert ends == 1
            assert gaps == [(BAD_SEQ, BAD_SEQ, GapReason.CORRUPTION)]
            assert seqs == [seq for seq in range(1, BATCHES + 1) if seq != BAD_SEQ]
            # The publisher is not affected.
            await publisher.publish(1, b"more")
            publisher.close()

    on_each_loop(work())


async def answer_of(reader):
    """The next answer, None if the connection has ended."""
    try:
        frame = await reader.frame()
    except ConnectionError:
        return None
    if frame is None:
        return None
    is_data = frame.header.command in (Command.FETCH_DATA, Command.DATA)
    return Data(frame) if is_data else parse_answer(frame.header.command, frame.payload)


def ask(reader, seq, by_push):
    flags = ReadFlags.STORED_CODEC
    if by_push:
        reader.ask(Subscribe(TopicId(1), ReadBy.SEQ, seq, 1 << 40, 1 << 40, 0, flags=flags), request_id=3)
    else:
        reader.ask(Fetch(TopicId(1), ReadBy.SEQ, seq, 16 * MIB, 0, flags=flags))
