"""A simulated broker with a real ring: receives frames, complete or in pieces, and sends answers.

Frames that do not fit the ring wait in the inbox, in order. A slow frame is an upload: it claims a slot at once and its
bytes arrive later, unless it expires. A crash loses the inbox and the uploads; slots that were claimed but not
published stay so until another broker takes over the ring.
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
    """The answer of a broker to a frame."""

    frame: Frame
    level: int
    status: int
    reason: int
    position: int
    base_seq: int
    original: int


class PodBroker:
    """One broker, until it crashes."""

    def __init__(self, fabric: FabricArrays, number: int, chance: Random, upload_life_ms: int) -> None:
        self.number = number
        self.ring = BrokerRing(fabric, number)
        self._uploads = Uploads(self.ring, upload_life_ms)
        self._chance = chance
        self.inbox: deque[Frame] = deque()
        self._slow: list[tuple[Upload, Frame]] = []
        self._owners: dict[int, Frame] = {}
        self._owner_count = 0

    @property
    def is_idle(self) -> bool:
        """True if nothing is left to publish."""
        return not self.inbox and not self._slow

    def step(self, now_ns: int, send: Callable[[Answer], None], *, slow_chance: float = 0.0) -> None:
        """Publish some of the received frames, and send answers."""
        self._uploads.expire(now_ns)
        self._receive_slow_frames(slow_chance)
        for _ in range(self._chance.randint(1, 6)):
            if not self.inbox or not self._publish(self.inbox[0], now_ns, slow_chance):
                break
            self.inbox.popleft()
        self.answer(send)

    def answer(self, send: Callable[[Answer], None]) -> None:
        """Send all available answers."""
        while (rows := self.ring.answers()).size:
            for owner, _, _, _, position, base_seq, _, original, reason, status, level in rows.tolist():
                frame = self._owners.pop(owner)
                send(Answer(frame, level, status, reason, position, base_seq, original))

    def _publish(self, frame: Frame, now_ns: int, slow_chance: float) -> bool:
        if slow_chance and self._chance.random() < slow_chance and len(self._slow) < 8:
            self._slow.append((self._uploads.begin(self._new_owner(frame), len(frame.data), now_ns), frame))
            return True
        owner = self._new_owner(frame)
        done = self.ring.publish(np.frombuffer(frame.data, np.uint8), owner, _defaults(frame))
        if not done.count:
            # It will be published later, as another owner.
            self.ring.leave(owner)
            del self._owners[owner]
        return done.count == 1

    def _new_owner(self, frame: Frame) -> int:
        self._owner_count += 1
        self._owners[self._owner_count] = frame
        return self._owner_count

    def _receive_slow_frames(self, slow_chance: float) -> None:
        """Receive more bytes of slow frames; all of them once `slow_chance` is 0."""
        for upload, frame in list(self._slow):
            missing = upload.size - upload.arrived
            count = self._chance.randint(0, missing) if slow_chance and self._chance.random() < 0.8 else missing
            if count:
                upload.space[:count] = np.frombuffer(frame.data, np.uint8)[upload.arrived : upload.arrived + count]
                upload.received(count)
            if upload.is_whole and self._uploads.finish(upload, _defaults(frame)):
                self._slow.remove((upload, frame))


def _defaults(frame: Frame) -> TopicDefaults:
    return TopicDefaults(frame.batch.order, AckLevel(frame.batch.level))
