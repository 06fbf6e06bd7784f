"""Portions of everything that is ordered, over all topics, for readers of version 2 by position.

A position is one batch, several of a transaction, or one place where client seqs were given up. What shares a position
may take several portions: each says how far it was told. What was evicted or lost before a batch has no
position of its own: readers by position are told of it by the gap in the seqs of its topic.

This module must not know who reads.
"""

from __future__ import annotations

import asyncio
from functools import partial

from seawall import limits
from seawall.core.types import Position, Seq, TimestampNs, TopicId
from seawall.engine.api.read_results import ReceivedSkip
from seawall.engine.read.position_reading import PositionPlan, Told
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.server.connection.budget import Lease
from seawall.server.read.fetch_responses import FetchResponse, chunk_of, plain_size, skip_frame
from seawall.topics.skips import Skip
from seawall.wire.format.codes import ALL_TOPICS, ReadBy, ReadFlags
from seawall.wire.lwp2.reading import Gap

_ALL: TopicId = TopicId(ALL_TOPICS)


async def start_position(log: ServedLog, by: ReadBy, start: int) -> Position:
    """The position that a start means now."""
    if by is ReadBy.POSITION:
        return Position(start)
    if by is ReadBy.EARLIEST:
        return Position(0)
    if by is ReadBy.LATEST:
        return await log.ask(_end)
    # By time: what only one topic has was refused when the request was parsed.
    return await log.ask(partial(_position_at, TimestampNs(start)))


async def next_position_response(
    log: ServedLog,
    lease: Lease,
    from_position: Position,
    told: Told | None = None,
    *,
    size_max: int,
    records_max: int,
    flags: ReadFlags,
) -> FetchResponse | Gap:
    """What a reader of all topics at a position gets next: batches, none if it is at the end, or a SKIP.

    `told` says what of the position it has already. What it takes of memory is counted by `lease`; where there is no
    room for it, this waits.
    """
    size_max = max(1, min(size_max, lease.portion(limits.FETCH_SMALL_SIZE_MAX)))
    while True:
        plan, end = await log.ask(partial(_plan, from_position, told, size_max, records_max or None))
        portion = FetchResponse(_ALL, Seq(0), Seq(0), from_position, Seq(0), Seq(0))
        lease.resize(0)
        try:
            await lease.acquire(plan.size)
        except asyncio.CancelledError:
            plan.release()
            raise
        stop = await log.run_read(partial(_fill, portion, plan, flags, size_max))
        lease.resize(portion.memory_size)
        if stop is not None and portion.chunk_count:
            return portion
        if isinstance(stop, ReceivedSkip):
            return await log.ask(partial(_skip_frame, stop))
        if portion.chunk_count:
            if plan.told is not None:
                portion.next_position, portion.told = plan.end_position, plan.told
            return portion
        if plan.is_last:
            portion.next_position = max(from_position, end)
            return portion
        # All that lay there was deleted.
        from_position, told = plan.end_position, plan.told


def _fill(
    portion: FetchResponse, plan: PositionPlan, flags: ReadFlags, size_max: int
) -> StoredBatch | ReceivedSkip | None:
    """Add batches to a portion, as many as have room when they are plain; what it stopped at, None at the end."""
    portion.is_last = plan.is_last
    last = None
    for item in plan.stored():
        if isinstance(item, ReceivedSkip):
            portion.is_last &= not portion.chunk_count
            return item
        if last is not None and not item.is_plain and portion.size + plain_size(item, flags) > size_max:
            portion.is_last = False
            portion.next_position = item.position
            if item.position == last:
                portion.told = Told(item.header.topic_id, item.base_seq)
            return item
        portion.add(chunk_of(item, item.base_seq, flags), 1, item.record_count)
        last = item.position
        portion.next_position = Position(last + 1)
    return None


def _plan(
    position: Position, told: Told | None, size_max: int, records_max: int | None, store: Store
) -> tuple[PositionPlan, Position]:
    plan = store.queries.plan_positions(
        position, size_max=size_max, records_max=records_max, told=told, cuts_positions=True
    )
    return plan, _end(store)


def _skip_frame(skipped: ReceivedSkip, store: Store) -> Gap:
    is_there = skipped.topic in store.catalog.names()
    topic_id = store.catalog.named(skipped.topic).topic_id if is_there else TopicId(0)
    skip = Skip(skipped.position, skipped.client_id, skipped.first_client_seq, skipped.skip_count)
    return skip_frame(topic_id, skip)


def _position_at(timestamp_ns: TimestampNs, store: Store) -> Position:
    """Where the first batch of any topic lies that is not older; the end if all are."""
    found = _end(store)
    for topic in store.catalog.shown():
        segments, seq = store.queries.topic_log(topic.topic_id), store.queries.seq_at(topic.name, timestamp_ns)
        if segments is not None and seq < topic.next_seq:
            planned = segments.plan(seq, topic.next_seq, 1)
            found = min([found, *(Position(int(run.entries["position"][0])) for run in planned.runs)])
            planned.release()
    return found


def _end(store: Store) -> Position:
    return store.catalog.next_position
