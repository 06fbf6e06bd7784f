"""Fetch responses from a segment and from the log, with batches of other topics between; late connections."""

import asyncio
import os

import pytest
from lwp2_peer import Data, world

from seawall import limits
from seawall.core.types import TopicId
from seawall.engine.read.reading import ReadPlan
from seawall.limits import KIB, SEND_FILE_SIZE_MIN
from seawall.server.connection.session import ConnectionLimits
from seawall.server.node import NodeSettings, start_node
from seawall.wire.format.codes import Features, ReadBy, ReadFlags
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.subscriptions import Subscribe


@pytest.mark.parametrize("by_push", [False, True])
@pytest.mark.parametrize("in_segment", [0, 4])
def test_batches_of_other_topics_in_the_log_are_not_sent(on_loop, tmp_path, monkeypatch, in_segment, by_push):
    # Readers that verify batches get them as they are in files and log: the server does not look at them.
    monkeypatch.delattr(ReadPlan, "execute")
    large = os.urandom(SEND_FILE_SIZE_MIN)

    async def work():
        async with world(tmp_path, topics=("events", "secrets")) as made:
            peer = await made.peer(features=0xFF)
            # Large batches are in their segment at once, small ones are unflushed.
            for _ in range(in_segment):
                await peer.publish(1, large * 8)
            for number in range(10):
                await peer.publish(1, b"%d" % number)
                await peer.publish(2, b"secret")
            reader = await made.peer(8, features=int(Features.PUSH | Features.STORED_BLOCKS))
            flags = ReadFlags.STORED_CODEC
            if by_push:
                reader.ask(
                    Subscribe(TopicId(1), ReadBy.EARLIEST, 0, 1 << 40, 1 << 40, 1 << 20, flags=flags), request_id=3
                )
                await reader.answer()
            else:
                reader.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 4096 * KIB, 0, flags=flags))
            seqs = []
            while len(seqs) < in_segment + 10:
                data = await reader.answer(Data)
                assert {header.topic_id for header, _ in data.batches} == {1}
                seqs += [header.base_seq for header, _ in data.batches]
            assert seqs == list(range(1, in_segment + 11))
            peer.close()
            reader.close()

    on_loop(work())


@pytest.mark.parametrize("flags", [ReadFlags.NONE, ReadFlags.STORED_CODEC])
def test_a_response_has_a_bounded_number_of_small_batches(on_loop, tmp_path, monkeypatch, flags):
    monkeypatch.setattr(limits, "FETCH_CHUNKS_MAX", 9)
    monkeypatch.setattr(limits, "FETCH_SMALL_SIZE_MAX", 5 * 110)

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=0xFF)
            for number in range(20):
                await peer.publish(1, b"%d" % number)
            counts = []
            seq = 1
            while seq <= 20:
                peer.ask(Fetch(TopicId(1), ReadBy.SEQ, seq, 4096 * KIB, 0, flags=flags))
                data = await peer.answer(Data)
                counts.append(len(data.batches))
                assert data.prefix.chunk_count == counts[-1]
                seq = data.prefix.next_seq
            assert sum(counts) == 20
            assert counts[:2] == [5, 5]
            assert max(counts) <= 9
            peer.close()

    on_loop(work())


def test_a_connection_made_during_a_drain_does_not_delay_it(on_loop, tmp_path):
    """Loops create the protocol first, and call `connection_made` a little later."""

    async def work():
        node = await start_node(tmp_path / "data", NodeSettings(port=0, bounds=ConnectionLimits(linger_s=0.1)))
        host, _, port = node.address.rpartition(":")
        early = await asyncio.open_connection(host, int(port))
        listener = node.event_loops[0].listener
        while not listener.connections:
            await asyncio.sleep(0)
        made = listener._make_connection()
        ending = asyncio.ensure_future(node.drain(20))
        await asyncio.sleep(0)
        transport = Transport()
        made.connection_made(transport)
        assert transport.is_aborted
        made.connection_lost(None)
        assert await ending
        early[1].close()

    on_loop(work())


class Transport(asyncio.Transport):
    """The part of a transport that a late connection uses."""

    is_aborted = False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def abort(self):
        self.is_aborted = True
