"""Publishes batches of connections to the ring of the log, and sends its answers back as ACK frames.

    take       all BATCH frames of one receive: two kernel calls validate and publish them
    answer     sends one ACK frame for each connection and loop iteration
    returned   a connection comes back from the publish thread (`publish_thread`)

No Python code runs per batch, except for compressed ones, whose records have to be checked (`compressed_batches`), and
for duplicates that the order has forgotten. The server stops reading from a connection whose window or ring is full
until there is space. If batches that the order holds back block the ring, the log is asked to free their space.

A batch refused on arrival uses up its client seq, by a slot of its own in the ring, so that no later batch of order 5
waits for it. Only a read-only log refuses without that, and its client closes the gap.

`producer_session` states the bounds on ACKs and on undecided batches.

A crash loses what was not answered; publishers send it again, and stored batches are recognized as duplicates. This
module must not know sockets, nor how a session was opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.broker.ring import Stop
from seawall.core.identifiers import synthetic_client_id
from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.ordering.pod_answers import ack_rows
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import ProtocolError
from seawall.fabric.records import Records
from seawall.kernels.admission import arriving
from seawall.kernels.codec.batch_header import LEVEL_AT
from seawall.kernels.codec.frames import Rows
from seawall.server.connection.session import Bytes
from seawall.server.publish.compressed_batches import CompressedBatches
from seawall.server.publish.producer_session import Producer, ProducerSession
from seawall.server.publish.publish_thread import PublishThread, Returned
from seawall.wire.format.ack_rows import ACK_ROW
from seawall.wire.format.codes import AS_TOPIC, POSITION_UNKNOWN, AckLevel, AckStatus, ErrorCode

_NO_OFFSETS: Final = np.zeros(0, np.int64)
_DUPLICATE: Final = int(AckStatus.DUPLICATE)
_REJECTED: Final = int(AckStatus.REJECTED)
_ORDERED: Final = int(AckLevel.ORDERED)

#: The most connections that one loop ever has.
_OWNERS_MAX: Final = 1 << 48


class Ingest:
    """The batches of all connections of one event loop."""

    def __init__(
        self,
        log: ServedLog,
        loop: asyncio.AbstractEventLoop,
        number: int = 0,
        publish_thread: PublishThread | None = None,
    ) -> None:
        """`number` is that of the loop: it makes the owner ids of connections unique in the server."""
        self._log = log
        self._publish_thread = publish_thread
        self._call_soon = loop.call_soon
        self._owners = number * _OWNERS_MAX
        self._producers: dict[int, ProducerSession] = {}
        #: Connections with answers to send at the end of the loop iteration.
        self._unsent: set[ProducerSession] = set()
        #: Connections with batches that wait for space in their window or in the ring, the longest waiting first.
        self._waiting: dict[ProducerSession, None] = {}
        #: True while batches are held, except those of a connection that is let through.
        self._is_held = False
        self._released = asyncio.Event()
        self._released.set()
        self._let_through: ProducerSession | None = None
        self._let_through_last = 0
        self._verdicts = np.zeros(limits.SERVER_FRAME_ROWS, np.int64)
        self._compressed = CompressedBatches(log, loop)
        log.on_acks = self.answer
        log.on_session = self._fence_older
        log.live_clients = self._clients
        log.connected_clients = self._connected

    def begin(
        self,
        session: Producer,
        client_id: ClientId,
        session_epoch: SessionEpoch,
        *,
        features: int,
        window_batches: int,
        window_bytes: int = limits.SESSION_WINDOW_SIZE,
    ) -> ProducerSession:
        """Let a connection publish for a session, and fence older sessions of the client."""
        self._fence_older(client_id, session_epoch)
        self._log.fence_older_sessions(client_id, session_epoch)
        self._owners += 1
        made = ProducerSession(session, self._owners, client_id, session_epoch, features, window_batches, window_bytes)
        self._producers[made.owner] = made
        return made

    def _fence_older(self, client_id: ClientId, session_epoch: SessionEpoch) -> None:
        """End older sessions of a client."""
        for other in [each for each in self._producers.values() if each.client_id == client_id]:
            if other.session_epoch < session_epoch:
                other.session.fence()

    def begin_sessionless(self, session: Producer, kind: type[ProducerSession]) -> ProducerSession:
        """Let a connection publish without a session, under a client id of its own."""
        self._owners += 1
        client_id = synthetic_client_id(self._owners)
        made = kind(session, self._owners, client_id, SessionEpoch(0), 0, 0, 0)
        self._producers[made.owner] = made
        return made

    def end(self, producer: ProducerSession) -> None:
        """Remove a closed connection: its answers are dropped."""
        self._producers.pop(producer.owner, None)
        self._unsent.discard(producer)
        self._waiting.pop(producer, None)
        self._leave_ring_queue(producer)

    def fail(self, error: BaseException) -> None:
        """Report a write error to all publishers, and refuse waiting batches."""
        self.answer()
        for producer in list(self._producers.values()):
            self._report_failure(producer, error)
        self._resume_waiting()

    def _report_failure(self, producer: ProducerSession, error: BaseException) -> None:
        """Report a write error to one connection, then the unknown outcome of its undecided batches."""
        if not producer.is_failure_reported:
            producer.is_failure_reported = True
            producer.session.fail(error)
            producer.give_up()

    def _clients(self) -> set[ClientId]:
        """Clients that may send more batches.

        The server does not read from a client whose window is full: neither a batch that the order waits for nor the
        end of the connection can arrive.
        """
        return {each.client_id for each in list(self._producers.values()) if each.space > 0}

    def _connected(self) -> set[ClientId]:
        """Clients with a connection. Copies first, since another loop may call it."""
        return {each.client_id for each in list(self._producers.values())}

    # --- holding -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> Collection[ProducerSession]:
        """Connections with waiting batches."""
        return self._waiting

    @property
    def undecided(self) -> int:
        """Batches without a decision."""
        return sum(producer.undecided for producer in self._producers.values())

    @property
    def is_held(self) -> bool:
        """True while batches are held."""
        return self._is_held

    def hold(self) -> None:
        """Accept no batches until `release`: the server does not read from connections that send some."""
        self._is_held = True
        self._released.clear()
        if self._publish_thread is not None:
            self._publish_thread.recall_all()

    def release(self) -> None:
        """Accept batches again."""
        if self._is_held:
            self._is_held = False
            self._released.set()
            self._resume_waiting()

    async def until_released(self, timeout_s: float) -> None:
        """Wait while batches are held, at most `timeout_s`; for publishers without a session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._released.wait()

    def let_one_through(self) -> bool:
        """Accept the received batches of one waiting connection, round-robin; False if there is none."""
        last = self._let_through_last
        waiting = sorted((each.owner <= last, each.owner, each) for each in self._waiting if each.space > 0)
        if not waiting:
            return False
        self._let_through = waiting[0][2]
        self._let_through_last = self._let_through.owner
        self._waiting.pop(self._let_through, None)
        self._let_through.session.resume()
        self._let_through = None
        return True

    def _is_blocked(self, producer: ProducerSession) -> bool:
        return self._is_held and producer is not self._let_through

    # --- batches ---------------------------------------------------------------------------------------------------

    def buffer_for(
        self, producer: ProducerSession, size: int, revoke: Callable[[], None], *, is_queued: Callable[[], bool]
    ) -> Bytes | None:
        """Bytes of the ring for a large batch of a connection that publishes alone, or that is queued; else None."""
        if producer.space <= 0 or self._is_held or self._log.failure is not None:
            return None
        return self._log.ring.lend(producer.owner, size, revoke, at_hand=is_queued())

    def has_space_for(self, producer: ProducerSession, size: int) -> bool:
        """True if a batch of `size` bytes would be accepted now; if not, the connection waits for `resume`."""
        if self._log.failure is not None:
            return True  # the batch is refused, and needs no space
        if producer.space > 0 and not self._is_blocked(producer):
            if self._log.ring.has_space(producer.owner, size):
                return True
            self._log.release_held()
        self._waiting[producer] = None
        return False

    def take(self, producer: ProducerSession, buffer: Bytes, rows: Rows) -> int:
        """Publish BATCH frames; returns how many were handled. The others wait for `resume`.

        Raises `ProtocolError` at a frame that no client may send, after handling those before it.
        """
        given = rows.size
        rows = rows[: max(0, producer.space)]
        if producer.is_checking:
            return 0
        if not rows.size or self._is_blocked(producer):
            self._waiting[producer] = None
            return 0
        verdicts = self._verdicts[: rows.size]
        rules = self._log.rules
        other_count = arriving.validate_batches(
            *(buffer, rows, _signed(producer.client_id), producer.session_epoch & 0xFFFF_FFFF, producer.codecs),
            *(rules.orders, _NO_OFFSETS, verdicts),
        )
        broken = None
        unchecked = _NO_OFFSETS
        if other_count:
            unchecked = np.flatnonzero(verdicts == arriving.INSPECT)
            resolved = self._compressed.resolve(producer, buffer, rows, verdicts)
            rows, verdicts = rows[:resolved], verdicts[:resolved]
            found = np.flatnonzero(verdicts == arriving.MALFORMED)
            if found.size:
                broken = int(rows[found[0]]["id"])
                rows, verdicts = rows[: found[0]], verdicts[: found[0]]
        handled = self._publish(producer, buffer, rows, verdicts)
        del producer.checked[: int(unchecked.searchsorted(handled))]
        if broken is not None and handled == rows.size:
            raise ProtocolError(
                f"batch {broken}: only servers send such a header", code=ErrorCode.INVALID_PAYLOAD, closes=True
            )
        if handled < given and not (handled == rows.size and producer.is_checking):
            self._waiting[producer] = None
        return handled

    def may_attach(self, producer: ProducerSession) -> bool:
        """True if the publish thread may take the connection: no batch waits, and none is held."""
        is_idle = producer.is_answered and not producer.is_checking and producer not in self._waiting
        return is_idle and not self._is_held and self._log.failure is None

    def returned(self, producer: ProducerSession, returned: Returned) -> None:
        """Take back a connection from the publish thread, maybe with batches of unknown outcome."""
        producer.highest = returned.highest
        if returned.seqs.size:
            producer.highest = max(producer.highest, int(returned.seqs[-1]))
            producer.sent(returned.seqs, returned.sizes)
        if self._log.failure is not None:
            self._report_failure(producer, self._log.failure)
            producer.give_up()

    def publish(self, producer: ProducerSession, buffer: Bytes, rows: Rows) -> int:
        """Publish batches that the server encoded; returns how many were handled. The others wait for `resume`."""
        if self._is_blocked(producer):
            self._waiting[producer] = None
            return 0
        verdicts = self._verdicts[: rows.size]
        verdicts[:] = arriving.ACCEPTED
        handled = self._publish(producer, buffer, rows, verdicts)
        if handled < rows.size:
            self._waiting[producer] = None
        return handled

    def _publish(self, producer: ProducerSession, buffer: Bytes, rows: Rows, verdicts: npt.NDArray[np.int64]) -> int:
        """Publish validated batches as far as there is space; returns how many were handled."""
        log, rules = self._log, self._log.rules
        if log.failure is not None:
            self._report_failure(producer, log.failure)
        if log.is_refusing:
            # A read-only log cannot order refusals either: they use up no client seq.
            verdicts[verdicts == arriving.ACCEPTED] = ErrorCode.READ_ONLY
            verdicts &= arriving.CODE_MASK
        arrived = log.ring.publish_validated(buffer, rows, verdicts, producer.owner, rules.orders, rules.levels)
        if arrived.rows:
            self._record(producer, buffer, rows[: arrived.rows], verdicts[: arrived.rows])
        if arrived.count:
            log.request_commit()
        if arrived.stop is Stop.FULL:
            log.release_held()
        return arrived.rows

    def _record(self, producer: ProducerSession, buffer: Bytes, rows: Rows, verdicts: npt.NDArray[np.int64]) -> None:
        """Record the batches that need an answer, and answer refused ones."""
        if rows.size == 1 and verdicts[0] == arriving.ACCEPTED:
            self._record_one(producer, buffer, rows)
            return
        producer.highest = max(producer.highest, int(rows["id"].max()))
        levels = buffer[rows["at"] + LEVEL_AT].astype(np.int64)
        is_accepted = verdicts == arriving.ACCEPTED
        topics = np.where(is_accepted, rows["topic_id"], 0)
        levels = np.where(levels == AS_TOPIC, self._log.rules.levels[topics], levels)
        refused = ~is_accepted & (verdicts < arriving.NUMBER_USED)
        is_answered = ~refused & ((levels > int(AckLevel.FAILURES)) | ~is_accepted)
        producer.sent(rows["id"][is_answered], rows["size"][is_answered])
        if refused.any():
            answers = np.zeros(int(refused.sum()), ACK_ROW)
            for name, source in (("client_seq", "id"), ("topic_id", "topic_id"), ("record_count", "record_count")):
                answers[name] = rows[source][refused]
            answers["position"] = POSITION_UNKNOWN
            answers["run"] = 1
            answers["status"] = int(AckStatus.REJECTED)
            answers["reason"] = verdicts[refused]
            producer.decided(answers)
            self._flush_soon(producer)

    def _record_one(self, producer: ProducerSession, buffer: Bytes, rows: Rows) -> None:
        """The same for one accepted batch, without the cost of arrays: the usual case for large batches."""
        number, level = int(rows["id"][0]), int(buffer[int(rows["at"][0]) + LEVEL_AT])
        if level == AS_TOPIC:
            level = int(self._log.rules.levels[int(rows["topic_id"][0])])
        producer.highest = max(producer.highest, number)
        if level > int(AckLevel.FAILURES):
            producer.sent(rows["id"], rows["size"])

    # --- answers ---------------------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Send all available answers, and resume connections that waited for them."""
        answered: set[ProducerSession] = set()
        while (answers := self._log.ring.answers()).size:
            if answers.size > 1:
                answers = answers[np.argsort(answers["owner"], kind="stable")]
            rows, owners = ack_rows(answers, self._log.pending), answers["owner"]
            has_others = bool(rows["status"].any())
            ends = [*(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), answers.size]
            first = 0
            for end in ends:
                producer = self._producers.get(owners.item(first))
                if producer is not None:
                    own = rows[first:end]
                    if has_others:
                        self._complete_rows(producer, own, answers[first:end])
                    producer.decided(own)
                    answered.add(producer)
                first = end
        for producer in answered | self._unsent:
            producer.flush()
        self._unsent.clear()
        if not self._is_held:
            self._resume_waiting()

    def _resume_waiting(self) -> None:
        """Resume the waiting connections."""
        for producer in [each for each in self._waiting if each.space > 0]:
            if producer not in self._waiting:
                continue  # closed while another one was resumed
            del self._waiting[producer]
            producer.session.resume()
            if producer not in self._waiting:
                self._leave_ring_queue(producer)

    def _leave_ring_queue(self, producer: ProducerSession) -> None:
        """Remove a connection from the queue for ring space: those behind it try again."""
        if self._log.ring.leave(producer.owner):
            self._call_soon(self.answer)

    def _flush_soon(self, producer: ProducerSession) -> None:
        """Send answers to a connection at the end of the loop iteration."""
        if not self._unsent:
            self._call_soon(self._flush_unsent)
        self._unsent.add(producer)

    def _flush_unsent(self) -> None:
        unsent, self._unsent = self._unsent, set()
        for producer in unsent:
            producer.flush()

    def _complete_rows(self, producer: ProducerSession, rows: Rows, answers: Records) -> None:
        """Add the original location of duplicates, and whether refused batches have used up their client seq."""
        pending = self._log.pending
        is_repeated = rows["status"] == _DUPLICATE
        if is_repeated.any():
            slots = answers["index"] & (len(pending) - 1)
            rows["position"][is_repeated] = answers["original_position"][is_repeated]
            for index in np.flatnonzero(is_repeated & (rows["base_seq"] == 0)).tolist():
                seq, crc = ClientSeq(int(rows["client_seq"][index])), int(pending["block_crc"][slots[index]])
                known = self._log.remembered(producer.client_id, producer.session_epoch, seq, crc)
                rows["status"][index], rows["reason"][index] = known.status, known.reason
                rows["base_seq"][index], rows["timestamp_ns"][index] = known.base_seq, known.timestamp_ns
                rows["position"][index] = known.position if known.base_seq else POSITION_UNKNOWN
        is_refused = rows["status"] > _DUPLICATE
        # A batch refused by the order has used up its client seq; one refused before, at level 0, has not.
        rows["level"][is_refused] = np.where(rows["status"][is_refused] == _REJECTED, _ORDERED, 0)
        rows["position"][is_refused] = POSITION_UNKNOWN


def _signed(client_id: int) -> int:
    return client_id - (1 << 64) if client_id >> 63 else client_id
