"""Batches of connections into the ring of the log, and its answers back to them as ACK frames.

    take       all BATCH frames of one receive: judged and published by two kernel calls
    answer     what can be said now, one ACK frame for each connection and turn
    returned   a connection whose batches came by the publish thread for a while (`publish_thread`)

No Python runs for a batch, but for compressed ones, whose records have to be looked at (`compressed_batches`), and for
repetitions that the order has forgotten. A connection whose window or whose ring is full is not read from until there
is room; where the order holds back what is in the way, it is asked to give that back.

What is refused on arrival uses its number, by a slot of its own, so that no later batch of order 5 waits for it. Only a
log that takes nothing refuses without that, and its client closes the hole.

What an ACK says, and how much may be undecided, is bounded as `publishing` says.

A crash takes what was not answered; publishers send it again, and what was stored is found to be a repetition. This
module must not know sockets, nor how a session came to be.
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
from seawall.server.publish.producer_session import ProducerSession, Publisher
from seawall.server.publish.publish_thread import PublishThread, Returned
from seawall.wire.format.ack_rows import ACK_ROW
from seawall.wire.format.codes import AS_TOPIC, POSITION_UNKNOWN, AckLevel, AckStatus, ErrorCode

_NO_OFFSETS: Final = np.zeros(0, np.int64)
_DUPLICATE: Final = int(AckStatus.DUPLICATE)
_REJECTED: Final = int(AckStatus.REJECTED)
_ORDERED: Final = int(AckLevel.ORDERED)

#: Connections that one loop ever has, at the most.
_OWNERS_MAX: Final = 1 << 48


class Ingest:
    """The batches of all connections of one loop of a server."""

    def __init__(
        self,
        log: ServedLog,
        loop: asyncio.AbstractEventLoop,
        number: int = 0,
        publish_thread: PublishThread | None = None,
    ) -> None:
        """`number` is that of the loop: what connections are called by here, no other loop of the server does."""
        self._log = log
        self._publish_thread = publish_thread
        self._call_soon = loop.call_soon
        self._owners = number * _OWNERS_MAX
        self._publishing: dict[int, ProducerSession] = {}
        #: Connections with answers that were given right here, to be sent at the end of the turn.
        self._unsent: set[ProducerSession] = set()
        #: Connections with batches that wait for room, in their window or in the ring, the longest waiting first.
        self._waiting: dict[ProducerSession, None] = {}
        #: Whether nobody's batches are taken for now, but those of a connection that is let through.
        self._is_held = False
        self._released = asyncio.Event()
        self._released.set()
        self._let_through: ProducerSession | None = None
        self._let_through_last = 0
        self._verdicts = np.zeros(limits.SERVER_FRAME_ROWS, np.int64)
        self._compressed = CompressedBatches(log, loop)
        log.on_answers = self.answer
        log.on_session = self._fence_older
        log.living_clients = self._clients
        log.connected_clients = self._connected

    def begin(
        self,
        publisher: Publisher,
        client_id: ClientId,
        session_epoch: SessionEpoch,
        *,
        features: int,
        window_batches: int,
        window_bytes: int = limits.SESSION_WINDOW_SIZE,
    ) -> ProducerSession:
        """A connection may publish for a session; connections of older sessions of the client may not any more."""
        self._fence_older(client_id, session_epoch)
        self._log.session_begun(client_id, session_epoch)
        self._owners += 1
        made = ProducerSession(
            publisher, self._owners, client_id, session_epoch, features, window_batches, window_bytes
        )
        self._publishing[made.owner] = made
        return made

    def _fence_older(self, client_id: ClientId, session_epoch: SessionEpoch) -> None:
        """Older sessions of a client have ended."""
        for other in [each for each in self._publishing.values() if each.client_id == client_id]:
            if other.session_epoch < session_epoch:
                other.publisher.fence()

    def begin_sessionless(self, publisher: Publisher, kind: type[ProducerSession]) -> ProducerSession:
        """A connection may publish that has no session: its client id is its own."""
        self._owners += 1
        client_id = synthetic_client_id(self._owners)
        made = kind(publisher, self._owners, client_id, SessionEpoch(0), 0, 0, 0)
        self._publishing[made.owner] = made
        return made

    def end(self, publishing: ProducerSession) -> None:
        """A connection is gone: answers to it are nobody's."""
        self._publishing.pop(publishing.owner, None)
        self._unsent.discard(publishing)
        self._waiting.pop(publishing, None)
        self._leave(publishing)

    def fail(self, error: BaseException) -> None:
        """Nothing more can be written: everybody who publishes is told, and what waits is refused."""
        self.answer()
        for publishing in list(self._publishing.values()):
            self._report_failure(publishing, error)
        self._go_on()

    def _report_failure(self, publishing: ProducerSession, error: BaseException) -> None:
        """Tell one connection that nothing more can be written, then that nobody knows of its undecided batches."""
        if not publishing.is_failure_reported:
            publishing.is_failure_reported = True
            publishing.publisher.fail(error)
            publishing.give_up()

    def _clients(self) -> set[ClientId]:
        """Clients of whom more may come. One whose window is full is not read from: what the order waits for cannot
        come that way, and neither can the news that it is gone."""
        return {each.client_id for each in list(self._publishing.values()) if each.space > 0}

    def _connected(self) -> set[ClientId]:
        """Clients with a connection. Both are looked up at once, since another loop may ask."""
        return {each.client_id for each in list(self._publishing.values())}

    # --- holding -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> Collection[ProducerSession]:
        """Connections whose batches wait."""
        return self._waiting

    @property
    def undecided(self) -> int:
        """Batches of sessions that wait for their answers."""
        return sum(publishing.undecided for publishing in self._publishing.values())

    @property
    def is_held(self) -> bool:
        """Whether no batches are taken for now."""
        return self._is_held

    def hold(self) -> None:
        """Take no batches until `release`: connections that bring some are not read from meanwhile."""
        self._is_held = True
        self._released.clear()
        if self._publish_thread is not None:
            self._publish_thread.recall_all()

    def release(self) -> None:
        """Take batches again."""
        if self._is_held:
            self._is_held = False
            self._released.set()
            self._go_on()

    async def until_released(self, timeout_s: float) -> None:
        """Wait while batches are held, for who publishes without a session; so long at the most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._released.wait()

    def let_one_through(self) -> bool:
        """Take what one connection has sent already, each in its turn; whether there was one."""
        last = self._let_through_last
        waiting = sorted((each.owner <= last, each.owner, each) for each in self._waiting if each.space > 0)
        if not waiting:
            return False
        self._let_through = waiting[0][2]
        self._let_through_last = self._let_through.owner
        self._waiting.pop(self._let_through, None)
        self._let_through.publisher.go_on()
        self._let_through = None
        return True

    def _is_kept_out(self, publishing: ProducerSession) -> bool:
        return self._is_held and publishing is not self._let_through

    # --- batches ---------------------------------------------------------------------------------------------------

    def place_for(
        self, publishing: ProducerSession, size: int, take_back: Callable[[], None], *, at_hand: Callable[[], bool]
    ) -> Bytes | None:
        """Bytes of the ring for a large batch of a connection that publishes alone, or which is at hand; else None."""
        if publishing.space <= 0 or self._is_held or self._log.failure is not None:
            return None
        return self._log.ring.lend(publishing.owner, size, take_back, at_hand=at_hand())

    def has_space_for(self, publishing: ProducerSession, size: int) -> bool:
        """Whether a batch of so many bytes would be taken now; if not, its connection waits for it, until `go_on`."""
        if self._log.failure is not None:
            return True  # it is refused, and needs no room
        if publishing.space > 0 and not self._is_kept_out(publishing):
            if self._log.ring.has_space(publishing.owner, size):
                return True
            self._log.release_held()
        self._waiting[publishing] = None
        return False

    def take(self, publishing: ProducerSession, buffer: Bytes, rows: Rows) -> int:
        """Publish BATCH frames; how many were handled. The others have to wait, until `go_on`.

        Raises `ProtocolError` at a frame that no client may send; those before it are handled then.
        """
        given = rows.size
        rows = rows[: max(0, publishing.space)]
        if publishing.is_checking:
            return 0
        if not rows.size or self._is_kept_out(publishing):
            self._waiting[publishing] = None
            return 0
        verdicts = self._verdicts[: rows.size]
        rules = self._log.rules
        others = arriving.judge_batches(
            *(buffer, rows, _signed(publishing.client_id), publishing.session_epoch & 0xFFFF_FFFF, publishing.codecs),
            *(rules.orders, _NO_OFFSETS, verdicts),
        )
        broken = None
        looks = _NO_OFFSETS
        if others:
            looks = np.flatnonzero(verdicts == arriving.LOOK)
            judged = self._compressed.judge(publishing, buffer, rows, verdicts)
            rows, verdicts = rows[:judged], verdicts[:judged]
            found = np.flatnonzero(verdicts == arriving.BROKEN)
            if found.size:
                broken = int(rows[found[0]]["id"])
                rows, verdicts = rows[: found[0]], verdicts[: found[0]]
        handled = self._publish(publishing, buffer, rows, verdicts)
        del publishing.checked[: int(looks.searchsorted(handled))]
        if broken is not None and handled == rows.size:
            raise ProtocolError(
                f"batch {broken}: only servers send such a header", code=ErrorCode.INVALID_PAYLOAD, closes=True
            )
        if handled < given and not (handled == rows.size and publishing.is_checking):
            self._waiting[publishing] = None
        return handled

    def may_attach(self, publishing: ProducerSession) -> bool:
        """Whether batches of a connection may come by the publish thread: none waits, and nothing is held."""
        is_idle = publishing.is_answered and not publishing.is_checking and publishing not in self._waiting
        return is_idle and not self._is_held and self._log.failure is None

    def returned(self, publishing: ProducerSession, returned: Returned) -> None:
        """The publish thread has given a connection back, maybe with batches of which nobody knows."""
        publishing.highest = returned.highest
        if returned.seqs.size:
            publishing.highest = max(publishing.highest, int(returned.seqs[-1]))
            publishing.sent(returned.seqs, returned.sizes)
        if self._log.failure is not None:
            self._report_failure(publishing, self._log.failure)
            publishing.give_up()

    def publish(self, publishing: ProducerSession, buffer: Bytes, rows: Rows) -> int:
        """Publish batches that the server made itself; how many were handled. The others wait, until `go_on`."""
        if self._is_kept_out(publishing):
            self._waiting[publishing] = None
            return 0
        verdicts = self._verdicts[: rows.size]
        verdicts[:] = arriving.TAKEN
        handled = self._publish(publishing, buffer, rows, verdicts)
        if handled < rows.size:
            self._waiting[publishing] = None
        return handled

    def _publish(self, publishing: ProducerSession, buffer: Bytes, rows: Rows, verdicts: npt.NDArray[np.int64]) -> int:
        """Publish batches that were judged, as many as have room; how many were handled."""
        log, rules = self._log, self._log.rules
        if log.failure is not None:
            self._report_failure(publishing, log.failure)
        if log.is_refusing:
            # Not even refusals can be ordered: no number is used.
            verdicts[verdicts == arriving.TAKEN] = ErrorCode.READ_ONLY
            verdicts &= arriving.CODE_MASK
        arrived = log.ring.publish_judged(buffer, rows, verdicts, publishing.owner, rules.orders, rules.levels)
        if arrived.rows:
            self._keep(publishing, buffer, rows[: arrived.rows], verdicts[: arrived.rows])
        if arrived.count:
            log.kick()
        if arrived.stop is Stop.FULL:
            log.release_held()
        return arrived.rows

    def _keep(self, publishing: ProducerSession, buffer: Bytes, rows: Rows, verdicts: npt.NDArray[np.int64]) -> None:
        """Remember what is to be answered, and answer what was refused."""
        if rows.size == 1 and verdicts[0] == arriving.TAKEN:
            self._keep_one(publishing, buffer, rows)
            return
        publishing.highest = max(publishing.highest, int(rows["id"].max()))
        levels = buffer[rows["at"] + LEVEL_AT].astype(np.int64)
        is_taken = verdicts == arriving.TAKEN
        topics = np.where(is_taken, rows["topic_id"], 0)
        levels = np.where(levels == AS_TOPIC, self._log.rules.levels[topics], levels)
        refused = ~is_taken & (verdicts < arriving.NUMBER_USED)
        is_answered = ~refused & ((levels > int(AckLevel.FAILURES)) | ~is_taken)
        publishing.sent(rows["id"][is_answered], rows["size"][is_answered])
        if refused.any():
            answers = np.zeros(int(refused.sum()), ACK_ROW)
            for name, source in (("client_seq", "id"), ("topic_id", "topic_id"), ("record_count", "record_count")):
                answers[name] = rows[source][refused]
            answers["position"] = POSITION_UNKNOWN
            answers["run"] = 1
            answers["status"] = int(AckStatus.REJECTED)
            answers["reason"] = verdicts[refused]
            publishing.decided(answers)
            self._send_soon(publishing)

    def _keep_one(self, publishing: ProducerSession, buffer: Bytes, rows: Rows) -> None:
        """The same for a receive of one batch that was taken: large ones come so, and arrays would cost more."""
        number, level = int(rows["id"][0]), int(buffer[int(rows["at"][0]) + LEVEL_AT])
        if level == AS_TOPIC:
            level = int(self._log.rules.levels[int(rows["topic_id"][0])])
        publishing.highest = max(publishing.highest, number)
        if level > int(AckLevel.FAILURES):
            publishing.sent(rows["id"], rows["size"])

    # --- answers ---------------------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Send what can be said now, and go on with connections that waited for it."""
        told: set[ProducerSession] = set()
        while (answers := self._log.ring.answers()).size:
            if answers.size > 1:
                answers = answers[np.argsort(answers["owner"], kind="stable")]
            rows, owners = ack_rows(answers, self._log.pending), answers["owner"]
            has_others = bool(rows["status"].any())
            ends = [*(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), answers.size]
            first = 0
            for end in ends:
                publishing = self._publishing.get(owners.item(first))
                if publishing is not None:
                    own = rows[first:end]
                    if has_others:
                        self._complete(publishing, own, answers[first:end])
                    publishing.decided(own)
                    told.add(publishing)
                first = end
        for publishing in told | self._unsent:
            publishing.flush()
        self._unsent.clear()
        if not self._is_held:
            self._go_on()

    def _go_on(self) -> None:
        """Connections that waited have their turn."""
        for publishing in [each for each in self._waiting if each.space > 0]:
            if publishing not in self._waiting:
                continue  # it ended when another one went on
            del self._waiting[publishing]
            publishing.publisher.go_on()
            if publishing not in self._waiting:
                self._leave(publishing)

    def _leave(self, publishing: ProducerSession) -> None:
        """A connection does not wait for room in the ring: those that wait behind it try again."""
        if self._log.ring.leave(publishing.owner):
            self._call_soon(self.answer)

    def _send_soon(self, publishing: ProducerSession) -> None:
        """Send answers to a connection at the end of the turn."""
        if not self._unsent:
            self._call_soon(self._flush_unsent)
        self._unsent.add(publishing)

    def _flush_unsent(self) -> None:
        unsent, self._unsent = self._unsent, set()
        for publishing in unsent:
            publishing.flush()

    def _complete(self, publishing: ProducerSession, rows: Rows, answers: Records) -> None:
        """Say of repetitions where the first is, and of what was refused what became of its number."""
        pending = self._log.pending
        is_repeated = rows["status"] == _DUPLICATE
        if is_repeated.any():
            slots = answers["index"] & (len(pending) - 1)
            rows["position"][is_repeated] = answers["original_position"][is_repeated]
            for index in np.flatnonzero(is_repeated & (rows["base_seq"] == 0)).tolist():
                seq, crc = ClientSeq(int(rows["client_seq"][index])), int(pending["block_crc"][slots[index]])
                known = self._log.remembered(publishing.client_id, publishing.session_epoch, seq, crc)
                rows["status"][index], rows["reason"][index] = known.status, known.reason
                rows["base_seq"][index], rows["timestamp_ns"][index] = known.base_seq, known.timestamp_ns
                rows["position"][index] = known.position if known.base_seq else POSITION_UNKNOWN
        is_refused = rows["status"] > _DUPLICATE
        # What the order has refused has used its number; what was refused without it, at level 0, has not.
        rows["level"][is_refused] = np.where(rows["status"][is_refused] == _REJECTED, _ORDERED, 0)
        rows["position"][is_refused] = POSITION_UNKNOWN


def _signed(client_id: int) -> int:
    return client_id - (1 << 64) if client_id >> 63 else client_id
