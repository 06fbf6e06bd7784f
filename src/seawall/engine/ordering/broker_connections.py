"""Publishes the batches of many connections to the ring of one broker, and sends the answers back.

    receive   verifies received batches in place, and publishes all complete ones by one call
    answer    sends the available answers, one ACK frame for each connection and step

No Python code runs for a single batch. A connection whose batches do not fit the ring is not read from until they do,
which slows its sender down (backpressure). Each connection publishes for one open session.

A batch is published only after its checksums were verified. An ACK reports client seqs as decided only if it, or an
earlier one, answers all of them.

A crash loses batches that were received and not published, and answers that were not sent; the sender sends again. A
connection that ends or breaks the protocol is dropped, and its answers are discarded. One thread. This module must not
know which process it runs in, nor how bytes are transported.
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

#: Bytes that a connection may have received and not published: the batch that is arriving and one more.
BUFFER_SIZE: Final = 4 * limits.MIB
#: The largest block that fits this buffer as a batch.
BLOCK_MAX: Final = BUFFER_SIZE - limits.BATCH_HEADER_SIZE
#: The most receive calls for one connection in a step, so that the others are served, too.
RECEIVES_MAX: Final = 16
#: The most frames that one call splits.
FRAMES_MAX: Final = 1_024


class WaitableStream(Stream, Protocol):
    """A connection that can be waited on."""

    def fileno(self) -> int:
        """The descriptor to wait on."""
        ...


class StreamWakeup(Protocol):
    """The wake-up event of a role, which streams can trigger, too."""

    def watch(self, descriptor: int, /, *, bytes_come: bool = True, has_space: bool = False) -> None:
        """Wake when bytes arrive here, or when there is space to send."""
        ...

    def unwatch(self, descriptor: int, /) -> None:
        """Stop watching it."""
        ...


@dataclass(frozen=True, slots=True)
class Publisher:
    """The publisher behind a connection: its session, the seqs decided before, and the defaults of its topic."""

    session_epoch: SessionEpoch
    decided_through: ClientSeq
    defaults: TopicDefaults
    window_batches: int = limits.PAYLOAD_SIZE_MIN // limits.KIB
    window_bytes: int = limits.PAYLOAD_SIZE_MIN


@dataclass(slots=True)
class Connection:
    """The connection of one publisher.

    Its buffer has verified batches from `start` to `verified`, and unverified bytes from there to `end`.
    """

    stream: WaitableStream
    owner: int
    publisher: Publisher
    buffer: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(BUFFER_SIZE, np.uint8))
    start: int = 0
    verified: int = 0
    end: int = 0
    #: Size of the batch that is arriving, as far as it is known.
    needed: int = 0
    #: Every client seq up to here is answered.
    through: int = 0
    #: Answered seqs above the first unanswered one.
    early: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    outbox: bytearray = field(default_factory=bytearray)
    #: What wakes the role: bytes to receive, space to send.
    watched: tuple[bool, bool] = (True, False)

    def __post_init__(self) -> None:
        self.through = int(self.publisher.decided_through)

    def is_blocked(self) -> bool:
        """True if verified batches wait for space in the ring."""
        return self.verified > self.start


class BrokerConnections:
    """The connections of one broker."""

    __slots__ = ("_connections", "_has_unblocked", "_owners", "_pbr", "_ring", "_rows", "_state", "_steps", "_wakeup")

    def __init__(self, ring: BrokerRing, pbr: Records, wakeup: StreamWakeup) -> None:
        """`pbr` is the broker's ring of pending batches, which has the batch of each answer."""
        self._wakeup: Final = wakeup
        self._owners = 0
        self._steps = 0
        #: True if a dropped connection was first in line for the ring, and others waited after it.
        self._has_unblocked = False
        self._ring: Final = ring
        self._pbr: Final = pbr
        self._connections: Final[dict[int, Connection]] = {}
        self._rows: Final = np.zeros(FRAMES_MAX, frames.FRAME_ROW)
        self._state: Final = np.zeros(frames.STATE_SIZE, np.int64)

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, stream: WaitableStream, publisher: Publisher) -> None:
        """Add a connection whose session is open."""
        self._owners += 1
        self._connections[self._owners] = Connection(stream, self._owners, publisher)
        self._wakeup.watch(stream.fileno())

    def receive(self) -> int:
        """Receive and publish; how many batches."""
        waiting = list(self._connections.values())
        # Start with another connection each time, so that one cannot take all space that becomes free.
        self._steps += 1
        first = self._steps % max(1, len(waiting))
        count = sum(self._receive(each) for each in waiting[first:] + waiting[:first])
        while self._has_unblocked:
            self._has_unblocked = False
            count += sum(self._receive(each) for each in list(self._connections.values()) if each.is_blocked())
        return count

    @property
    def is_blocked(self) -> bool:
        """True if verified batches of any connection wait for space in the ring."""
        return any(each.is_blocked() for each in self._connections.values())

    def answer(self) -> int:
        """Send the available answers; how many batches were answered."""
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
        """Update what wakes this role: bytes that it would not receive now must not keep it awake."""
        wanted = (not connection.is_blocked(), bool(connection.outbox))
        if wanted != connection.watched:
            connection.watched = wanted
            self._wakeup.watch(connection.stream.fileno(), bytes_come=wanted[0], has_space=wanted[1])

    def _make_space(self, connection: Connection) -> None:
        """Move a partly received batch to the front of the buffer if its rest would not fit after it."""
        rest = connection.end - connection.start
        wanted = max(connection.needed, limits.RECEIVE_SIZE)
        if connection.start and (not rest or connection.start + wanted > BUFFER_SIZE):
            moved = connection.buffer[connection.start : connection.end]
            connection.buffer[:rest] = moved if rest <= connection.start else moved.copy()
            connection.start, connection.verified, connection.end = 0, 0, rest

    def _verify(self, connection: Connection) -> None:
        """Verify the complete batches in the buffer; `ProtocolError` if one is invalid."""
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
        """Append an ACK frame to the outbox."""
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
        """Send from the outbox; False if the connection is gone."""
        try:
            while connection.outbox and (taken := connection.stream.send(connection.outbox)):
                del connection.outbox[:taken]
        except ConnectionError:
            self._drop(connection)
            return False
        return True

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.owner, None) is not None:
            self._has_unblocked |= self._ring.leave(connection.owner)
            if connection.stream.fileno() >= 0:
                self._wakeup.unwatch(connection.stream.fileno())
            connection.stream.close()


def _decided_through(connection: Connection, seqs: npt.NDArray[np.uint64]) -> int:
    """The client seq up to which all are answered, including `seqs`."""
    early = np.union1d(connection.early, seqs[seqs > connection.through])
    expected = connection.through + 1 + np.arange(early.size, dtype=np.uint64)
    run = int(np.argmin(early == expected)) if early.size and not (early == expected).all() else early.size
    connection.through += run
    connection.early = early[run:]
    return connection.through
