"""The roles of a pod as processes over one fabric: what each does in a turn, and how they wake each other.

    writers ─▶ stream ─▶ broker process ─▶ ring ─▶ sequencer process ─▶ result ring ─▶ broker process ─▶ stream ─▶ ACK
                              rings the bell of ─────▶            ◀───── rings the bells of

A parent makes the fabric and every role, single-threaded and warm, then forks (`io.process.role_process`); a role loops
over its `step` and lies down when there is nothing to do (`io.process.wakeups`). The same steps may be given to
threads.

Whoever gives another role work rings its bell afterwards.

What a crash does: a broker that ends leaves its ring, and another takes it over (`broker.ring`); a sequencer that ends
is started again from the fabric (`sequencer.recovery`). It must not know how a process is made or a bell is rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from seawall.broker.ring import BrokerRing
from seawall.engine.ordering.broker_connections import BrokerConnections, Publisher, WaitableStream, Watches
from seawall.fabric.arrays import FabricArrays
from seawall.io.interfaces import Clock
from seawall.sequencer.pod_sequencer import Moment, PodSequencer


class Rings(Protocol):
    """The bell of another role."""

    def ring(self) -> None:
        """There is work for it."""
        ...


class SequencerRole:
    """Orders and commits, takes what replicas have made durable, and wakes brokers."""

    __slots__ = ("_brokers", "_clock", "_members", "_min_replicas", "_sequencer")

    def __init__(
        self,
        sequencer: PodSequencer,
        clock: Clock,
        *,
        members: Iterable[int],
        min_replicas: int,
        brokers: Sequence[Rings],
    ) -> None:
        self._sequencer: Final = sequencer
        self._clock: Final = clock
        self._members: Final = tuple(members)
        self._min_replicas: Final = min_replicas
        self._brokers: Final = tuple(brokers)

    def step(self) -> int:
        """One turn; how much was done."""
        sequencer = self._sequencer
        before = sequencer.frontier.durable
        done = sequencer.step(Moment(self._clock.monotonic_ns(), self._clock.wall_ns()))
        done += sequencer.advance_durable(self._members, self._min_replicas) - before
        if done:
            for broker in self._brokers:
                broker.ring()
        return done


class BrokerRole:
    """Reads batches of its connections into the broker's ring, wakes the sequencer, and sends answers."""

    __slots__ = ("_connections", "_sequencer")

    def __init__(self, fabric: FabricArrays, broker: int, *, wakeup: Watches, sequencer: Rings) -> None:
        """`bell` is its own."""
        self._sequencer: Final = sequencer
        self._connections: Final = BrokerConnections(BrokerRing(fabric, broker), fabric.pbr[broker], wakeup)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def connect(self, stream: WaitableStream, publisher: Publisher) -> None:
        """Take a connection; in the process that steps this role, or before it is forked."""
        self._connections.add(stream, publisher)

    def step(self) -> int:
        """One turn; how many batches were published and answered."""
        published = self._connections.receive()
        if published or self._connections.is_blocked:
            # Of what it holds back it gives back what is in the way, once it is stepped.
            self._sequencer.ring()
        return published + self._connections.answer()
