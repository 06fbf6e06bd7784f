"""A client process: `python -m seawall.bench.peers.client_process SYSTEM ROLE OPTIONS`.

`OPTIONS` is a JSON object with the fields of `Options`. A role prints lines of JSON: first `"ready"` if somebody waits
for that, in the end its figures. The process ends when its standard input does, that is with its parent.

    bulk        publish in bulk until the deadline, by lists or by calls        records, seconds
    waiting     publish one record at a time                                    microseconds p50, p99; records, seconds
    threads, tasks, processes   the same by `count` of them at once             records, seconds
    write       publish stamped records at a pace
    follow      follow the topic; ready when subscribed                         seconds p50, p99
    consume     read `count` records (repeatedly), one by one or as Arrow       bytes, seconds
    fill        publish `count` records                                         records
    load        publish in bulk for ever; ready after `count` records
    first_ack   ready; wait for the server, create the topic, publish a record  time of the ack on the monotonic clock
    first_read  ready; wait for the server, read a record                       time of the record
    create, delete              the topic

The clients of job queues have the last two, and roles of their own:

    enqueue     enqueue one job at a time until the deadline, at least `count`  jobs, seconds
    pace        enqueue `count` jobs at a pace
    call        enqueue a job and wait for its result, one at a time            seconds p50, p99
    work        execute jobs until SIGTERM; ready when they are claimed
    left        count the jobs that are not finished                            jobs
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from time import monotonic_ns
from typing import BinaryIO, Final, cast

from seawall.bench.peers.clients.base import Client, TopicClient, Until, wait_for_port
from seawall.bench.peers.jobs import executions
from seawall.bench.peers.jobs.base import JobClient
from seawall.bench.subjects.second_process import exit_with_parent

NANOSECONDS: Final = 1_000_000_000

#: Module and class of the client of each system.
CLIENTS: Final = {
    "seawall": ("seawall.bench.peers.clients.seawall", "SeawallClient"),
    "kafka": ("seawall.bench.peers.clients.kafka", "KafkaClient"),
    "redis": ("seawall.bench.peers.clients.redis", "RedisClient"),
    "nats": ("seawall.bench.peers.clients.nats", "NatsClient"),
    "seawall-queue": ("seawall.bench.peers.jobs.seawall_queue", "SeawallQueueClient"),
    "redis-groups": ("seawall.bench.peers.jobs.redis_queues", "RedisGroupsClient"),
    "redis-lists": ("seawall.bench.peers.jobs.redis_queues", "RedisListsClient"),
    "seawall-tasks": ("seawall.bench.peers.jobs.seawall_tasks", "SeawallTasksClient"),
    "rq": ("seawall.bench.peers.jobs.rq", "RqClient"),
    "rq-simple": ("seawall.bench.peers.jobs.rq", "RqSimpleClient"),
    "dramatiq": ("seawall.bench.peers.jobs.dramatiq", "DramatiqClient"),
    "celery": ("seawall.bench.peers.jobs.celery", "CeleryClient"),
    "celery-threads": ("seawall.bench.peers.jobs.celery", "CeleryThreadsClient"),
}
#: The way of jobs whose results are kept.
RESULTS: Final = "results"
#: Bytes of records in one list.
_LIST_SIZE: Final = 2 << 20
_WARM_UP_SECONDS: Final = 0.3
_WARM_UP_RECORDS: Final = 1_000
_SERVER_SECONDS_MAX: Final = 300.0

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Options:
    """What a role works with; each uses some of it."""

    port: int
    topic: str
    synced: bool = False
    size: int = 1024
    seconds: float = 1.0
    count: int = 0
    #: Variant of the role: `lists` or `calls`; `records` or `arrow`; `results` for jobs whose results are kept.
    way: str = ""
    interval_ns: int = 1_000_000
    #: Records of a paced writer that the reader does not count.
    warm_up: int = 0
    #: The file to which a worker appends what it executes.
    executions: str = ""

    def records(self) -> list[bytes]:
        """Random records of the size, as many as one list has."""
        return [os.urandom(self.size) for _ in range(max(1, _LIST_SIZE // self.size))]

    def deadline_ns(self) -> int:
        """Now and the seconds of the run."""
        return monotonic_ns() + int(self.seconds * NANOSECONDS)


def bulk(client: Client, options: Options) -> Figures:
    """Publish in bulk after a short warm-up."""
    publish = client.publish_lists if options.way == "lists" else client.publish_calls
    records = options.records()
    publish(records, Until(monotonic_ns() + int(min(_WARM_UP_SECONDS, options.seconds) * NANOSECONDS)))
    started = monotonic_ns()
    published = publish(records, Until(options.deadline_ns(), options.count or None))
    return {"records": published, "seconds": (monotonic_ns() - started) / NANOSECONDS}


def waiting(client: Client, options: Options) -> Figures:
    """One waiting publisher."""
    record = os.urandom(options.size)
    client.publish_waiting(record, monotonic_ns() + int(min(_WARM_UP_SECONDS, options.seconds) * NANOSECONDS))
    return percentiles(client.publish_waiting(record, options.deadline_ns()))


def threads(client: Client, options: Options) -> Figures:
    """Waiting threads of one client."""
    record = os.urandom(options.size)
    client.publish_threads(record, options.count, monotonic_ns())
    started = monotonic_ns()
    published = client.publish_threads(record, options.count, options.deadline_ns())
    return {"records": published, "seconds": (monotonic_ns() - started) / NANOSECONDS}


def tasks(client: Client, options: Options) -> Figures:
    """Waiting asyncio tasks of one client."""
    from seawall.io.network.loops import loop_factory

    _, make_loop = loop_factory()
    record = os.urandom(options.size)

    async def work() -> Figures:
        publish = await client.publisher_of_tasks()
        await client.publish_tasks(publish, record, options.count, monotonic_ns())
        started = monotonic_ns()
        published = await client.publish_tasks(publish, record, options.count, options.deadline_ns())
        return {"records": published, "seconds": (monotonic_ns() - started) / NANOSECONDS}

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(work())


def write(client: Client, options: Options) -> Figures:
    """A paced writer."""
    client.write_paced(options.size, options.count, options.interval_ns)
    return {}


def follow(client: Client, options: Options) -> Figures:
    """A follower that measures the age of each record."""
    ages = client.follow(options.count, lambda: report("ready"))
    return percentiles(ages[options.warm_up :])


def consume(client: Client, options: Options) -> Figures:
    """Read the topic from its start, as often as the time allows."""
    read: Callable[[int], int] = client.consume
    if options.way == "arrow":
        read = client.consume_arrow
    # Loads what the first read needs, here and in the server.
    read(min(options.count, _WARM_UP_RECORDS))
    started = monotonic_ns()
    deadline_ns = options.deadline_ns()
    size = 0
    while not size or monotonic_ns() < deadline_ns:
        found = read(options.count)
        if found != options.count * options.size:
            raise ConnectionError(f"read {found} bytes of {options.count} records of {options.size}")
        size += found
    return {"bytes": size, "seconds": (monotonic_ns() - started) / NANOSECONDS}


def fill(client: Client, options: Options) -> Figures:
    """Publish at least `count` records."""
    return {"records": client.publish_lists(options.records(), Until(records=options.count))}


def load(client: Client, options: Options) -> Figures:
    """Publish for ever."""
    fill(client, options)
    report("ready")
    client.publish_lists(options.records(), Until(records=sys.maxsize))
    return {}


def first_ack(client: Client, options: Options) -> Figures:
    """Publish a record as soon as a server runs."""
    record = os.urandom(options.size)
    report("ready")
    wait_for_port(options.port, _SERVER_SECONDS_MAX)
    client.create_topic()
    client.publish(record)
    return {"time_ns": monotonic_ns()}


def first_read(client: Client, options: Options) -> Figures:
    """Read a record as soon as a server runs."""
    report("ready")
    wait_for_port(options.port, _SERVER_SECONDS_MAX)
    client.wait_until_ready()
    client.consume(1)
    return {"time_ns": monotonic_ns()}


def create(client: TopicClient, _options: Options) -> Figures:
    """Create the topic."""
    client.create_topic()
    return {}


def delete(client: TopicClient, _options: Options) -> Figures:
    """Delete the topic."""
    client.delete_topic()
    return {}


def enqueue(client: JobClient, options: Options) -> Figures:
    """One waiting producer; `jobs` are all that it enqueued, `per_second` their rate after a short warm-up."""
    warm_up = client.enqueue_until(monotonic_ns() + int(min(_WARM_UP_SECONDS, options.seconds) * NANOSECONDS), 1)
    waited = client.enqueue_until(options.deadline_ns(), options.count)
    return {"jobs": len(warm_up) + len(waited), "per_second": len(waited) * NANOSECONDS / sum(waited)}


def pace(client: JobClient, options: Options) -> Figures:
    """A paced producer."""
    client.enqueue_paced(options.count, options.interval_ns)
    return {}


def call(client: JobClient, options: Options) -> Figures:
    """One producer that waits for each result."""
    client.call_until(monotonic_ns(), options.warm_up)
    return percentiles(client.call_until(options.deadline_ns(), options.count))


def work(client: JobClient, options: Options) -> Figures:
    """A worker."""
    # Libraries write messages to descriptor 1; they belong to the errors.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    executions.open_file(options.executions)
    client.work(lambda: report("ready"))
    return {}


def left(client: JobClient, _options: Options) -> Figures:
    """The jobs that are not finished."""
    return {"jobs": client.left()}


def processes(make: Callable[[], Client], options: Options) -> Figures:
    """Waiting processes with a client each, forked from this one once it has loaded the client."""
    ready, go, done = os.pipe(), os.pipe(), os.pipe()
    children = [_fork(make, options, ready, go, done) for _ in range(options.count)]
    threading.Thread(target=exit_with_parent, args=(_parent_pipe(), _kill_session), daemon=True).start()
    for descriptor in (ready[1], go[0], done[1]):
        os.close(descriptor)
    with open(ready[0], "rb") as pipe:
        started_count = len(pipe.read())
    if started_count != options.count:
        raise ChildProcessError(f"{started_count} of {options.count} publishing processes started")
    started = monotonic_ns()
    os.close(go[1])
    with open(done[0], "rb") as results:
        published = [int(line) for line in results.read().splitlines()]
    seconds = (monotonic_ns() - started) / NANOSECONDS
    for each in children:
        os.waitpid(each, 0)
    if len(published) != options.count:
        raise ChildProcessError(f"{len(published)} of {options.count} publishing processes finished")
    return {"records": sum(published), "seconds": seconds}


def _fork(
    make: Callable[[], Client], options: Options, ready: tuple[int, int], go: tuple[int, int], done: tuple[int, int]
) -> int:
    """Fork a publishing process: it warms up, reports that, waits for the end of `go`, and publishes."""
    process_id = os.fork()
    if process_id:
        return process_id
    code = 1
    try:
        os.close(go[1])
        client = make()
        record = os.urandom(options.size)
        client.publish_waiting(record, monotonic_ns())
        os.write(ready[1], b".")
        os.close(ready[1])
        os.read(go[0], 1)
        published = len(client.publish_waiting(record, options.deadline_ns()))
        os.write(done[1], b"%d\n" % published)
        code = 0
    finally:
        os._exit(code)


def _parent_pipe() -> BinaryIO:
    """The standard input without a buffer, whose lock a thread that reads would hold when the interpreter exits."""
    return cast(BinaryIO, open(0, "rb", buffering=0, closefd=False))


def _kill_session(_code: int) -> None:
    os.killpg(0, signal.SIGKILL)


def percentiles(latencies_ns: Sequence[int]) -> Figures:
    """Median and 99th percentile in seconds, and the rate of records that waited for each other."""
    ordered = sorted(latencies_ns)
    last = len(ordered) - 1
    return {
        "p50": ordered[last // 2] / NANOSECONDS,
        "p99": ordered[round(last * 0.99)] / NANOSECONDS,
        "records": len(ordered),
        "seconds": sum(ordered) / NANOSECONDS,
    }


def report(value: object) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


ROLES: Final[dict[str, Callable[[Client, Options], Figures]]] = {
    each.__name__: each
    for each in (
        bulk,
        waiting,
        threads,
        tasks,
        write,
        follow,
        consume,
        fill,
        load,
        first_ack,
        first_read,
        create,
        delete,
    )
}
JOB_ROLES: Final[dict[str, Callable[[JobClient, Options], Figures]]] = {
    each.__name__: each for each in (enqueue, pace, call, work, left, create, delete)
}


def main(arguments: Sequence[str]) -> None:
    """Run one role."""
    system, role, text = arguments
    options = Options(**json.loads(text))
    module, name = CLIENTS[system]
    found = cast("type[TopicClient]", getattr(import_module(module), name))
    if issubclass(found, JobClient):
        # Workers fork.
        threading.Thread(target=exit_with_parent, args=(_parent_pipe(), _kill_session), daemon=True).start()
        with closing(found(options.port, options.topic, keeps_results=options.way == RESULTS)) as job_client:
            report(JOB_ROLES[role](job_client, options))
        return
    client_class = cast("type[Client]", found)

    def make() -> Client:
        return client_class(options.port, options.topic, synced=options.synced)

    if role == "processes":
        # Before any thread is started: a fork would copy its locks and not the thread.
        report(processes(make, options))
        return
    threading.Thread(target=exit_with_parent, args=(_parent_pipe(),), daemon=True).start()
    with closing(make()) as client:
        report(ROLES[role](client, options))


if __name__ == "__main__":
    main(sys.argv[1:])
