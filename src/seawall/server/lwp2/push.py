"""Subscriptions of a connection: pushes batches as they arrive, within credit.

Each subscription is a task that continues to read at its position. It waits for credit and for space in the outbox, and
holds no memory meanwhile. At the end of its topic it follows: new records are read and sent by the wake-up itself,
while that needs no waiting. A short response waits for more records for as long as the subscriber
asks for (`linger_us`). Gaps are reported once, in order with the data. CAUGHT_UP is sent each time the end is reached.

Without credit nothing is read.

A crash ends the subscription; the reader continues from its position. This module must not know sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

from seawall import limits
from seawall.core.types import Position, Seq, TopicEpoch
from seawall.engine.read.position_reading import PartialPosition
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import ProtocolError, SeawallError
from seawall.server.connection.access import Admission
from seawall.server.connection.budget import Lease
from seawall.server.connection.connection import Connection
from seawall.server.lwp2.fetch import start_seq
from seawall.server.lwp2.push_credit import PushCredit
from seawall.server.read.fetch_responses import FetchResponse, next_response, response_now, topic_of
from seawall.server.read.position_responses import next_position_response, start_position
from seawall.wire.format.codes import ALL_TOPICS, Command, ErrorCode, GapUnit, ReadFlags
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import Gap
from seawall.wire.lwp2.subscriptions import CaughtUp, Credit, Subscribe, Subscribed, Unsubscribed

#: Starts a task for a subscription.
Begin: TypeAlias = Callable[[Coroutine[None, None, None], int], None]


class _Pushed(Enum):
    """The result of a push: some of the available data was sent, all of it, or none because it is short."""

    SOME = auto()
    ALL = auto()
    SHORT = auto()


class Subscription:
    """One subscription: its position, and its credit."""

    def __init__(self, request: Subscribe) -> None:
        self.request = request
        self.credit = PushCredit(request.credit_bytes, request.credit_records)
        self.next_seq = Seq(0)
        self.next_position = Position(0)
        #: How much of that position was delivered, if only part of it.
        self.partial_position: PartialPosition | None = None
        self.is_over = False
        #: True if CAUGHT_UP has not been sent since it was behind the end.
        self.is_behind = True
        #: Set when something changes that the task may wait for: credit, outbox space, its end.
        self.changed = asyncio.Event()


class Subscriptions:
    """All subscriptions of one connection, by their ids."""

    def __init__(self, log: ServedLog, connection: Connection, begin: Begin, admission: Admission) -> None:
        self._log = log
        self._connection = connection
        self._admission = admission
        self._begin_task = begin
        self._live: dict[int, Subscription] = {}
        #: Bounds the concurrent reads: a task that waited checks again whether it may send.
        self._read_slots = asyncio.Semaphore(limits.FETCHES_AT_ONCE)

    def __len__(self) -> int:
        """The number of subscriptions."""
        return len(self._live)

    def __contains__(self, request_id: int) -> bool:
        """True if the id is that of a subscription."""
        return request_id in self._live

    def subscribe(self, request: Subscribe, request_id: int) -> None:
        """Start a subscription."""
        if request_id in self._live:
            raise ProtocolError(f"{request_id} is a subscription already", code=ErrorCode.WRONG_STATE, closes=False)
        if len(self._live) >= limits.SUBSCRIPTIONS_MAX:
            text = f"{limits.SUBSCRIPTIONS_MAX} subscriptions are the limit of one connection"
            raise ProtocolError(text, code=ErrorCode.LIMIT, closes=False)
        if not self._connection.memory.standing.try_reserve(limits.REQUEST_SIZE):
            text = "the server has no memory for another subscription: end some, or raise server.peer_memory"
            raise ProtocolError(text, code=ErrorCode.LIMIT, closes=False)
        subscription = self._live[request_id] = Subscription(request)
        self._begin_task(self._push(subscription, request_id), request_id)

    def credit(self, request: Credit, request_id: int) -> None:
        """Raise the credit of a subscription."""
        found = self._find(request_id)
        found.credit.grant(request)
        found.changed.set()

    def unsubscribe(self, request_id: int) -> None:
        """End a subscription; no more of its data follows."""
        found = self._find(request_id)
        self._end(found, request_id)
        self._log.wake_readers()
        gone = Unsubscribed(found.next_seq, found.credit.bytes_sent)
        self._connection.write(encode_control(gone, request_id=request_id))

    def has_space(self) -> None:
        """Continue to push: everything written is sent."""
        for each in self._live.values():
            each.changed.set()

    def end(self) -> None:
        """End all subscriptions: the connection closes."""
        for request_id, each in list(self._live.items()):
            self._end(each, request_id)
        self._log.wake_readers()

    def _find(self, request_id: int) -> Subscription:
        found = self._live.get(request_id)
        if found is None:
            raise ProtocolError(f"there is no subscription {request_id}", code=ErrorCode.WRONG_STATE, closes=False)
        return found

    def _end(self, subscription: Subscription, request_id: int) -> None:
        subscription.is_over = True
        subscription.changed.set()
        self._live.pop(request_id, None)

    async def _push(self, subscription: Subscription, request_id: int) -> None:
        try:
            await self._begin(subscription, request_id)
            lingers = subscription.request.linger_us > 0
            while size_max := await self._may_send(subscription):
                await self._log.delivery.turn(subscription.request.topic_id)
                changes = self._log.changes
                pushed = await self._push_response(subscription, request_id, size_max, lingers=lingers)
                lingers = subscription.request.linger_us > 0
                if pushed is _Pushed.SHORT:
                    await self._linger(subscription)
                    lingers = False
                elif pushed is _Pushed.ALL:
                    await self._follow(subscription, request_id, changes)
        finally:
            self._live.pop(request_id, None)
            self._connection.memory.standing.hold(-limits.REQUEST_SIZE)

    async def _follow(self, subscription: Subscription, request_id: int, changes: asyncio.Event) -> None:
        """Wait for new records since `changes` was taken. Those that can be sent without waiting are sent meanwhile."""
        request = subscription.request
        if request.topic_id == ALL_TOPICS or request.linger_us or self._admission.is_slowed:
            await changes.wait()
        elif not changes.is_set():
            subscription.changed.clear()
            push = partial(self._push_now, subscription, request_id)
            is_early = bool(request.flags & ReadFlags.NOT_YET_DURABLE)
            with self._log.delivery.following(request.topic_id, push, is_early=is_early):
                await subscription.changed.wait()

    def _push_now(self, subscription: Subscription, request_id: int) -> None:
        """Send what is new if that needs no waiting, otherwise let the task continue."""
        request = subscription.request
        with self._connection.probe.watching("push"):
            found = None
            if not subscription.is_over and self._can_send(subscription):
                # The task reports the error.
                with contextlib.suppress(SeawallError, OSError):
                    found = response_now(
                        *(self._log, request.topic_id, subscription.next_seq),
                        size_max=_size_max(request),
                        flags=request.flags,
                    )
            if found is None or self._send_result(subscription, found, request_id) is not _Pushed.ALL:
                subscription.changed.set()

    async def _push_response(
        self, subscription: Subscription, request_id: int, size_max: int, *, lingers: bool
    ) -> _Pushed:
        """Read the next response when there is memory for it, and send it, unless it is short and `lingers`."""
        async with self._read_slots:
            if not self._can_send(subscription):
                # Other subscriptions of this connection have used the space meanwhile.
                self._admission.has_sent(size_max, 0)
                return _Pushed.SOME
            return await self._read_and_send(subscription, request_id, size_max, lingers=lingers)

    async def _read_and_send(
        self, subscription: Subscription, request_id: int, size_max: int, *, lingers: bool
    ) -> _Pushed:
        with self._connection.memory.working.lease() as lease:
            found = await self._next(lease, subscription, size_max)
            is_short = isinstance(found, FetchResponse) and lingers and _may_grow(subscription.request, found)
            is_sent = not (is_short or subscription.is_over)
            self._admission.has_sent(size_max, 0 if isinstance(found, Gap) or not is_sent else found.size)
            if is_sent:
                return self._send_result(subscription, found, request_id)
            if isinstance(found, FetchResponse):
                found.release()
            return _Pushed.SHORT if is_short else _Pushed.SOME

    def _send_result(self, subscription: Subscription, found: FetchResponse | Gap, request_id: int) -> _Pushed:
        """Send a response, or a gap."""
        if isinstance(found, Gap):
            self._report_gap(subscription, found, request_id)
            return _Pushed.SOME
        for skip in found.skips:
            self._connection.write(encode_control(skip, request_id=request_id))
        self._advance(subscription, found)
        arrived = b""
        if found.is_last and (found.chunk_count or subscription.is_behind):
            arrived = encode_control(CaughtUp(subscription.next_seq, subscription.next_position), request_id=request_id)
        subscription.is_behind = not found.is_last
        if found.chunk_count:
            subscription.credit.spend(found.payload_length, found.record_count)
            found.send(self._connection, Command.DATA, request_id, then=arrived)
        else:
            self._connection.write(arrived)
        return _Pushed.ALL if found.is_last else _Pushed.SOME

    async def _linger(self, subscription: Subscription) -> None:
        """Wait for as long as the subscriber asks for, or until the subscription ends."""
        linger_us = min(subscription.request.linger_us, limits.PUSH_LINGER_US_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(linger_us / 1e6):
                while not subscription.is_over:
                    subscription.changed.clear()
                    await subscription.changed.wait()

    async def _begin(self, subscription: Subscription, request_id: int) -> None:
        request = subscription.request
        await self._log.catch_up(None if request.topic_id == ALL_TOPICS else request.topic_id)
        if request.topic_id == ALL_TOPICS:
            subscription.next_position = await start_position(self._log, request.by, request.start)
            begun = Subscribed(request.topic_id, Seq(0), Seq(0), Seq(0), TopicEpoch(0))
        else:
            seq = await start_seq(self._log, request.topic_id, request.by, request.start, request.consumer)
            subscription.next_seq = seq
            topic = await self._log.ask(lambda store: topic_of(store, request.topic_id))
            begun = Subscribed(request.topic_id, seq, topic.next_seq, topic.floor, topic.epoch)
        self._connection.write(encode_control(begun, request_id=request_id))

    async def _may_send(self, subscription: Subscription) -> int:
        """Wait for credit and space; returns the bytes that may be sent, 0 once the subscription is over."""
        size_max = _size_max(subscription.request)
        while not subscription.is_over:
            if self._can_send(subscription):
                return await self._admission.fair_size(size_max, lambda: subscription.is_over)
            subscription.changed.clear()
            await subscription.changed.wait()
        return 0

    def _can_send(self, subscription: Subscription) -> bool:
        """True if there is credit and space for another frame, or the subscription is over."""
        has_space = subscription.credit.is_left and self._connection.unsent_size < limits.PUSH_UNSENT_SIZE
        return has_space or subscription.is_over

    async def _next(self, lease: Lease, subscription: Subscription, size_max: int) -> FetchResponse | Gap:
        request = subscription.request
        if request.topic_id == ALL_TOPICS:
            start = (subscription.next_position, subscription.partial_position)
            return await next_position_response(
                *(self._log, lease, *start), size_max=size_max, records_max=0, flags=request.flags
            )
        return await next_response(
            *(self._log, lease, request.topic_id, subscription.next_seq),
            size_max=size_max,
            records_max=0,
            flags=request.flags,
        )

    def _report_gap(self, subscription: Subscription, gap: Gap, request_id: int) -> None:
        self._connection.write(encode_control(gap, request_id=request_id))
        if gap.unit is GapUnit.CLIENT_SEQ:
            subscription.next_position = Position(gap.position + 1)
        else:
            subscription.next_seq = Seq(gap.last + 1)

    def _advance(self, subscription: Subscription, found: FetchResponse) -> None:
        subscription.next_seq = max(subscription.next_seq, found.next_seq)
        subscription.next_position = max(subscription.next_position, found.next_position)
        subscription.partial_position = found.partial_position


def _size_max(request: Subscribe) -> int:
    """The size of a full frame."""
    return min(request.max_frame or limits.FETCH_SIZE_MAX, limits.FETCH_SIZE_MAX)


def _may_grow(request: Subscribe, found: FetchResponse) -> bool:
    """True if the response is short, nothing follows it, and the subscriber wants to wait for more."""
    return request.linger_us > 0 and found.is_last and 0 < found.size < _size_max(request)
