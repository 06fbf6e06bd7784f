"""A network between simulated hosts, in one thread, driven by a `SimClock`.

    clock = SimClock()
    net = SimNet(seed=3, clock=clock, link=Link(drop=0.1, duplicate=0.1))
    net.register("b", lambda source, payload: print(source, payload))
    net.send("a", "b", b"hello")
    clock.advance(1_000_000)

Two services over the same links and partitions
- messages, as here: delayed, dropped, duplicated, reordered, bounded. For protocols that are state machines.
- streams: `net.host("a")` is a `Network` of `seawall.io.interfaces`, see `streams.py`. For code that speaks TCP.

Invariants
- The same seed, clock steps and calls give the same deliveries and the same `history()`.
- What arrives was sent, byte for byte, by the host it names.
- Nothing is delivered inside `send`: only the clock delivers, so a handler may send without being called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from seawall.errors import InvalidInputError
from seawall.testing.machine.clock import SimClock
from seawall.testing.machine.links import Link, SimLinks
from seawall.testing.machine.streams import SimNetwork, SimStreams

__all__ = ["Handler", "Link", "SimNet"]

#: Called with the source and the payload of each message that arrives.
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
        """The network as this host sees it, for streams."""
        return self._streams.network(name)

    def register(self, name: str, handler: Handler) -> None:
        """Deliver messages for `name` to `handler`, until `unregister`."""
        if name in self._handlers:
            raise InvalidInputError(f"host {name!r} is registered already; unregister it first")
        self._handlers[name] = handler

    def unregister(self, name: str) -> None:
        """Drop what arrives for `name` from now on."""
        self._handlers.pop(name, None)

    def send(self, source: str, target: str, payload: bytes) -> bool:
        """Put a message on its way; false if it was dropped here and now, which a real sender would not learn."""
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
        """Give one direction between two hosts its own settings."""
        self._links.set(source, target, link)

    def partition(self, sources: Iterable[str], targets: Iterable[str], *, both: bool = True) -> None:
        """Cut these hosts from those; with `both=False` only what goes from `sources` to `targets`.

        Messages on their way are lost, streams stall and time out.
        """
        self._links.block(tuple(sources), tuple(targets), both=both)

    def heal(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Join these hosts and those again, in both directions."""
        self._links.heal(tuple(sources), tuple(targets))

    def heal_all(self) -> None:
        """Join everything again."""
        self._links.heal_all()

    def reset(self, one: str, other: str) -> int:
        """Reset every stream between two hosts; return how many there were."""
        return self._streams.reset(one, other)

    def kill(self, name: str, *, silent: bool = False) -> None:
        """End the processes of a host: its listeners and streams go, its messages are dropped.

        Peers see a reset at once, as from a kernel that closes for a dead process; with `silent`, as after a loss of
        power, they hear nothing until they send (and are reset) or time out.
        """
        self.unregister(name)
        self._streams.kill(name, silent=silent)

    def history(self) -> tuple[str, ...]:
        """What happened so far, one event a line."""
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
            self._dropped(source, target, payload, "nobody there")
        else:
            self._links.note(f"deliver {source}->{target} {_text(payload)}")
            handler(source, payload)

    def _dropped(self, source: str, target: str, payload: bytes, reason: str) -> bool:
        self._links.note(f"drop {source}->{target} {_text(payload)} ({reason})")
        return False


def _text(payload: bytes) -> str:
    """A payload as a history shows it: length and beginning."""
    return f"{len(payload)}B {bytes(payload[:16])!r}"
