"""A simulated machine: disk, shared memory, clock and network as one `Host`.

    host = SimHost.create(seed=1)
    log = open_something(host)          # anything that takes a `Host`
    host.crash(keep="random")
    log = open_something(host)          # what does it find?

Several machines of one simulation share the network and its timeline:

    clock = SimClock()
    net = SimNet(seed=1, clock=clock)
    hosts = [SimHost.create(seed=n, name=f"n{n}", net=net, clock=clock.sibling()) for n in range(3)]

| event | disk | shared memory | clock | network |
|---|---|---|---|---|
| `kill()`: the processes die | loses handles and locks only | loses locks only | runs on | resets peers |
| `crash(keep)`: power loss | unsynced state survives by `keep` | lost | runs on | peers are not notified |
"""

from __future__ import annotations

from dataclasses import dataclass

from seawall.errors import InvalidInputError
from seawall.io.interfaces import Host
from seawall.testing.machine.clock import SimClock
from seawall.testing.machine.content import Keep
from seawall.testing.machine.disk import SimDisk
from seawall.testing.machine.memory import SimSharedMemory
from seawall.testing.machine.net import SimNet
from seawall.testing.machine.streams import SimNetwork

__all__ = ["SimHost"]


@dataclass(frozen=True, slots=True)
class SimHost(Host):
    """One simulated machine. Use `create` unless you supply all parts."""

    files: SimDisk
    memory: SimSharedMemory
    clock: SimClock
    network: SimNetwork
    net: SimNet

    @classmethod
    def create(
        cls,
        seed: int,
        *,
        name: str = "a",
        disk: SimDisk | None = None,
        clock: SimClock | None = None,
        net: SimNet | None = None,
    ) -> SimHost:
        """Make a machine of the given parts; missing parts are created."""
        if net is not None and clock is None:
            raise InvalidInputError(
                "a host on a shared network needs a clock on the same timeline; pass clock.sibling()"
            )
        clock = clock or SimClock()
        net = net or SimNet(seed, clock)
        return cls(
            files=disk or SimDisk(seed),
            memory=SimSharedMemory(),
            clock=clock,
            network=net.host(name),
            net=net,
        )

    @property
    def name(self) -> str:
        """The name of this machine on the network."""
        return self.network.name

    def kill(self) -> None:
        """End all processes of this machine; it stays up."""
        self.files.kill()
        self.memory.kill()
        self.net.kill(self.name)

    def crash(self, keep: Keep = "random") -> None:
        """Lose the power of this machine and restart it."""
        self.files.crash(keep)
        self.memory.lose_power()
        self.net.kill(self.name, silent=True)

    def history(self) -> tuple[str, ...]:
        """The events of the disk, then those of the network."""
        return self.files.history() + self.net.history()
