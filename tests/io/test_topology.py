"""CPU topology: discovery of nodes from sysfs, assignment of roles to CPUs, and pinning."""

import os

import pytest

from seawall.errors import InvalidInputError
from seawall.io.process import topology
from seawall.io.process.topology import Node, Topology, discover, pin_thread


def sysfs(root, nodes: dict[int, str], memory_kib: int = 1_000):
    """A directory as Linux shows it, with the CPU list of each node."""
    for number, cpus in nodes.items():
        directory = root / f"node{number}"
        directory.mkdir()
        (directory / "cpulist").write_text(cpus + "\n")
        (directory / "meminfo").write_text(
            f"Node {number} MemTotal:       {memory_kib * (number + 1)} kB\nNode {number} MemFree: 1 kB\n"
        )
    (root / "online").write_text("0-1\n")
    (root / "node_reclaim").mkdir()
    return str(root)


@pytest.fixture
def all_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.mark.usefixtures("all_cpus")
def test_nodes_are_read_in_order_of_their_number(tmp_path):
    found = discover(sysfs(tmp_path, {1: "4-5,7", 0: "0-3", 10: ""}))
    assert found.nodes == (
        Node(0, (0, 1, 2, 3), 1_000 * 1_024),
        Node(1, (4, 5, 7), 2_000 * 1_024),
        Node(10, (), 11_000 * 1_024),
    )
    assert found.cpu_count == 7
    assert found.home_node == 0


def test_only_the_cpus_allowed_to_this_process_count(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 6}, raising=False)
    found = discover(sysfs(tmp_path, {0: "0-3", 1: "4-7"}))
    assert [node.cpus for node in found.nodes] == [(), (5, 6)]
    assert found.home_node == 1
    assert found.plan(2) == ((5,), (6,))


@pytest.mark.usefixtures("all_cpus")
@pytest.mark.parametrize("damage", ["missing", "no cpulist", "bad cpulist", "no total", "foreign cpus"])
def test_unreadable_node_files_count_as_one_node(tmp_path, damage):
    root = sysfs(tmp_path, {0: "0-3"})
    if damage == "missing":
        root += "/nowhere"
    elif damage == "no cpulist":
        (tmp_path / "node0" / "cpulist").unlink()
    elif damage == "bad cpulist":
        (tmp_path / "node0" / "cpulist").write_text("all of them")
    elif damage == "no total":
        (tmp_path / "node0" / "meminfo").write_text("Node 0 MemFree: 1 kB\n")
    else:
        (tmp_path / "node0" / "cpulist").write_text("100-101")
    found = discover(root)
    assert len(found.nodes) == 1
    assert found.nodes[0].cpus == tuple(range(64))
    assert found.nodes[0].memory_bytes > 1_000_000
    assert found.home_node is None


def test_without_affinity_calls_every_cpu_counts(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert discover(str(tmp_path / "nowhere")).nodes[0].cpus == (0, 1, 2)
    assert pin_thread([0]) is False


def test_this_machine_has_cpus_and_memory():
    found = discover()
    assert found.cpu_count >= 1
    assert all(node.memory_bytes > 0 for node in found.nodes)


def test_roles_share_one_node_while_it_has_enough_cpus():
    machine = Topology((Node(0, (0, 1), 1), Node(1, (2, 3, 4), 1)))
    assert machine.plan(0) == ()
    assert machine.plan(2) == ((0,), (1,))
    assert machine.plan(3) == ((2,), (3,), (4,))
    assert machine.plan(4) == ((0,), (1,), (2,), (3,))
    assert machine.plan(5) == ((0,), (1,), (2,), (3,), (4,))
    assert machine.plan(6) == ((0, 1, 2, 3, 4),) * 6
    with pytest.raises(InvalidInputError):
        machine.plan(-1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_a_thread_is_pinned_to_the_cpus_it_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        assert pin_thread([min(allowed)])
        assert os.sched_getaffinity(0) == {min(allowed)}
        assert topology.discover().cpu_count == 1
    finally:
        pin_thread(allowed)
    with pytest.raises(InvalidInputError):
        pin_thread([])
