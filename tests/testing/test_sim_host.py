import errno

import pytest

from seawall.errors import InvalidInputError
from seawall.io.interfaces import Host
from seawall.testing import DeadHandleError, SimClock, SimDisk, SimHost, SimNet


def use(host: Host):
    """A durable file, an unsynced one and a shared region, through the seam alone."""
    file = host.files.open("/durable", create=True)
    file.write([b"x"], 0)
    file.sync()
    host.files.sync_directory("/")
    host.files.open("/cached", create=True).write([b"y"], 0)
    host.memory.create("/fabric", 10).view[0] = 42
    return file


def test_killed_processes_leave_files_and_memory():
    host = SimHost.create(seed=1)
    file = use(host)
    host.kill()
    with pytest.raises(DeadHandleError):
        file.size()
    assert host.files.list("/") == ["cached", "durable"]
    assert host.memory.attach("/fabric", 10).view[0] == 42


def test_a_power_loss_leaves_only_synced_bytes():
    host = SimHost.create(seed=1)
    use(host)
    host.crash(keep="none")
    assert host.files.list("/") == ["durable"]
    with pytest.raises(FileNotFoundError):
        host.memory.attach("/fabric", 10)
    assert "crash keep=none" in host.history()[-2]


def test_hosts_share_a_network_and_time_but_not_a_wall_clock():
    clock = SimClock()
    net = SimNet(3, clock)
    one = SimHost.create(1, name="one", net=net, clock=clock.sibling())
    two = SimHost.create(2, name="two", net=net, clock=clock.sibling(), disk=SimDisk(9))
    two.clock.step_wall(-1_000)
    assert one.clock.wall_ns() - two.clock.wall_ns() == 1_000
    listener = one.network.listen("one:7")
    stream = two.network.connect(listener.address)
    clock.advance(1_000_000_000)
    accepted = listener.accept()
    assert accepted is not None
    assert one.clock.monotonic_ns() == two.clock.monotonic_ns() == 1_000_000_000
    one.kill()
    clock.advance(1_000_000_000)
    with pytest.raises(ConnectionResetError) as caught:
        stream.receive_into(bytearray(1))
    assert caught.value.errno == errno.ECONNRESET
    assert (one.name, two.name) == ("one", "two")


def test_a_shared_network_needs_a_shared_time_line():
    with pytest.raises(InvalidInputError, match="sibling"):
        SimHost.create(1, net=SimNet(3, SimClock()))
