"""Fetch responses over all topics in their total order, for version 2 readers by position.

A position is one batch, several of a transaction, or one range of skipped client seqs. Batches that share a position
may take several responses: each one says how much of the position was delivered. Records that were evicted or lost
before a batch have no position of their own: readers by position notice the gap in the seqs of the topic.

This module must not know who reads.
"""

from __future__ import annotations

import asyncio
from functools import partial

from seawall import limits
from seawall.core.types import Position, Seq, TimestampNs, TopicId
from seawall.engine.read.position_reading import PartialPosition, PositionPlan
from seawall.engine.read.read_results import ReceivedSkip
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
    """The position that a start currently refers to."""
    if by is ReadBy.POSITION:
        return Position(start)
    if by is ReadBy.EARLIEST:
        return Position(0)
    if by is ReadBy.LATEST:
        return await log.ask(_end)
    # By time: the parser has refused starts that apply to one topic only.
    return await log.ask(partial(_position_at, TimestampNs(start)))


async def next_position_response(
    log: ServedLog,
    lease: Lease,
    from_position: Position,
    partial_position: PartialPosition | None = None,
    *,
    size_max: int,
    records_max: int,
    flags: ReadFlags,
) -> FetchResponse | Gap:
    """The next response for a reader of all topics at a position: batches, none at the end, or a SKIP.

    `partial_position` says how much of the position it has already. `lease` counts the memory; waits until there is
    space.
    """
    size_max = max(1, min(size_max, lease.fair_size(limits.FETCH_SMALL_SIZE_MAX)))
    while True:
        plan, end = await log.ask(partial(_plan, from_position, partial_position, size_max, records_max or None))
        response = FetchResponse(_ALL, Seq(0), Seq(0), from_position, Seq(0), Seq(0))
        lease.resize(0)
        try:
            await lease.acquire(plan.size)
        except asyncio.CancelledError:
            plan.release()
            raise
        stop = await log.run_read(partial(_fill, response, plan, flags, size_max))
        lease.resize(response.memory_size)
        if stop is not None and response.chunk_count:
            return response
        if isinstance(stop, ReceivedSkip):
            return await log.ask(partial(_skip_frame, stop))
        if response.chunk_count:
            if plan.partial_position is not None:
                response.next_position, response.partial_position = plan.end_position, plan.partial_position
            return response
        if plan.is_last:
            response.next_position = max(from_position, end)
            return response
        # Everything there was deleted.
        from_position, partial_position = plan.end_position, plan.partial_position


def _fill(
    response: FetchResponse, plan: PositionPlan, flags: ReadFlags, size_max: int
) -> StoredBatch | ReceivedSkip | None:
    """Add batches to a response, as many as fit decompressed; returns the item it stopped at, None at the end."""
    response.is_last = plan.is_last
    last = None
    for item in plan.stored():
        if isinstance(item, ReceivedSkip):
            response.is_last &= not response.chunk_count
            return item
        if last is not None and not item.is_plain and response.size + plain_size(item, flags) > size_max:
            response.is_last = False
            response.next_position = item.position
            if item.position == last:
                response.partial_position = PartialPosition(item.header.topic_id, item.base_seq)
            return item
        response.add(chunk_of(item, item.base_seq, flags), 1, item.record_count)
        last = item.position
        response.next_position = Position(last + 1)
    return None


def _plan(
    position: Position, partial_position: PartialPosition | None, size_max: int, records_max: int | None, store: Store
) -> tuple[PositionPlan, Position]:
    plan = store.queries.plan_positions(
        position, size_max=size_max, records_max=records_max, partial_position=partial_position, cuts_positions=True
    )
    return plan, _end(store)


def _skip_frame(skipped: ReceivedSkip, store: Store) -> Gap:
    is_there = skipped.topic in store.catalog.names()
    topic_id = store.catalog.named(skipped.topic).topic_id if is_there else TopicId(0)
    skip = Skip(skipped.position, skipped.client_id, skipped.first_client_seq, skipped.skip_count)
    return skip_frame(topic_id, skip)


def _position_at(timestamp_ns: TimestampNs, store: Store) -> Position:
    """The position of the first batch of any topic that is not older; the end if all are older."""
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
