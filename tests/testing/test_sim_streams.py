"""Streams on a simulated network: loss, partitions, resets and power losses."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.limits import LISTEN_BACKLOG
from seawall.testing import Link, SimClock, SimNet

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND


class World:
    def __init__(self, seed: int = 0, **link) -> None:
        self.clock = SimClock()
        self.net = SimNet(seed, self.clock, Link(**link))
        self.listener = self.net.host("b").listen("b:1992")

    def pair(self):
        client = self.net.host("a").connect("b:1992")
        self.clock.advance(5 * MILLISECOND)
        return client, self.listener.accept()


def take(stream) -> bytes:
    received, buffer = bytearray(), bytearray(1_000)
    while count := stream.receive_into(buffer):
        received += buffer[:count]
    return bytes(received)


def error_of(stream) -> int | None:
    try:
        stream.receive_into(bytearray(1))
    except ConnectionError as error:
        return error.errno
    return None


def test_nothing_happens_while_the_clock_is_stopped():
    world = World()
    client = world.net.host("a").connect("b:1992")
    assert world.listener.accept() is None
    assert client.send(b"x") == 0
    assert client.receive_into(bytearray(1)) is None
    world.clock.advance(5 * MILLISECOND)
    server = world.listener.accept()
    assert client.send(b"x") == 1
    assert server.receive_into(bytearray(1)) is None


def test_the_window_is_bounded_and_opens_as_the_peer_reads():
    world = World(buffer_size=10)
    client, server = world.pair()
    sent = 0
    for _ in range(20):
        sent += client.send(b"0123456789")
    assert sent == 10
    world.clock.advance(SECOND)
    assert client.send(b"x") == 0
    assert len(take(server)) == 10
    assert client.send(b"x") == 1


def test_sends_and_receives_are_split_at_any_size():
    sizes = set()
    for seed in range(30):
        world = World(seed)
        client, server = world.pair()
        taken = client.send(b"0123456789")
        world.clock.advance(SECOND)
        buffer = bytearray(10)
        sizes.add((taken, server.receive_into(buffer)))
    assert len(sizes) > 5


def test_a_lost_segment_is_retransmitted_and_order_is_kept():
    world = World(drop=0.5, retransmit_ns=SECOND)
    client, server = world.pair()
    data, sent = bytes(range(250)), 0
    while sent < len(data):
        sent += client.send(data[sent : sent + 10])
    world.clock.advance(10 * MILLISECOND)
    early = take(server)
    assert len(early) < len(data)
    world.clock.advance(100 * SECOND)
    assert early + take(server) == data


def test_a_partition_stalls_a_stream_until_it_heals():
    for sources, targets in ((["a"], ["b"]), (["b"], ["a"])):
        world = World()
        client, server = world.pair()
        world.net.partition(sources, targets, both=False)
        taken = client.send(b"stalled")
        world.clock.advance(20 * SECOND)
        assert take(server) == b""
        world.net.heal_all()
        world.clock.advance(MILLISECOND)
        assert take(server) == b"stalled"[:taken]
        assert error_of(client) is None
        world.clock.advance(100 * SECOND)
        assert error_of(client) is None


def test_a_partition_that_lasts_breaks_both_ends():
    world = World()
    client, server = world.pair()
    client.send(b"never arrives")
    world.net.partition(["a"], ["b"])
    world.clock.advance(29 * SECOND)
    assert error_of(client) is None
    world.clock.advance(2 * SECOND)
    assert error_of(client) == errno.ETIMEDOUT
    assert error_of(server) == errno.ECONNRESET
    with pytest.raises(ConnectionError):
        client.send(b"x")


def test_an_idle_stream_outlasts_a_partition():
    world = World()
    client, server = world.pair()
    world.net.partition(["a"], ["b"])
    world.clock.advance(100 * SECOND)
    world.net.heal(["a"], ["b"])
    taken = client.send(b"hello")
    world.clock.advance(SECOND)
    assert take(server) == b"hello"[:taken]


def test_connecting_through_a_partition_times_out():
    world = World()
    world.net.partition(["a"], ["b"])
    patient, late = world.net.host("a").connect("b:1992"), world.net.host("a").connect("b:1992")
    late.close()
    world.clock.advance(10 * SECOND)
    world.net.heal_all()
    world.clock.advance(SECOND)
    assert world.listener.accept() is not None
    assert world.listener.accept() is None
    assert patient.send(b"x") == 1

    world.net.partition(["b"], ["a"], both=False)
    hopeless = world.net.host("a").connect("b:1992")
    world.clock.advance(31 * SECOND)
    assert error_of(hopeless) == errno.ETIMEDOUT


def test_a_reset_breaks_both_ends_at_once():
    world = World()
    client, server = world.pair()
    other = world.net.host("c").connect("b:1992")
    world.clock.advance(SECOND)
    connecting = world.net.host("a").connect("b:1992")
    assert world.net.reset("b", "a") == 2
    assert [error_of(stream) for stream in (client, server, connecting)] == [errno.ECONNRESET] * 3
    assert error_of(other) is None
    world.clock.advance(SECOND)
    assert world.net.reset("a", "b") == 0
    client.close()


def test_a_killed_process_resets_its_peers():
    world = World()
    client, server = world.pair()
    world.net.kill("b")
    world.clock.advance(MILLISECOND)
    assert error_of(client) == errno.ECONNRESET
    assert error_of(server) == errno.ECONNABORTED
    refused = world.net.host("a").connect("b:1992")
    world.clock.advance(SECOND)
    assert error_of(refused) == errno.ECONNREFUSED
    world.net.host("b").listen("b:1992")
    world.listener.close()
    accepted = world.net.host("a").connect("b:1992")
    world.clock.advance(SECOND)
    assert error_of(accepted) is None


def test_after_a_loss_of_power_a_silent_peer_times_out_and_one_that_sends_is_reset():
    world = World()
    (reader, _), (writer, _) = world.pair(), world.pair()
    connecting = world.net.host("b").connect("c:1")
    world.net.kill("b", silent=True)
    world.clock.advance(SECOND)
    assert error_of(reader) is None
    assert error_of(connecting) == errno.ECONNABORTED
    assert writer.send(b"anyone?") > 0
    world.clock.advance(SECOND)
    assert error_of(writer) == errno.ECONNRESET
    world.clock.advance(40 * SECOND)
    assert error_of(reader) == errno.ETIMEDOUT


def test_a_reset_lost_in_a_partition_is_repeated_at_the_next_send():
    world = World()
    client, server = world.pair()
    client.send(b"unread")
    world.clock.advance(MILLISECOND)
    world.net.partition(["a"], ["b"])
    server.close()
    world.clock.advance(MILLISECOND)
    world.net.heal_all()
    world.clock.advance(SECOND)
    assert error_of(client) is None
    client.send(b"more")
    world.clock.advance(SECOND)
    assert error_of(client) == errno.ECONNRESET


def test_a_full_backlog_refuses_and_a_closed_listener_resets_waiting_clients():
    world = World()
    clients = [world.net.host("a").connect("b:1992") for _ in range(LISTEN_BACKLOG + 1)]
    world.clock.advance(SECOND)
    assert [error_of(client) for client in clients].count(errno.ECONNREFUSED) == 1
    world.listener.close()
    world.clock.advance(SECOND)
    assert [error_of(client) for client in clients].count(errno.ECONNRESET) == LISTEN_BACKLOG


def test_a_client_that_closes_before_the_accept_is_seen_as_closed():
    world = World()
    client = world.net.host("a").connect("b:1992")
    world.clock.advance(600_000)
    client.close()
    world.clock.advance(SECOND)
    server = world.listener.accept()
    if server is not None:
        assert server.receive_into(bytearray(1)) == 0


def test_ports_are_assigned_and_hosts_own_their_names():
    world = World()
    host = world.net.host("b")
    first, second = host.listen("b:0"), host.listen("b:0")
    assert first.address != second.address
    assert host is world.net.host("b")
    with pytest.raises(OSError, match="this host is b"):
        host.listen("a:1")


def test_the_history_lists_events_of_streams():
    world = World()
    client, _ = world.pair()
    client.send(b"x")
    world.clock.advance(SECOND)
    client.close()
    world.clock.advance(SECOND)
    lines = "\n".join(world.net.history())
    for event in ("listen b:1992", "a->b opens", "1B arrive", "a->b close", "end arrives"):
        assert event in lines


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.lists(st.binary(min_size=1, max_size=300), max_size=15), st.floats(0, 0.5))
def test_bytes_arrive_once_and_in_order_under_any_faults(seed, pieces, drop):
    def run() -> tuple[bytes, tuple[str, ...]]:
        world = World(seed, drop=drop, buffer_size=500)
        server = None
        client = world.net.host("a").connect("b:1992")
        received = bytearray()
        waiting = bytearray(b"".join(pieces))
        for step in range(10_000):
            server = server or world.listener.accept()
            del waiting[: client.send(waiting)]
            if server is not None:
                received += take(server)
            if not waiting and len(received) == sum(map(len, pieces)):
                break
            if step % 7 == 3:
                world.net.partition(["a"], ["b"], both=False)
            if step % 7 == 5:
                world.net.heal_all()
            world.clock.advance(20 * MILLISECOND)
        return bytes(received), world.net.history()

    received, history = run()
    assert received == b"".join(pieces)
    assert run() == (received, history)
