"""The NUMA topology of this machine, and the assignment of roles to CPUs.

On a machine with several NUMA nodes, a load from a remote node takes about half as long again as a local one. So roles
that share the fabric belong on one node, and the fabric in that node's memory. `discover` reads
`/sys/devices/system/node` on Linux; elsewhere, or if that is unreadable, the machine counts as one node.

Only CPUs that this process may use count: a container limited to four CPUs is a machine of four CPUs. A node without
usable CPUs (memory behind an expander, or a node outside the container's CPU set) stays in the list, since its memory
can be used.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from seawall.errors import InvalidInputError
from seawall.limits import KIB

__all__ = ["Node", "Topology", "discover", "pin_thread"]

SYSFS_NODES: Final = "/sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node: its CPUs and its memory."""

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes of a machine, by id."""

    nodes: tuple[Node, ...]

    @property
    def cpu_count(self) -> int:
        """CPUs this process may use."""
        return sum(len(node.cpus) for node in self.nodes)

    @property
    def home_node(self) -> int | None:
        """The node whose memory shared state should use; None if there is only one node."""
        if len(self.nodes) < 2:
            return None
        return next(node.id for node in self.nodes if node.cpus)

    def plan(self, role_count: int) -> tuple[tuple[int, ...], ...]:
        """The CPUs of each role: one CPU per role, all on one node if a node has enough, else node after node.

        With more roles than CPUs nothing is pinned: every role gets every CPU, because two roles pinned to one CPU
        would wait for each other while another CPU idles.
        """
        if role_count < 0:
            raise InvalidInputError(f"cannot assign {role_count} roles to CPUs; the count starts at 0")
        every_cpu = tuple(cpu for node in self.nodes for cpu in node.cpus)
        if role_count > len(every_cpu):
            return (every_cpu,) * role_count
        fitting = (node.cpus for node in self.nodes if len(node.cpus) >= role_count)
        return tuple((cpu,) for cpu in next(fitting, every_cpu)[:role_count])


def discover(sysfs_nodes: str = SYSFS_NODES) -> Topology:
    """The topology of this machine, limited to the CPUs this process may use."""
    allowed = _allowed_cpus()
    try:
        nodes = tuple(_read_node(sysfs_nodes, node_id, allowed) for node_id in _node_ids(sysfs_nodes))
    except (OSError, ValueError):
        # Not Linux, or a container that hides or rewrites sysfs: one node is good enough.
        nodes = ()
    if not any(node.cpus for node in nodes):
        nodes = (Node(0, tuple(sorted(allowed)), _physical_memory_bytes()),)
    return Topology(nodes)


def pin_thread(cpus: Collection[int]) -> bool:
    """Pin the calling thread to these CPUs; false where the system cannot do that (macOS)."""
    if not cpus:
        raise InvalidInputError("cannot pin a thread to no CPU at all; name at least one")
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, cpus)
    return True


def _allowed_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _node_ids(sysfs_nodes: str) -> list[int]:
    names = os.listdir(sysfs_nodes)
    return sorted(int(name[4:]) for name in names if name.startswith("node") and name[4:].isdigit())


def _read_node(sysfs_nodes: str, node_id: int, allowed: frozenset[int]) -> Node:
    directory = os.path.join(sysfs_nodes, f"node{node_id}")
    with open(os.path.join(directory, "cpulist"), encoding="ascii") as file:
        cpus = _parse_cpu_list(file.read())
    with open(os.path.join(directory, "meminfo"), encoding="ascii") as file:
        memory_bytes = _parse_memory_total(file.read())
    return Node(node_id, tuple(cpu for cpu in cpus if cpu in allowed), memory_bytes)


def _parse_cpu_list(text: str) -> list[int]:
    """Parse `0-3,8,10-11` into numbers; a node without CPUs has an empty list."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def _parse_memory_total(text: str) -> int:
    """The `Node 0 MemTotal: 5333896 kB` line of a node's meminfo, in bytes."""
    for line in text.splitlines():
        words = line.split()
        if "MemTotal:" in words:
            return int(words[-2]) * KIB
    raise ValueError("meminfo of a node has no MemTotal line")


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
