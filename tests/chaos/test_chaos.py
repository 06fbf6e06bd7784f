"""Faults of a served node, one at a time: a shutdown cut short, restarts under load, a full disk, invalid bytes.

The last part is one short round of many faults at once; `make chaos` runs more and longer ones.
"""

import asyncio
import os
import random
import signal
import struct
import subprocess
import zlib
from contextlib import contextmanager
from itertools import count

import pytest
from chaos_node import ChaosNode, make_topics
from chaos_round import Round
from fuzz_mutation import mutate
from lwp2_peer import Peer
from v1_clients import BATCH, CONTROL, PythonClient, frame, record

import seawall
from seawall.core.types import ClientId, TopicId
from seawall.engine.api.open_log import open_log
from seawall.errors import SeawallError
from seawall.wire.format.codes import HelloFlags, ReadBy
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.reading import Bounds, Commit, Fetch
from seawall.wire.lwp2.session import Hello
from seawall.wire.lwp2.subscriptions import Credit, Subscribe

MIB = 1 << 20

#: Bytes of bad input; the long form sends ten times as many.
BAD_BYTES = int(os.environ.get("CHAOS_BAD_BYTES", MIB))


@contextmanager
def node(folder, *arguments):
    make_topics(folder / "data")
    with ChaosNode(folder / "data", *arguments) as made:
        yield made


# --- shutdown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deadline", "again"])
def test_a_shutdown_that_is_cut_short_reports_it_and_keeps_acked_records(tmp_path, how):
    """A peer that reads no answers delays the shutdown; a client that sends again only waits."""
    with node(tmp_path, "--drain", "0.3" if how == "deadline" else "60") as made:
        with seawall.connect(f"seawall://127.0.0.1:{made.port}", timeout_s=60) as log:
            publisher = log.publisher("client", client_id=5)
            for number in range(8):
                publisher.publish(b"%d " % number + os.urandom(MIB))
            publisher.flush()
            asyncio.run(_delay_shutdown(made, how))
            assert made.wait() == 1
            delivery = publisher.publish(b"8 after")
            made.arguments = ()
            made.start()
            assert delivery.result(60).seqs
            publisher.close()
        assert made.terminate() == 0
    with open_log(tmp_path / "data") as log:
        values = [each.value.split()[0] for item in log.follow("client") if hasattr(item, "block") for each in item]
        assert values == [b"%d" % number for number in range(9)]
        assert not log.verify().findings


async def _delay_shutdown(made, how):
    """Open a connection that requests much and reads nothing, and shut the node down."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", made.port, limit=1))
    peer.ask(Hello(flags=HelloFlags.NONE, client_id=ClientId(0)))
    for number in range(60):
        peer.ask(Fetch(TopicId(2), ReadBy.EARLIEST, 0, 1 << 24, 0), request_id=number)
    other = Peer(*await asyncio.open_connection("127.0.0.1", made.port))
    await other.hello(9)
    made.tell(signal.SIGTERM)
    assert await other.answer()
    if how == "again":
        made.tell(signal.SIGTERM)
    await asyncio.to_thread(made.wait)
    # Its answers will never be sent: there is nothing to wait for.
    peer.writer.transport.abort()
    other.close()
    await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("topic", ["total", "client"])
def test_clients_wait_for_a_restart_under_load(tmp_path, topic, how):
    """Of order 2 and 5: an idempotent client sees no failed publish, and everything is stored once, in order."""
    values = [b"%d " % number + bytes(number % 7 * 1000) for number in range(2_000)]
    with node(tmp_path) as made, seawall.connect(f"seawall://127.0.0.1:{made.port}", timeout_s=60) as log:
        with log.publisher(
            topic, client_id=5, batch_size=5_000, connections=2 if topic == "client" else 1
        ) as publisher:
            deliveries = []
            for number, value in enumerate(values):
                deliveries.append(publisher.publish(value))
                if number % 1_000 == 500:
                    # Some batches are acked, and some are in flight.
                    deliveries[number // 2].result(60)
                    made.tell(how)
                    assert made.wait() == (0 if how is signal.SIGTERM else -signal.SIGKILL), made.said()
                    made.start()
        assert [delivery.error for delivery in deliveries] == [None] * len(values)
        found = [record for item in log.follow(topic) if hasattr(item, "block") for record in item]
        assert [record.value for record in found] == values
        assert [record.seq for record in found] == [seq for delivery in deliveries for seq in delivery.seqs]
        assert made.terminate() == 0, made.said()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 7], ids=["one broker", "three brokers"])
def test_a_round_of_faults_breaks_no_guarantee(tmp_path, seed):
    outcome = Round(seed, tmp_path, 6).run()
    assert not outcome.complaints, str(outcome)
    assert min(outcome.acked, outcome.records) > 100


# --- a full disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SEAWALL_STORAGE_WAL_FILE_SIZE", str(16 * MIB))
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150m", "chaos", str(disk)], check=False)
    if made.returncode:
        pytest.skip("mounting is not permitted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(path):
    """Use all free space."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MIB))
        except OSError:
            return


def test_a_full_disk_refuses_appends_until_there_is_space(small_disk):
    stored = {}
    with node(small_disk) as made, seawall.connect(f"seawall://127.0.0.1:{made.port}", timeout_s=20) as log:
        for number in range(5):
            stored[log.publish("total", b"before %d" % number).first_seq] = b"before %d" % number
        fill(small_disk / "filler")
        refused = None
        for number in range(400):
            value = b"full %d " % number + bytes(MIB)
            try:
                stored[log.publish("total", value).first_seq] = value
            except SeawallError as error:
                refused = error
                break
        assert refused is not None, "the node accepted more than the disk can hold"
        assert made.process.poll() is None, made.said()
        # Reads still work.
        assert [record.value for record in log.read("total", limit=1)[0]] == [b"before 0"]
        asyncio.run(_v1_is_refused(made))
        (small_disk / "filler").unlink()
        for number in range(5):
            stored[log.publish("total", b"after %d" % number).first_seq] = b"after %d" % number
        found = {each.seq: each.value for item in log.follow("total") if hasattr(item, "block") for each in item}
        assert found == stored
        assert made.terminate() == 0, made.said()


def test_a_full_disk_leaves_no_hole_in_the_order_of_a_client(small_disk):
    """Order 5, many in flight: each batch is stored or refused, also those after a refusal, and order is kept."""
    with node(small_disk) as made, seawall.connect(f"seawall://127.0.0.1:{made.port}", timeout_s=20) as log:
        publisher = log.publisher("client", client_id=5, batch_size=1, connections=2)
        publisher.publish(b"before").result(20)
        fill(small_disk / "filler")
        values, deliveries = [], []
        while not any(each.done and each.error for each in deliveries):
            assert len(deliveries) < 400, "the node accepted more than the disk can hold"
            values.append(b"%d " % len(deliveries) + bytes(MIB))
            deliveries.append(publisher.publish(values[-1]))
        (small_disk / "filler").unlink()
        for _ in range(50):
            values.append(b"%d" % len(deliveries))
            deliveries.append(publisher.publish(values[-1]))
        with pytest.raises(SeawallError):
            publisher.flush(60)
        values.append(b"after")
        deliveries.append(publisher.publish(values[-1]))
        assert deliveries[-1].result(60).seqs
        publisher.close()
        taken = [value for value, delivery in zip(values, deliveries, strict=True) if delivery.error is None]
        found = [record.value for item in log.follow("client") if hasattr(item, "block") for record in item]
        assert found == [b"before", *taken]
        assert made.terminate() == 0, made.said()


async def _v1_is_refused(made):
    client = await PythonClient.connect(("127.0.0.1", made.port))
    for number in count():
        client.send(client.ingest(record(b"%d" % number + bytes(MIB)), 4))
        reply = await client.receive()
        if reply.error is not None:
            assert reply.error == 0x61
            break
    # The connection stays open.
    assert (await client.ask(0x03)).batch_id == 0x80
    await client.close()


# --- invalid bytes -----------------------------------------------------------------------------------------------


def corpus():
    """Valid frames of both versions, as clients send them."""
    peer = Peer(None, None)
    peer.welcome = type("Welcome", (), {"client_id": 77, "session_epoch": 1})
    v1 = [
        frame(BATCH, record(b"hello"), batch_id=1, topic=4),
        frame(0x05, record(b"hello"), batch_id=1, topic=4),
        frame(0x20),
        *(frame(CONTROL, struct.pack("<IQI", 4, 0, 1000), batch_id=command) for command in (0x10, 0x20, 0x22, 0x03, 4)),
    ]
    hello = encode_control(Hello(flags=HelloFlags.OPEN, client_id=ClientId(77)), request_id=1)
    v2 = [
        hello,
        encode_ping(1),
        peer.batch(1, b"hello"),
        peer.batch(2, b"hello", b"there"),
        encode_control(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1000, 0), request_id=2),
        encode_control(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, 1000, 10, 1000), request_id=3),
        encode_control(Credit(1 << 20, 1 << 20), request_id=3),
        encode_control(Bounds(TopicId(1)), request_id=4),
        encode_control(Commit(TopicId(1), 5, 1, 1), request_id=5),
    ]
    return v1, v2, hello


def healed(data):
    """The frame with correct checksums, so that later checks find what is wrong with it."""
    if len(data) < 44 or data[4] != 1:
        return data
    head, payload = bytearray(data[:44]), data[44:]
    struct.pack_into("<I", head, 8, zlib.crc32(head[:8]))
    struct.pack_into("<I", head, 32, len(payload))
    struct.pack_into("<I", head, 36, zlib.crc32(payload) if payload else 0)
    return bytes(head) + payload


async def send_bad_bytes(port, chance, size):
    """Open one connection after another, each with valid and mutated frames, until `size` bytes are sent."""
    v1, v2, hello = corpus()
    sent = 0
    while sent < size:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        is_v1 = chance.random() < 0.5
        frames = [] if is_v1 or chance.random() < 0.1 else [hello]
        for _ in range(chance.randrange(1, 200)):
            data = chance.choice(v1 if is_v1 else v2)
            kind = chance.random()
            if kind < 0.02:
                data = chance.randbytes(chance.randrange(2000))
            elif kind < 0.5:
                data = mutate(chance, data)
                data = healed(data) if chance.random() < 0.8 else data
            frames.append(data)
        whole = b"".join(frames)
        sent += len(whole)
        try:
            writer.write(whole)
            if chance.random() < 0.5:
                await asyncio.wait_for(reader.read(1 << 16), 0.05)
        except (OSError, TimeoutError):
            pass
        writer.transport.abort()


async def work_on(port, done, enough):
    """Publish and read on an own connection, checking every answer, until the others are done.

    Sets `enough` after some rounds.
    """
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
    await peer.hello(1234)
    old = await PythonClient.connect(("127.0.0.1", port))
    rounds = 0
    while not done.done():
        row = await asyncio.wait_for(peer.publish(3, b"%d" % rounds), 30)
        assert row["status"] == 0, row
        peer.ask(Bounds(TopicId(3)), request_id=7)
        assert (await asyncio.wait_for(peer.answer(), 30)).end_seq == rounds + 2
        assert (await old.ask(0x03)).document["topics"]
        rounds += 1
        if rounds > 5:
            enough.set()
        await asyncio.sleep(0.01)
    peer.close()
    await old.close()


@pytest.mark.slow
def test_invalid_bytes_disturb_no_client_and_take_no_memory(tmp_path):
    async def work(made):
        chance = random.Random("bad bytes")
        await send_bad_bytes(made.port, chance, BAD_BYTES // 10)
        before = made.resident_kib
        enough = asyncio.Event()

        async def attack():
            # The valid client must make progress during the attack, however long that takes.
            is_first = True
            while is_first or not enough.is_set():
                is_first = False
                await asyncio.gather(*(send_bad_bytes(made.port, chance, BAD_BYTES // 2) for _ in range(2)))

        sending = asyncio.create_task(attack())
        await asyncio.wait_for(work_on(made.port, sending, enough), 100)
        await sending
        return made.resident_kib - before

    with node(tmp_path) as made:
        grown_kib = asyncio.run(work(made))
        # Memory of the network's ring and of a few hundred connections, but not of the sent bytes.
        assert grown_kib < 64 * 1024, grown_kib
        assert made.terminate() == 0, made.said()
        said = made.said()
        assert "Traceback" not in said, said
