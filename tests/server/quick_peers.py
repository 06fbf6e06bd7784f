"""Clients that send upon each answer, in a process of their own: `python quick_peers.py ROLE HOST PORT`.

Each goes on until its standard input ends, and prints how many rounds that were.
"""

import asyncio
import os
import select
import sys

import uvloop
from lwp2_peer import Peer

import seawall
from seawall.wire.format.codes import AckStatus, Kind
from seawall.wire.lwp2.frames import encode_ping

OK, DUPLICATE = int(AckStatus.OK), int(AckStatus.DUPLICATE)
#: Batches that are sent in a row, each upon the answer to the one before it.
IN_A_ROW = 10


def goes_on():
    return not select.select([sys.stdin], [], [], 0)[0]


def publish(host, port):
    """Records of one connection."""
    rounds = 0
    with seawall.connect(f"seawall://{host}:{port}") as log:
        while goes_on():
            for number in range(rounds * IN_A_ROW, (rounds + 1) * IN_A_ROW):
                assert log.publish("events", b"%d" % number).first_seq == number + 1
            rounds += 1
    return rounds


def publish_and_read(host, port):
    """Records of one connection, of which another one reads the last."""
    rounds = 0
    url = f"seawall://{host}:{port}"
    with seawall.connect(url) as log, seawall.connect(url) as other:
        while goes_on():
            for number in range(rounds * IN_A_ROW, (rounds + 1) * IN_A_ROW):
                log.publish("events", b"%d" % number)
            (batch,) = other.read("events", (rounds + 1) * IN_A_ROW)
            assert [record.value for record in batch] == [b"%d" % ((rounds + 1) * IN_A_ROW - 1)]
            rounds += 1
    return rounds


async def _something_else(peer, number):
    if number % 5 == 0:
        peer.send(encode_ping(number))
        frame = await peer.frame()
        assert (frame.header.kind, frame.header.id) == (Kind.KEEPALIVE, number)
    elif number % 5 == 1:
        peer.send(peer.batch(1, b"quick") + peer.batch(1, b"quick"))
        assert {row["status"] for row in await peer.acks(2)} == {OK}
    elif number % 5 == 2:
        data = peer.batch(1, b"quick")
        peer.send(data[:50])
        await asyncio.sleep(0)
        peer.send(data[50:])
        assert [row["status"] for row in await peer.acks(1)] == [OK]
    elif number % 5 == 3:
        assert (await peer.publish(1, b"quick", seq=peer.seq))["status"] == DUPLICATE
    else:
        for topic in (2, 1, 2, 2):
            assert (await peer.publish(topic, b"quick"))["status"] == OK


async def _talk(host, port):
    peer = Peer(*await asyncio.open_connection(host, port))
    await peer.hello(os.getpid())
    rounds = 0
    while goes_on() or rounds % 5:
        for _ in range(IN_A_ROW):
            assert (await peer.publish(1, b"quick"))["status"] == OK
        await _something_else(peer, rounds)
        rounds += 1
    peer.close()
    return rounds


def talk(host, port):
    """Batches of one connection, and now and then a ping, several at once, a half, a repetition, another topic."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_talk(host, port))


if __name__ == "__main__":
    sys.stdout.write(str(globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
