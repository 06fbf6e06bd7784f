"""The roles of a pod as processes over one fabric: one step of each role, and how the roles wake each other.

    writers ─▶ stream ─▶ broker process ─▶ ring ─▶ sequencer process ─▶ result ring ─▶ broker process ─▶ stream ─▶ ACK
                              wakes ─────▶                       ◀───── wakes

A parent creates the fabric and every role, single-threaded and with warm kernels, then forks
(`io.process.role_process`). A role calls its `step` in a loop, and blocks when there is nothing to do
(`io.process.wakeups`). The same steps can run on threads. A role that has work for another wakes it afterwards.

A broker that crashes leaves its ring, and another takes it over (`broker.ring`). A sequencer that crashes is started
again from the fabric (`sequencer.recovery`). This module must not know how processes are created or woken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from seawall.broker.ring import BrokerRing
from seawall.engine.ordering.broker_connections import BrokerConnections, Publisher, StreamWakeup, WaitableStream
from seawall.fabric.arrays import FabricArrays
from seawall.io.interfaces import Clock
from seawall.sequencer.pod_sequencer import Moment, PodSequencer


class RoleWakeup(Protocol):
    """Wakes another role."""

    def wake(self) -> None:
        """Wake the role: it has work."""
        ...


class SequencerRole:
    """Orders and commits batches, advances the durable position of the replicas, and wakes brokers."""

    __slots__ = ("_brokers", "_clock", "_members", "_min_replicas", "_sequencer")

    def __init__(
        self,
        sequencer: PodSequencer,
        clock: Clock,
        *,
        members: Iterable[int],
        min_replicas: int,
        brokers: Sequence[RoleWakeup],
    ) -> None:
        self._sequencer: Final = sequencer
        self._clock: Final = clock
        self._members: Final = tuple(members)
        self._min_replicas: Final = min_replicas
        self._brokers: Final = tuple(brokers)

    def step(self) -> int:
        """One step; the amount of work done."""
        sequencer = self._sequencer
        before = sequencer.frontier.durable
        done = sequencer.step(Moment(self._clock.monotonic_ns(), self._clock.wall_ns()))
        done += sequencer.advance_durable(self._members, self._min_replicas) - before
        if done:
            for broker in self._brokers:
                broker.wake()
        return done


class BrokerRole:
    """Reads batches of its connections into the broker's ring, wakes the sequencer, and sends answers."""

    __slots__ = ("_connections", "_sequencer")

    def __init__(self, fabric: FabricArrays, broker: int, *, wakeup: StreamWakeup, sequencer: RoleWakeup) -> None:
        """`wakeup` is that of this role."""
        self._sequencer: Final = sequencer
        self._connections: Final = BrokerConnections(BrokerRing(fabric, broker), fabric.pbr[broker], wakeup)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def connect(self, stream: WaitableStream, publisher: Publisher) -> None:
        """Add a connection; call it in the process that steps this role, or before the fork."""
        self._connections.add(stream, publisher)

    def step(self) -> int:
        """One step; how many batches were published and answered."""
        published = self._connections.receive()
        if published or self._connections.is_blocked:
            # Also if the ring is full: a step of the sequencer hands back held batches that block it.
            self._sequencer.wake()
        return published + self._connections.answer()
