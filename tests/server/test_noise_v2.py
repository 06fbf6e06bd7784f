"""Version 2 against noise: frames with changed bytes, truncated, repeated and shuffled; other clients are served."""

import asyncio
import random
from contextlib import suppress

import pytest
from lwp2_peer import world

from seawall.core.types import ClientId, Seq, TopicEpoch, TopicId
from seawall.wire.format.codes import ALL_TOPICS, HelloFlags, ReadBy
from seawall.wire.format.frames import checksum, header_crc_v2
from seawall.wire.lwp1.requests import CreateTopic, ListTopics
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.reading import Bounds, Commit, Fetch
from seawall.wire.lwp2.session import Goodbye, Hello
from seawall.wire.lwp2.subscriptions import Credit, Subscribe, Unsubscribe


def frames_of(peer, randomness):
    """Frames that a client may send, some of them more than once."""
    topic = TopicId(randomness.choice([1, 1, 1, 9, ALL_TOPICS]))
    by = randomness.choice([ReadBy.POSITION, ReadBy.EARLIEST, ReadBy.LATEST, ReadBy.TIME])
    made = [
        *(peer.batch(1, randomness.randbytes(randomness.randrange(2000))) for _ in range(5)),
        peer.batch(9, b"nowhere"),
        encode_ping(1),
        encode_control(Fetch(topic, by, randomness.randrange(9), 5000, 0, wait_ms=20), request_id=2),
        encode_control(Subscribe(topic, by, randomness.randrange(9), 9000, 90, 900), request_id=3),
        encode_control(Credit(90_000, 900), request_id=3),
        encode_control(Unsubscribe(), request_id=3),
        encode_control(Bounds(TopicId(1)), request_id=4),
        encode_control(Commit(TopicId(1), 4, TopicEpoch(1), Seq(3)), request_id=5),
        encode_control(ListTopics(), request_id=6),
        encode_control(CreateTopic("events"), request_id=7),
    ]
    randomness.shuffle(made)
    if randomness.random() < 0.3:
        made.append(encode_control(Goodbye(0, 0)))
    return made


def mutated(frame, randomness):
    """A frame with a changed byte; often with checksums that hold, so that it gets further."""
    changed = bytearray(frame)
    at = randomness.randrange(len(changed))
    changed[at] = randomness.randrange(256)
    if randomness.random() < 0.8 and at not in range(4) and len(changed) >= 44:
        header_size = 96 if changed[5] == 4 and len(changed) >= 96 else 44
        body = bytes(changed[header_size:])
        changed[36:40] = (checksum(body) if body else 0).to_bytes(4, "little")
        changed[8:12] = header_crc_v2(bytes(changed[:header_size])).to_bytes(4, "little")
    return bytes(changed)


@pytest.mark.parametrize("seed", range(3))
def test_noise_does_not_affect_other_clients(on_loop, tmp_path, seed):
    problems = []

    async def noisy(made, randomness):
        peer = await made.connect()
        client_id = randomness.randrange(20, 24)
        if randomness.random() < 0.9:
            await peer.hello(client_id, flags=randomness.choice([HelloFlags.OPEN, HelloFlags.NONE]))
        else:
            hello = encode_control(Hello(client_id=ClientId(client_id)))
            peer.send(mutated(hello, randomness))
        if hasattr(peer.welcome, "client_id"):
            stream = frames_of(peer, randomness)
            for _ in range(randomness.randrange(4)):
                index = randomness.randrange(len(stream))
                stream[index] = mutated(stream[index], randomness)
            data = b"".join(stream)
            peer.send(data[: randomness.randrange(len(data))] if randomness.random() < 0.3 else data)
        peer.writer.write_eof()
        while await asyncio.wait_for(peer.reader.read(1 << 20), 30):
            continue
        peer.close()

    async def work():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with world(tmp_path) as made:
            randomness = random.Random(seed)
            good = await made.peer(7)
            for number in range(1, 41):
                with suppress(ConnectionError):
                    await noisy(made, randomness)
                row = await good.publish(1, b"good %d" % number)
                assert (row["client_seq"], row["status"]) == (number, 0)
            while len(made.listener.connections) > 1:
                await asyncio.sleep(0.001)
            good.close()

    on_loop(work())
    assert problems == []
