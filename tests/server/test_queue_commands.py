"""Queue commands over the network: claims that wait, leases that end with a connection, refusals, and the end."""

import asyncio
import time
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from lwp2_peer import SMALL, world

from seawall.api.publishable import Message, encode
from seawall.api.queues.jobs import JobKeys
from seawall.core.types import TopicId
from seawall.limits import (
    BLOCK_SIZE_MAX,
    BOUND_LEASES_MAX,
    JOBS_MAX,
    KIB,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    RECORD_HEADER_SIZE,
)
from seawall.server.connection.access import Access, Right
from seawall.server.connection.budget import PeerMemory
from seawall.server.lwp2.queue_requests import BoundLeases
from seawall.wire.format.codes import AckStatus, ClaimFlags, Command, ErrorCode, HelloFlags
from seawall.wire.format.records import Record, RecordType, encode_block, iter_records
from seawall.wire.jobs.options import JobOptions
from seawall.wire.jobs.rows import JOB_ROW
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.jobs import (
    JobAck,
    JobClaim,
    JobExtend,
    JobNack,
    JobOutcomeReply,
    JobPeek,
    JobPushed,
    JobPushUnique,
    Jobs,
    QueueCountsReply,
    QueueCountsRequest,
    QueuePurge,
    QueueRedrive,
)
from seawall.wire.lwp2.session import Error, Goodbye
from seawall.wire.lwp2.topics import RecordsDeleted

QUEUE = TopicId(1)
WAIT_MS = 30_000


def queue_world(path, **named):
    return world(path, topics=("mails",), type="queue", **named)


def claim(number=1, *, node="worker", lease_ms=0, wait_ms=0, flags=ClaimFlags.NONE):
    return JobClaim(QUEUE, node, number, lease_ms, wait_ms, flags)


async def ask(peer, payload, kind):
    peer.ask(payload)
    return await peer.answer(kind)


async def claimed(peer, *arguments, **named):
    return (await ask(peer, claim(*arguments, **named), Jobs)).claimed


def values(jobs):
    return [record.value for record in iter_records(jobs.block)]


def keys(jobs):
    return tuple(jobs.rows["seq"].tolist()), tuple(jobs.rows["lease_id"].tolist())


async def until(condition):
    """Wait for something that a server does by itself."""
    deadline = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


async def leased(log):
    return (await log.queues.counts("mails")).leased


async def wait_for_waiting(made, number):
    """Wait until claims of all connections wait for jobs."""

    async def do_wait():
        sessions = [connection._session for connection in made.listener.connections]
        return sum(len(session._queues._waiting) for session in sessions if session is not None) == number

    await until(do_wait)


def test_jobs_are_claimed_extended_returned_and_finished(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            peer = await made.peer()
            await peer.publish(1, b"one", b"two", b"three")
            jobs = await claimed(peer, 2)
            assert values(jobs) == [b"one", b"two"]
            assert (jobs.rows["seq"].tolist(), jobs.rows["deliveries"].tolist()) == ([1, 2], [1, 1])
            assert (jobs.ready, jobs.lease_ms) == (1, 30_000)
            extended = (await ask(peer, JobExtend(QUEUE, "worker", *keys(jobs), 60_000), JobOutcomeReply)).outcome
            assert (extended.changed, extended.leased) == (2, 2)
            assert extended.deadline_ms > jobs.rows["deadline_ms"].max()
            (first, second), (lease, other) = keys(jobs)
            acked = await ask(peer, JobAck(QUEUE, "worker", (first,), (lease,)), JobOutcomeReply)
            assert acked.outcome == (1, (), 1, 1, 0)
            nacked = await ask(peer, JobNack(QUEUE, "worker", (first, second), (lease, other)), JobOutcomeReply)
            assert nacked.outcome == (1, (first,), 2, 0, 0)
            again = await claimed(peer, 9)
            assert (values(again), again.rows["deliveries"].tolist(), again.ready) == ([b"two", b"three"], [2, 1], 0)
            counts = (await ask(peer, QueueCountsRequest(QUEUE), QueueCountsReply)).counts
            assert counts[:4] == (0, 2, 0, 0)
            assert counts.oldest_ms is not None
            peer.close()

    on_loop(work())


def test_a_queue_is_inspected_purged_and_redriven(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            await made.log.create_topic("dead", type="queue")
            await made.log.configure_topic("mails", max_deliveries=1, dead_letter="dead")
            peer = await made.peer()
            await peer.publish(1, b"one", b"two", b"three")
            jobs = await claimed(peer)
            await ask(peer, JobNack(QUEUE, "worker", *keys(jobs)), JobOutcomeReply)
            assert values(await claimed(peer)) == [b"two"], "the first job is delivered no more"
            assert (await ask(peer, QueueCountsRequest(QUEUE), QueueCountsReply)).counts.dead_lettered == 1
            peeked = (await ask(peer, JobPeek(QUEUE, 9), Jobs)).claimed
            assert (values(peeked), peeked.rows["lease_id"].tolist()) == ([b"three"], [0])
            dead = TopicId((await made.log.describe("dead")).topic_id)
            assert (await ask(peer, QueueRedrive(dead, 0), RecordsDeleted)).count == 1
            assert (await ask(peer, QueuePurge(QUEUE), RecordsDeleted)).count == 2, "not the leased one"
            assert (await ask(peer, QueueCountsRequest(QUEUE), QueueCountsReply)).counts[:3] == (0, 1, 0)
            peer.close()

    on_loop(work())


def unique(value, name=b"key", **named):
    (block,) = encode(Message(value, headers=[(each.decode(), text) for each, text in options(name)], **named))
    return JobPushUnique(QUEUE, block.block)


def options(key):
    return JobOptions(unique=key).headers()


def test_a_unique_job_is_pushed_once_with_all_its_fields(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            peer = await made.peer()
            fields = {"key": b"k", "timestamp_ns": 5, "tag": "tag", "node": "node", "meta": b"{}"}
            assert await ask(peer, unique(b"one", **fields), JobPushed) == JobPushed(1, True)
            assert await ask(peer, unique(b"two"), JobPushed) == JobPushed(1, False)
            assert await ask(peer, unique(b"two", b"other"), JobPushed) == JobPushed(2, True)
            (stored, _) = [each for item in await made.log.read("mails") for each in item]
            assert (stored.value, stored.key, stored.client_timestamp_ns) == (b"one", b"k", 5)
            assert (stored.tag, stored.node, stored.meta) == (b"tag", b"node", b"{}")
            assert stored.headers == tuple(options(b"key"))
            jobs = await claimed(peer)
            await ask(peer, JobAck(QUEUE, "worker", *keys(jobs)), JobOutcomeReply)
            assert await ask(peer, unique(b"three"), JobPushed) == JobPushed(3, True), "the first one is done"
            peer.close()

    on_loop(work())


PLAIN = encode_block([Record(RecordType.RAW, b"value")])
BAD_NAME = encode(Message(b"x", headers=[("a", b""), ("seawall-unique", b"k")]))[0].block.replace(b"\1\0a", b"\1\0\xff")

REFUSED = {
    "claim: another topic": (JobClaim(TopicId(9), "worker", 1), ErrorCode.TOPIC_NOT_FOUND),
    "claim: not a queue": (JobClaim(TopicId(2), "worker", 1), ErrorCode.WRONG_STATE),
    "claim: not a queue, and waits": (JobClaim(TopicId(2), "worker", 1, wait_ms=WAIT_MS), ErrorCode.WRONG_STATE),
    "ack: another topic": (JobAck(TopicId(9), "worker", (1,), (1,)), ErrorCode.TOPIC_NOT_FOUND),
    "ack: not a queue": (JobAck(TopicId(2), "worker", (1,), (1,)), ErrorCode.WRONG_STATE),
    "nack: not a queue": (JobNack(TopicId(2), "worker", (1,), (1,)), ErrorCode.WRONG_STATE),
    "extend: not a queue": (JobExtend(TopicId(2), "worker", (1,), (1,)), ErrorCode.WRONG_STATE),
    "peek: not a queue": (JobPeek(TopicId(2), 1), ErrorCode.WRONG_STATE),
    "counts: not a queue": (QueueCountsRequest(TopicId(2)), ErrorCode.WRONG_STATE),
    "purge: not a queue": (QueuePurge(TopicId(2)), ErrorCode.WRONG_STATE),
    "push: not a queue": (JobPushUnique(TopicId(2), unique(b"x").block), ErrorCode.WRONG_STATE),
    "push: no unique key": (JobPushUnique(QUEUE, PLAIN), ErrorCode.INVALID_PAYLOAD),
    "push: two records": (JobPushUnique(QUEUE, bytes(unique(b"x").block) * 2), ErrorCode.INVALID_PAYLOAD),
    "push: half a record": (JobPushUnique(QUEUE, bytes(unique(b"x").block)[:-1]), ErrorCode.INVALID_PAYLOAD),
    "push: a type of servers": (JobPushUnique(QUEUE, bytes(5)), ErrorCode.INVALID_PAYLOAD),
    "push: a header name is no text": (JobPushUnique(QUEUE, BAD_NAME), ErrorCode.INVALID_PAYLOAD),
    "count 0": (JobClaim(QUEUE, "worker", 0), ErrorCode.INVALID_PAYLOAD),
    "falling seqs": (JobAck(QUEUE, "worker", (2, 1), (1, 1)), ErrorCode.INVALID_PAYLOAD),
    "a large lease id": (JobAck(QUEUE, "worker", (1,), (1 << 63,)), ErrorCode.INVALID_PAYLOAD),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_refused_and_closes_nothing(on_loop, tmp_path, name):
    payload, code = REFUSED[name]

    async def work():
        async with queue_world(tmp_path) as made:
            await made.log.create_topic("events")
            peer = await made.peer()
            error = await ask(peer, payload, Error)
            assert (error.code, error.closes) == (code, False)
            assert (await peer.publish(1, b"continues"))["status"] == AckStatus.OK
            assert values(await claimed(peer, 9)) == [b"continues"], "nothing else is stored"
            peer.close()

    on_loop(work())


def test_numbers_above_their_limits_are_clamped(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            peer = await made.peer()
            for _ in range(2):
                await peer.publish(1, *(b"x" for _ in range(JOBS_MAX)))
            most = 2**32 - 1
            jobs = await claimed(peer, most, lease_ms=most, wait_ms=most)
            assert (jobs.rows.size, jobs.ready, jobs.lease_ms) == (JOBS_MAX, JOBS_MAX, LEASE_MS_MAX)
            seqs, leases = keys(jobs)
            shortest = await ask(peer, JobExtend(QUEUE, "worker", seqs[:1], leases[:1], 1), JobOutcomeReply)
            longest = await ask(peer, JobExtend(QUEUE, "worker", seqs[1:2], leases[1:2], most), JobOutcomeReply)
            span_ms = longest.outcome.deadline_ms - shortest.outcome.deadline_ms
            assert span_ms >= LEASE_MS_MAX - LEASE_MS_MIN
            await ask(peer, JobNack(QUEUE, "worker", seqs[1:2], leases[1:2], most), JobOutcomeReply)
            assert (await ask(peer, QueueCountsRequest(QUEUE), QueueCountsReply)).counts.delayed == 1
            peeked = (await ask(peer, JobPeek(QUEUE, most), Jobs)).claimed
            assert peeked.rows.size == JOBS_MAX
            peer.close()

    on_loop(work())


def test_the_largest_job_is_claimed(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path, store=replace(SMALL, wal_file_size=32768 * KIB)) as made:
            peer = await made.peer()
            largest = bytes(BLOCK_SIZE_MAX - RECORD_HEADER_SIZE)
            assert (await peer.publish(1, largest))["status"] == AckStatus.OK
            assert values(await claimed(peer)) == [largest]
            peer.close()

    on_loop(work())


def test_a_write_only_token_may_decide_about_jobs_and_not_see_them(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path, access=Access({"all": Right.ALL, "writer": Right.WRITE_ONLY})) as made:
            writer = await made.peer(token="writer")
            worker = await made.peer(8, token="all")
            assert await ask(writer, unique(b"one"), JobPushed) == JobPushed(1, True)
            for payload in (claim(), JobPeek(QUEUE, 1), QueueCountsRequest(QUEUE)):
                assert (await ask(writer, payload, Error)).code == ErrorCode.ACCESS_DENIED
            jobs = await claimed(worker)
            for change in (JobExtend, JobNack, JobAck):
                outcome = await ask(writer, change(QUEUE, "worker", *keys(jobs)), JobOutcomeReply)
                assert outcome.outcome.changed == (change is not JobAck)
            for payload in (QueuePurge(QUEUE), QueueRedrive(QUEUE, 0)):
                await ask(writer, payload, RecordsDeleted)
            writer.close()
            worker.close()

    on_loop(work())


# --- waiting claims ------------------------------------------------------------------------------------------------


def test_a_waiting_claim_gets_the_next_job(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            worker, producer = await made.peer(flags=HelloFlags.NONE), await made.peer()
            worker.ask(claim(5, wait_ms=WAIT_MS), 1)
            await wait_for_waiting(made, 1)
            worker.ask(QueueCountsRequest(QUEUE), 2)
            frame = await worker.frame()
            assert (frame.header.id, frame.header.command) == (2, Command.QUEUE_COUNTS_REPLY), "it delays no other"
            await producer.publish(1, b"one", b"two")
            assert values((await worker.answer(Jobs)).claimed) == [b"one", b"two"]
            assert values(await claimed(worker, wait_ms=1)) == [], "the wait ends"
            worker.close()
            producer.close()

    on_loop(work())


def test_a_waiting_claim_gets_a_returned_job(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            first, second = await made.peer(7), await made.peer(8)
            await first.publish(1, b"one")
            jobs = await claimed(first, node="first")
            second.ask(claim(node="second", wait_ms=WAIT_MS))
            await wait_for_waiting(made, 1)
            await ask(first, JobNack(QUEUE, "first", *keys(jobs)), JobOutcomeReply)
            again = (await second.answer(Jobs)).claimed
            assert (values(again), again.rows["deliveries"].tolist()) == ([b"one"], [2])
            first.close()
            second.close()

    on_loop(work())


def test_the_waiting_claim_of_a_lost_connection_leases_nothing(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            for number in count(1):
                worker, producer = await made.peer(flags=HelloFlags.NONE), await made.peer()
                worker.ask(claim(wait_ms=WAIT_MS))
                await wait_for_waiting(made, 1)
                # A job and the end of the connection at the same time.
                producer.send(producer.batch(1, b"job"))
                worker.writer.transport.abort()
                await producer.acks(1)
                await wait_for_waiting(made, 0)
                jobs = await claimed(producer, 9, node="other")
                assert jobs.rows.size, "the job is ready"
                await ask(producer, JobAck(QUEUE, "other", *keys(jobs)), JobOutcomeReply)
                assert await leased(made.log) == 0
                producer.close()
                if number == 20:
                    break

    on_loop(work())


@pytest.mark.parametrize("end", ["eof", "goodbye", "drain"])
def test_a_waiting_claim_is_answered_without_jobs_when_the_connection_closes(on_loop, tmp_path, end):
    async def work():
        async with queue_world(tmp_path) as made:
            worker, producer = await made.peer(flags=HelloFlags.NONE), await made.peer()
            worker.ask(claim(3, lease_ms=1_234, wait_ms=WAIT_MS))
            worker.ask(claim(3, wait_ms=WAIT_MS))
            await wait_for_waiting(made, 2)
            if end == "drain":
                for connection in list(made.listener.connections):
                    connection.drain(1_000)
                await worker.answer(Goodbye)
            elif end == "goodbye":
                worker.send(encode_control(Goodbye(0, 0)))
            else:
                worker.writer.write_eof()
            answers = [(await worker.answer(Jobs)).claimed for _ in range(2)]
            assert [each.rows.size for each in answers] == [0, 0]
            assert sorted(each.lease_ms for each in answers) == [1_234, 30_000]
            if end == "goodbye":
                await worker.answer(Goodbye)
            await worker.ended()
            if end != "drain":
                await producer.publish(1, b"job")
                assert values(await claimed(producer)) == [b"job"]
            assert await leased(made.log) == (end != "drain")
            producer.close()

    on_loop(work())


# --- leases that end with a connection -----------------------------------------------------------------------------


def test_bound_leases_end_with_their_connection_and_others_do_not(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            producer = await made.peer()
            await producer.publish(1, b"bound", b"free", b"done", b"later")
            worker = await made.peer(flags=HelloFlags.NONE)
            bound = await claimed(worker, flags=ClaimFlags.BOUND)
            free = await claimed(worker)
            done = await claimed(worker, flags=ClaimFlags.BOUND)
            assert [values(each) for each in (bound, free, done)] == [[b"bound"], [b"free"], [b"done"]]
            await ask(worker, JobAck(QUEUE, "worker", *keys(done)), JobOutcomeReply)
            worker.writer.transport.abort()

            async def is_released():
                return await leased(made.log) == 1

            await until(is_released)
            jobs = await claimed(producer, 9, node="other")
            assert (values(jobs), jobs.rows["deliveries"].tolist()) == ([b"bound", b"later"], [2, 1])
            producer.close()

    on_loop(work())


def test_a_lease_that_another_worker_got_since_is_not_released(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            producer = await made.peer()
            await producer.publish(1, b"job")
            worker = await made.peer(flags=HelloFlags.NONE)
            jobs = await claimed(worker, flags=ClaimFlags.BOUND)
            await ask(worker, JobNack(QUEUE, "worker", *keys(jobs)), JobOutcomeReply)
            again = await claimed(producer, node="other")
            worker.close()
            while len(made.listener.connections) > 1:
                await asyncio.sleep(0)
            await made.context.queues.settle()
            acked = await ask(producer, JobAck(QUEUE, "other", *keys(again)), JobOutcomeReply)
            assert acked.outcome.changed == 1
            producer.close()

    on_loop(work())


def test_the_leases_of_a_deleted_topic_are_forgotten(on_loop, tmp_path):
    async def work():
        async with queue_world(tmp_path) as made:
            producer = await made.peer()
            await producer.publish(1, b"job")
            worker = await made.peer(flags=HelloFlags.NONE)
            await claimed(worker, flags=ClaimFlags.BOUND)
            await made.log.delete_topic("mails")
            await made.log.create_topic("mails", type="queue")
            worker.close()
            while len(made.listener.connections) > 1:
                await asyncio.sleep(0)
            await made.context.queues.settle()
            assert (await made.log.queues.counts("mails"))[:3] == (0, 0, 0)
            producer.close()

    on_loop(work())


def rows(*pairs):
    found = np.zeros(len(pairs), JOB_ROW)
    found["seq"], found["lease_id"] = zip(*pairs, strict=True)
    return found


def test_bound_leases_are_the_latest_of_each_job_by_topic(on_loop):
    async def work():
        memory = PeerMemory().open()
        held = BoundLeases(memory.standing)
        held.add(TopicId(1), rows((5, 10), (3, 11)))
        held.add(TopicId(2), rows((5, 12)))
        held.add(TopicId(1), rows((5, 13)))
        assert memory.standing.used == 4 * 24
        assert held.take() == {1: JobKeys([3, 5], [11, 13]), 2: JobKeys([5], [12])}
        assert (held.take(), memory.standing.used) == ({}, 0)

    on_loop(work())


def test_the_number_of_bound_leases_is_limited(on_loop):
    async def work():
        memory = PeerMemory().open()
        held = BoundLeases(memory.standing)
        for first in range(0, 2 * BOUND_LEASES_MAX, JOBS_MAX):
            held.add(TopicId(1), rows(*((seq + 1, seq) for seq in range(first, first + JOBS_MAX))))
        assert memory.standing.used == BOUND_LEASES_MAX * 24
        seqs, _ = held.take()[TopicId(1)]
        assert len(seqs) == BOUND_LEASES_MAX
        assert seqs[-1] == 9 * JOBS_MAX

    on_loop(work())
