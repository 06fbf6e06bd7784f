"""Links between simulated hosts: delay, loss, duplication, reordering, and partitions.

Messages (`net.py`) and streams (`streams.py`) share the settings of each directed link, the partitions, the seed, the
clock and the history. This module must not know the content.

A partition is a set of directed pairs. Firewalls and broken switches may block only one direction, a case that
protocols easily miss.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from seawall.errors import InvalidInputError
from seawall.testing.checkers.history import EventLog
from seawall.testing.limits import SIM_LINK_MESSAGES_MAX, SIM_STREAM_BUFFER_SIZE
from seawall.testing.machine.clock import SimClock

__all__ = ["Link", "SimLinks"]

_MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two hosts. Probabilities are from 0 to 1.

    `drop`: a message is lost; a piece of a stream arrives `retransmit_ns` later, because TCP sends it again.
    `duplicate`: a message arrives twice. `reorder`: a message may overtake earlier ones; otherwise a link is FIFO.
    `messages_max`: messages in flight; more are dropped. `buffer_size`: bytes of one stream in flight and unread.
    `timeout_ns`: how long a stream survives a partition before both ends see a reset.
    """

    delay_min_ns: int = 50_000
    delay_max_ns: int = 500_000
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    messages_max: int = SIM_LINK_MESSAGES_MAX
    buffer_size: int = SIM_STREAM_BUFFER_SIZE
    retransmit_ns: int = 200 * _MILLISECOND_NS
    timeout_ns: int = 30_000 * _MILLISECOND_NS

    def __post_init__(self) -> None:
        if not 0 <= self.delay_min_ns <= self.delay_max_ns:
            raise InvalidInputError(f"a delay from {self.delay_min_ns} to {self.delay_max_ns} ns is not a valid range")
        if not all(0.0 <= probability <= 1.0 for probability in (self.drop, self.duplicate, self.reorder)):
            raise InvalidInputError("drop, duplicate and reorder must be probabilities from 0 to 1")
        if min(self.messages_max, self.buffer_size, self.retransmit_ns, self.timeout_ns) < 1:
            raise InvalidInputError("messages_max, buffer_size, retransmit_ns and timeout_ns must be at least 1")


class SimLinks:
    """All links between the hosts of one simulated network."""

    __slots__ = ("_blocked", "_links", "_listeners", "chance", "clock", "default", "log")

    def __init__(self, seed: int, clock: SimClock, default: Link) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.default = default
        self.log = EventLog()
        self._links: dict[tuple[str, str], Link] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._listeners: list[Callable[[], None]] = []
        self.note(f"network seed={seed}")

    def note(self, event: str) -> None:
        """Add one event, with the time, to the history."""
        self.log.note(f"t={self.clock.monotonic_ns()} {event}")

    def set(self, source: str, target: str, link: Link) -> None:
        """Set the link from one host to another."""
        self._links[source, target] = link

    def get(self, source: str, target: str) -> Link:
        """The link from one host to another."""
        return self._links.get((source, target), self.default)

    def delay_ns(self, link: Link) -> int:
        """Choose a seeded delay of this link."""
        return self.chance.randint(link.delay_min_ns, link.delay_max_ns)

    def happens(self, probability: float) -> bool:
        """Make a seeded yes-or-no decision; a probability of 0 draws no random number."""
        return probability > 0.0 and self.chance.random() < probability

    def blocked(self, source: str, target: str) -> bool:
        """True if a partition blocks this direction."""
        return (source, target) in self._blocked

    def cut(self, one: str, other: str) -> bool:
        """True if a partition blocks either direction between two hosts."""
        return self.blocked(one, other) or self.blocked(other, one)

    def block(self, sources: Iterable[str], targets: Iterable[str], *, both: bool) -> None:
        """Block the directions from sources to targets, and back if `both`."""
        pairs = _pairs(sources, targets, both=both)
        self._blocked |= pairs
        self.note(f"partition {_text(pairs)}")
        self._notify()

    def heal(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Unblock both directions between these hosts."""
        pairs = _pairs(sources, targets, both=True) & self._blocked
        self._blocked -= pairs
        self.note(f"heal {_text(pairs)}")
        self._notify()

    def heal_all(self) -> None:
        """Remove all partitions."""
        self._blocked.clear()
        self.note("heal all")
        self._notify()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the partitions change."""
        self._listeners.append(callback)

    def _notify(self) -> None:
        for callback in self._listeners:
            callback()


def _pairs(sources: Iterable[str], targets: Iterable[str], *, both: bool) -> set[tuple[str, str]]:
    forward = set(itertools.product(sources, targets))
    return forward | {(target, source) for source, target in forward} if both else forward


def _text(pairs: set[tuple[str, str]]) -> str:
    return " ".join(f"{source}->{target}" for source, target in sorted(pairs)) or "nothing"
