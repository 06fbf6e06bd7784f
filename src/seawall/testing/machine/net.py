"""A network between simulated hosts, in one thread, driven by a `SimClock`.

    clock = SimClock()
    net = SimNet(seed=3, clock=clock, link=Link(drop=0.1, duplicate=0.1))
    net.register("b", lambda source, payload: print(source, payload))
    net.send("a", "b", b"hello")
    clock.advance(1_000_000)

Two services share the links and partitions
- messages, as above: delayed, dropped, duplicated, reordered, bounded. For protocols that are state machines.
- streams: `net.host("a")` is a `Network` of `seawall.io.interfaces`, see `streams.py`. For code that uses TCP.

Invariants
- The same seed, clock steps and calls give the same deliveries and the same `history()`.
- Every delivered message was sent, byte for byte, by the host that it names.
- Only the clock delivers messages, never `send`, so a handler may send without being re-entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from seawall.errors import InvalidInputError
from seawall.testing.machine.clock import SimClock
from seawall.testing.machine.links import Link, SimLinks
from seawall.testing.machine.streams import SimNetwork, SimStreams

__all__ = ["Handler", "Link", "SimNet"]

#: Called with the source and the payload of each delivered message.
Handler: TypeAlias = Callable[[str, bytes], None]


class SimNet:
    """All hosts and links of one simulation."""

    def __init__(self, seed: int, clock: SimClock, link: Link | None = None) -> None:
        self._links = SimLinks(seed, clock, link or Link())
        self._streams = SimStreams(self._links)
        self._handlers: dict[str, Handler] = {}
        self._in_flight: dict[tuple[str, str], int] = {}
        self._last_arrival_ns: dict[tuple[str, str], int] = {}

    def host(self, name: str) -> SimNetwork:
        """The stream network of one host."""
        return self._streams.network(name)

    def register(self, name: str, handler: Handler) -> None:
        """Deliver messages for host `name` to `handler`, until `unregister`."""
        if name in self._handlers:
            raise InvalidInputError(f"host {name!r} is registered already; unregister it first")
        self._handlers[name] = handler

    def unregister(self, name: str) -> None:
        """Drop messages for host `name` from now on."""
        self._handlers.pop(name, None)

    def send(self, source: str, target: str, payload: bytes) -> bool:
        """Send a message; False if it is dropped immediately, which a real sender would not notice."""
        link = self._links.get(source, target)
        if self._links.blocked(source, target):
            return self._dropped(source, target, payload, "partition")
        if self._in_flight.get((source, target), 0) >= link.messages_max:
            return self._dropped(source, target, payload, "full")
        if self._links.happens(link.drop):
            return self._dropped(source, target, payload, "chance")
        self._links.note(f"send {source}->{target} {_text(payload)}")
        self._launch(source, target, bytes(payload), link)
        if self._links.happens(link.duplicate):
            self._launch(source, target, bytes(payload), link)
        return True

    def set_link(self, source: str, target: str, link: Link) -> None:
        """Set the link from one host to another."""
        self._links.set(source, target, link)

    def partition(self, sources: Iterable[str], targets: Iterable[str], *, both: bool = True) -> None:
        """Partition the network between two groups of hosts; with `both=False` only from `sources` to `targets`.

        Messages in flight are lost; streams stall and time out.
        """
        self._links.block(tuple(sources), tuple(targets), both=both)

    def heal(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Remove the partition between two groups of hosts, in both directions."""
        self._links.heal(tuple(sources), tuple(targets))

    def heal_all(self) -> None:
        """Remove all partitions."""
        self._links.heal_all()

    def reset(self, one: str, other: str) -> int:
        """Reset every stream between two hosts; return their number."""
        return self._streams.reset(one, other)

    def kill(self, name: str, *, silent: bool = False) -> None:
        """End the processes of a host: close its listeners and streams, and drop its messages.

        Peers receive a reset, as from a kernel that closes the sockets of a dead process. With `silent`, as after a
        power loss, they notice nothing until they send (and are reset) or time out.
        """
        self.unregister(name)
        self._streams.kill(name, silent=silent)

    def history(self) -> tuple[str, ...]:
        """The events so far, one per line."""
        return self._links.log.lines()

    def _launch(self, source: str, target: str, payload: bytes, link: Link) -> None:
        pair = (source, target)
        arrival_ns = self._links.clock.monotonic_ns() + self._links.delay_ns(link)
        if not self._links.happens(link.reorder):
            arrival_ns = max(arrival_ns, self._last_arrival_ns.get(pair, 0))
            self._last_arrival_ns[pair] = arrival_ns
        self._in_flight[pair] = self._in_flight.get(pair, 0) + 1
        self._links.clock.at(arrival_ns, lambda: self._arrive(source, target, payload))

    def _arrive(self, source: str, target: str, payload: bytes) -> None:
        self._in_flight[source, target] -= 1
        handler = self._handlers.get(target)
        if self._links.blocked(source, target):
            self._dropped(source, target, payload, "partition")
        elif handler is None:
            self._dropped(source, target, payload, "no handler")
        else:
            self._links.note(f"deliver {source}->{target} {_text(payload)}")
            handler(source, payload)

    def _dropped(self, source: str, target: str, payload: bytes, reason: str) -> bool:
        self._links.note(f"drop {source}->{target} {_text(payload)} ({reason})")
        return False


def _text(payload: bytes) -> str:
    """Format a payload for the history: its length and first bytes."""
    return f"{len(payload)}B {bytes(payload[:16])!r}"
