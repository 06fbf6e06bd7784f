"""A simulated broker: frames come in, whole or in pieces, and answers go out; its ring is the real one.

Frames that have no room wait where they are, in order. A slow frame is an upload: it takes a slot at once and its bytes
come later, unless its time is over. A crash loses what is here; slots that were claimed and have no token stay so until
another broker takes the ring over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.broker.uploads import Upload, Uploads
from seawall.fabric.arrays import FabricArrays
from seawall.testing.pod.batches import Frame
from seawall.wire.format.codes import AckLevel

__all__ = ["Answer", "PodBroker"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker says about a frame."""

    frame: Frame
    level: int
    status: int
    reason: int
    position: int
    base_seq: int
    original: int


class PodBroker:
    """One broker, as long as it lives."""

    def __init__(self, fabric: FabricArrays, number: int, chance: Random, upload_life_ms: int) -> None:
        self.number = number
        self.ring = BrokerRing(fabric, number)
        self._uploads = Uploads(self.ring, upload_life_ms)
        self._chance = chance
        self.inbox: deque[Frame] = deque()
        self._slow: list[tuple[Upload, Frame]] = []
        self._owners: dict[int, Frame] = {}
        self._owner_total = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to publish."""
        return not self.inbox and not self._slow

    def step(self, now_ns: int, send: Callable[[Answer], None], *, slow_chance: float = 0.0) -> None:
        """Publish some of what has come, and answer."""
        self._uploads.expire(now_ns)
        self._go_on(slow_chance)
        for _ in range(self._chance.randint(1, 6)):
            if not self.inbox or not self._take(self.inbox[0], now_ns, slow_chance):
                break
            self.inbox.popleft()
        self.answer(send)

    def answer(self, send: Callable[[Answer], None]) -> None:
        """Say what can be said."""
        while (rows := self.ring.answers()).size:
            for owner, _, _, _, position, base_seq, _, original, reason, status, level in rows.tolist():
                frame = self._owners.pop(owner)
                send(Answer(frame, level, status, reason, position, base_seq, original))

    def _take(self, frame: Frame, now_ns: int, slow_chance: float) -> bool:
        if slow_chance and self._chance.random() < slow_chance and len(self._slow) < 8:
            self._slow.append((self._uploads.begin(self._owner(frame), len(frame.data), now_ns), frame))
            return True
        owner = self._owner(frame)
        done = self.ring.publish(np.frombuffer(frame.data, np.uint8), owner, _defaults(frame))
        if not done.count:
            # It comes again under another number.
            self.ring.leave(owner)
            del self._owners[owner]
        return done.count == 1

    def _owner(self, frame: Frame) -> int:
        self._owner_total += 1
        self._owners[self._owner_total] = frame
        return self._owner_total

    def _go_on(self, slow_chance: float) -> None:
        """Some more bytes of slow frames; all of them when nothing is slow any more."""
        for upload, frame in list(self._slow):
            left = upload.size - upload.arrived
            count = self._chance.randint(0, left) if slow_chance and self._chance.random() < 0.8 else left
            if count:
                upload.space[:count] = np.frombuffer(frame.data, np.uint8)[upload.arrived : upload.arrived + count]
                upload.received(count)
            if upload.is_whole and self._uploads.finish(upload, _defaults(frame)):
                self._slow.remove((upload, frame))


def _defaults(frame: Frame) -> TopicDefaults:
    return TopicDefaults(frame.batch.order, AckLevel(frame.batch.level))
