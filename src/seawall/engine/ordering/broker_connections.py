"""Batches of many connections into the ring of one broker, and its answers back to them.

    receive   what has come is verified where it lies and published, all whole batches by one call
    answer    what can be said about them, one ACK frame for each connection and turn

No Python runs for a batch. A connection whose batches have no room in the ring is not read from until they have: the
sender feels it. Each publishes for one session, which is open.

Nothing is published whose checksums are not verified. What an ACK calls decided up to a client seq has been answered by
this or an earlier one.

What a crash does: what was received and not published is gone, and so are answers not sent; the sender sends again. A
connection that breaks the protocol or ends is dropped; answers to it are nobody's. One thread. It must not know which
process it runs in, nor how bytes travel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.broker.ring import BrokerRing, Stop, TopicDefaults
from seawall.core.types import ClientSeq, SessionEpoch
from seawall.engine.ordering.pod_answers import ack_rows
from seawall.errors import ProtocolError
from seawall.fabric.records import Records
from seawall.io.interfaces import Stream
from seawall.kernels.codec import frames
from seawall.wire.format.ack_rows import encode_ack_rows
from seawall.wire.format.codes import ErrorCode, Kind

#: What a connection may have received and not published: room for the batch that is arriving and one more.
BUFFER_SIZE: Final = 4 * limits.MIB
#: The largest block of a batch that this room holds.
BLOCK_MAX: Final = BUFFER_SIZE - limits.BATCH_HEADER_SIZE
#: Receives of one connection in a turn: the others have theirs, too.
RECEIVES_MAX: Final = 16
#: Frames that one look at a buffer finds.
FRAMES_MAX: Final = 1_024


class WaitableStream(Stream, Protocol):
    """A connection that can be waited on."""

    def fileno(self) -> int:
        """What to wait on."""
        ...


class Watches(Protocol):
    """The bell of a role that bytes wake, too."""

    def watch(self, descriptor: int, /, *, bytes_come: bool = True, has_space: bool = False) -> None:
        """Wake when bytes arrive here, or when there is room to send."""
        ...

    def unwatch(self, descriptor: int, /) -> None:
        """Wake for neither."""
        ...


@dataclass(frozen=True, slots=True)
class Publisher:
    """Whose batches a connection brings: its session, what was decided before, and the defaults of its topic."""

    session_epoch: SessionEpoch
    decided_through: ClientSeq
    defaults: TopicDefaults
    window_batches: int = limits.PAYLOAD_SIZE_MIN // limits.KIB
    window_bytes: int = limits.PAYLOAD_SIZE_MIN


@dataclass(slots=True)
class Connection:
    """One publisher's connection. Bytes from `start` on are not published, below `verified` they are whole batches."""

    stream: WaitableStream
    owner: int
    publisher: Publisher
    buffer: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(BUFFER_SIZE, np.uint8))
    start: int = 0
    verified: int = 0
    end: int = 0
    #: Bytes of the batch that is arriving, as far as that is known.
    needed: int = 0
    through: int = 0
    #: Seqs that are answered, beyond the first that is not.
    early: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    outbox: bytearray = field(default_factory=bytearray)
    #: What its owner is woken for: bytes that come, room to send.
    watched: tuple[bool, bool] = (True, False)

    def __post_init__(self) -> None:
        self.through = int(self.publisher.decided_through)

    def is_blocked(self) -> bool:
        """Whether whole batches wait for room in the ring."""
        return self.verified > self.start


class BrokerConnections:
    """The connections of one broker."""

    __slots__ = ("_connections", "_has_made_way", "_owners", "_pbr", "_ring", "_rows", "_state", "_turns", "_wakeup")

    def __init__(self, ring: BrokerRing, pbr: Records, wakeup: Watches) -> None:
        """`pbr` is the broker's ring of pending batches, which says what an answer is about."""
        self._wakeup: Final = wakeup
        self._owners = 0
        self._turns = 0
        #: Whether a connection has gone that others waited behind.
        self._has_made_way = False
        self._ring: Final = ring
        self._pbr: Final = pbr
        self._connections: Final[dict[int, Connection]] = {}
        self._rows: Final = np.zeros(FRAMES_MAX, frames.FRAME_ROW)
        self._state: Final = np.zeros(frames.STATE_SIZE, np.int64)

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, stream: WaitableStream, publisher: Publisher) -> None:
        """Take a connection whose session is open."""
        self._owners += 1
        self._connections[self._owners] = Connection(stream, self._owners, publisher)
        self._wakeup.watch(stream.fileno())

    def receive(self) -> int:
        """Publish what has come; how many batches."""
        waiting = list(self._connections.values())
        # Another one is first in each turn, or whoever is first would have all the room that comes free.
        self._turns += 1
        first = self._turns % max(1, len(waiting))
        count = sum(self._receive(each) for each in waiting[first:] + waiting[:first])
        while self._has_made_way:
            self._has_made_way = False
            count += sum(self._receive(each) for each in list(self._connections.values()) if each.is_blocked())
        return count

    @property
    def is_blocked(self) -> bool:
        """Whether whole batches of any connection wait for room in the ring."""
        return any(each.is_blocked() for each in self._connections.values())

    def answer(self) -> int:
        """Send what can be said; how many batches were answered."""
        count = 0
        while (answers := self._ring.answers()).size:
            count += answers.size
            for owner in np.unique(answers["owner"]).tolist():
                connection = self._connections.get(owner)
                if connection is not None:
                    self._queue(connection, answers[answers["owner"] == owner])
        for connection in list(self._connections.values()):
            if self._flush(connection):
                self._watch(connection)
        return count

    def _receive(self, connection: Connection) -> int:
        count = self._publish(connection) if connection.is_blocked() else 0
        received: int | None = None
        try:
            for _ in range(RECEIVES_MAX):
                if connection.is_blocked():
                    break
                self._make_space(connection)
                received = connection.stream.receive_into(connection.buffer.data[connection.end :])
                if not received:
                    break
                connection.end += received
                self._verify(connection)
                count += self._publish(connection)
        except (ConnectionError, ProtocolError):
            received = 0
        if received == 0:
            self._drop(connection)
        return count

    def _watch(self, connection: Connection) -> None:
        """Be woken for what matters: bytes that nobody takes must not keep us awake."""
        wanted = (not connection.is_blocked(), bool(connection.outbox))
        if wanted != connection.watched:
            connection.watched = wanted
            self._wakeup.watch(connection.stream.fileno(), bytes_come=wanted[0], has_space=wanted[1])

    def _make_space(self, connection: Connection) -> None:
        """Bring the beginning of a batch that is still arriving to the front, if the rest would not fit behind it."""
        rest = connection.end - connection.start
        wanted = max(connection.needed, limits.RECEIVE_SIZE)
        if connection.start and (not rest or connection.start + wanted > BUFFER_SIZE):
            moved = connection.buffer[connection.start : connection.end]
            connection.buffer[:rest] = moved if rest <= connection.start else moved.copy()
            connection.start, connection.verified, connection.end = 0, 0, rest

    def _verify(self, connection: Connection) -> None:
        """Find the batches that are whole and sound."""
        code = frames.SPLIT_FULL
        while code == frames.SPLIT_FULL:
            code = frames.split_frames(
                *(connection.buffer, connection.verified, connection.end, BLOCK_MAX),
                *(self._rows, self._state),
            )
            found = self._rows[: int(self._state[frames.STATE_FRAMES])]
            if code > frames.SPLIT_FULL or (found["kind"] != int(Kind.BATCH)).any():
                raise ProtocolError("not a sound batch", code=ErrorCode.INVALID_PAYLOAD, closes=True)
            connection.verified = int(self._state[frames.STATE_CONSUMED])
            connection.needed = int(self._state[frames.STATE_NEEDED])

    def _publish(self, connection: Connection) -> int:
        done = self._ring.publish(
            *(connection.buffer, connection.owner, connection.publisher.defaults),
            start=connection.start,
            end=connection.verified,
        )
        connection.start = done.consumed
        if done.stop not in {Stop.DONE, Stop.FULL}:
            raise ProtocolError("a batch that no ring can hold", code=ErrorCode.INVALID_PAYLOAD, closes=True)
        return done.count

    def _queue(self, connection: Connection, answers: Records) -> None:
        """Put an ACK frame behind what is still to be sent."""
        publisher = connection.publisher
        rows = ack_rows(answers, self._pbr)
        connection.outbox += encode_ack_rows(
            rows[np.argsort(rows["client_seq"], kind="stable")],
            session_epoch=publisher.session_epoch,
            window_batches=publisher.window_batches,
            window_bytes=publisher.window_bytes,
            through=_decided_through(connection, answers["client_seq"]),
        )

    def _flush(self, connection: Connection) -> bool:
        """Send what can be sent; false if the connection is gone."""
        try:
            while connection.outbox and (taken := connection.stream.send(connection.outbox)):
                del connection.outbox[:taken]
        except ConnectionError:
            self._drop(connection)
            return False
        return True

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.owner, None) is not None:
            self._has_made_way |= self._ring.leave(connection.owner)
            if connection.stream.fileno() >= 0:
                self._wakeup.unwatch(connection.stream.fileno())
            connection.stream.close()


def _decided_through(connection: Connection, seqs: npt.NDArray[np.uint64]) -> int:
    """The client seq up to which everything is answered, now that these are."""
    early = np.union1d(connection.early, seqs[seqs > connection.through])
    expected = connection.through + 1 + np.arange(early.size, dtype=np.uint64)
    run = int(np.argmin(early == expected)) if early.size and not (early == expected).all() else early.size
    connection.through += run
    connection.early = early[run:]
    return connection.through
