"""The shapes of load that are measured on each system, and what Seawall should reach in each.

    bulk       publish 1 KiB and 100 B records in bulk, not synced
    durable    publish 1 KiB records in bulk, synced before their acks
    lone       one durable record at a time
    waiting    2, 8 and 64 publishers that wait for each ack, synced, as processes, asyncio tasks, threads
    follow     writer to reader at 1,000 records a second, not synced and synced
    consume    read 1 KiB records one by one, touching key, value and offset, and as Arrow tables
    start      from the start of the process to the first durable ack, and the memory of the server
    recovery   from the start after `kill -9` under load to the first record read
    disk       disk space per byte of records
    queues     job queues without a library: push, claim, ack                  (`job_shapes.py`)
    jobs       background tasks, through the usual libraries                   (`job_shapes.py`)

How a system takes its turns is in `bed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from time import monotonic_ns, sleep
from typing import Final

from seawall.bench.comparison import ComparedFigure
from seawall.bench.peers import job_shapes
from seawall.bench.peers.bed import Bed, Scale, Shape, Target, served, started
from seawall.bench.peers.client_process import NANOSECONDS
from seawall.bench.peers.servers import prepared, running
from seawall.bench.peers.system import System
from seawall.bench.peers.systems.kafka import Kafka
from seawall.bench.peers.systems.nats import Nats
from seawall.bench.peers.systems.redis import Redis
from seawall.bench.peers.systems.seawall import Seawall
from seawall.bench.results import Better, Goal
from seawall.limits import KIB, MIB

#: The systems that publish and read topics, in the order of their turns.
LOGS: Final[tuple[System, ...]] = (Seawall(), Kafka(), Redis(), Nats())
KAFKA, REDIS, NATS = "Kafka", "Redis", "NATS"
SMALL: Final = 100
#: Time between two records of the paced writer.
_INTERVAL_NS: Final = NANOSECONDS // 1_000
#: How long a server rests before its memory is taken, and how long it is under load before it is killed.
_REST_SECONDS: Final = 1.0
_LOAD_SECONDS: Final = 0.3


# --- publishing --------------------------------------------------------------------------------------------------


def bulk_rates(target: Target, seconds: float, *, size: int, ways: tuple[str, ...]) -> Mapping[str, float]:
    """Records a second in bulk, each way on a topic of its own; `best` is the fastest way.

    Redis and NATS know one way only: a call for each record, gathered by their clients.
    """
    rates: dict[str, float] = {}
    for way in ways if target.bed.system.name in ("Seawall", KAFKA) else ways[:1]:
        with target.new_topic() as options:
            found = target.run("bulk", replace(options, size=size, seconds=seconds, way=way))
        rates[way] = found["records"] / found["seconds"]
    best = max(rates.values())
    return {**dict.fromkeys(ways, best), **rates, "best": best}


def durable_rate(target: Target, seconds: float) -> Mapping[str, float]:
    """Bytes a second in bulk."""
    return {"bytes": bulk_rates(target, seconds, size=KIB, ways=("lists",))["best"] * KIB}


def lone_latency(target: Target, seconds: float) -> Mapping[str, float]:
    """Latency of one waiting publisher."""
    with target.new_topic() as options:
        found = target.run("waiting", replace(options, seconds=seconds))
    return {"p50": found["p50"], "p99": found["p99"]}


def waiting_rates(target: Target, seconds: float, *, way: str) -> Mapping[str, float]:
    """Records a second of several waiting publishers, by their number."""
    rates = {}
    for publishers in target.bed.scale.waiting_counts:
        with target.new_topic() as options:
            found = target.run(way, replace(options, seconds=seconds, count=publishers))
        rates[str(publishers)] = found["records"] / found["seconds"]
    return rates


# --- reading -----------------------------------------------------------------------------------------------------


def follow_latency(target: Target, seconds: float) -> Mapping[str, float]:
    """Age of records on arrival at a follower."""
    scale = target.bed.scale
    records = scale.paced_warm_up + max(scale.paced_min, int(seconds * NANOSECONDS) // _INTERVAL_NS)
    with target.new_topic() as topic:
        options = replace(
            topic, size=SMALL, count=records, warm_up=scale.paced_warm_up, interval_ns=_INTERVAL_NS, seconds=seconds
        )
        with target.client("follow", options) as reader:
            reader.wait_until_ready()
            target.run("write", options)
            found = reader.figures()
    return {"p50": found["p50"], "p99": found["p99"]}


def fill_consumed(target: Target) -> None:
    """Publish what `consume_rates` reads."""
    options = target.options()
    target.run("create", options)
    target.run("fill", replace(options, count=target.bed.scale.consumed_size // KIB))


def consume_rates(target: Target, seconds: float) -> Mapping[str, float]:
    """Bytes a second while reading a topic from its start."""
    rates = {}
    records = target.bed.scale.consumed_size // KIB
    for way in ("records", "arrow") if target.bed.is_ours else ("records",):
        found = target.run("consume", replace(target.options(), seconds=seconds, count=records, way=way))
        rates[way] = found["bytes"] / found["seconds"]
    return rates


# --- starting, memory, disk, recovery ----------------------------------------------------------------------------


def start_and_memory(bed: Bed) -> Mapping[str, float]:
    """Seconds from the start of a server to the first durable ack, and its memory then, under load and after it."""
    with prepared(bed.system, bed.programs, bed.directory, synced=True) as server:
        target = Target(bed, server)
        with target.client("first_ack", target.options("first")) as first:
            first.wait_until_ready()
            before = monotonic_ns()
            server.start()
            server.wait_until_listening()
            seconds = (first.figures()["time_ns"] - before) / NANOSECONDS
        sleep(_REST_SECONDS)
        idle = server.memory_bytes()
        target.run("create", target.options())
        with server.peak_memory() as peak:
            target.run("fill", replace(target.options(), count=bed.scale.loaded_size // KIB))
        sleep(_REST_SECONDS)
        after = server.memory_bytes()
        return {"seconds": seconds, "idle": idle / 1e6, "after": after / 1e6, "peak": max(peak[0], after) / 1e6}


def recovery(bed: Bed) -> Mapping[str, float]:
    """Seconds from the start of a server that was killed under load until a client has read a record."""
    with running(bed.system, bed.programs, bed.directory, synced=False) as server:
        target = Target(bed, server)
        options = replace(target.options(), count=bed.scale.recovered_size // KIB)
        target.run("create", options)
        with target.client("load", options) as load:
            load.wait_until_ready()
            sleep(_LOAD_SECONDS)
            server.kill()
        with target.client("first_read", options) as reader:
            reader.wait_until_ready()
            before = monotonic_ns()
            server.start()
            server.wait_until_listening()
            return {"seconds": (reader.figures()["time_ns"] - before) / NANOSECONDS}


def disk_ratio(bed: Bed) -> Mapping[str, float]:
    """Bytes on disk for each byte of records."""
    with running(bed.system, bed.programs, bed.directory, synced=False) as server:
        target = Target(bed, server)
        target.run("create", target.options())
        found = target.run("fill", replace(target.options(), count=bed.scale.loaded_size // KIB))
        return {"ratio": server.settled_disk_bytes() / (found["records"] * KIB)}


# --- the list ----------------------------------------------------------------------------------------------------


def _at_least(kafka: float | None, redis: float | None, nats: float | None) -> dict[str, Goal]:
    bounds = {KAFKA: kafka, REDIS: redis, NATS: nats}
    return {name: Goal.ratio_at_least(bound) for name, bound in bounds.items() if bound is not None}


_WAITING_BOUNDS: Final = {"processes": 2.0, "tasks": 2.0, "threads": 1.0}
_NO_SLOWER: Final = {name: Goal.ratio_at_most(1.0) for name in (KAFKA, REDIS, NATS)}


def shapes(scale: Scale) -> dict[str, tuple[Shape, ...]]:
    """All shapes by their names on the command line."""
    return {
        "bulk": tuple(_bulk(size, text) for size, text in ((KIB, "1 KiB"), (SMALL, "100 B"))),
        "durable": (_durable(),),
        "lone": (_lone(),),
        "waiting": tuple(_waiting(scale, way, bound) for way, bound in _WAITING_BOUNDS.items()),
        "follow": tuple(_follow(synced=synced) for synced in (False, True)),
        "consume": (_consume(),),
        "start": (_start(),),
        "recovery": (_recovery(scale),),
        "disk": (_disk(),),
        "queues": job_shapes.queue_shapes(),
        "jobs": job_shapes.job_shapes(),
    }


def _bulk(size: int, text: str) -> Shape:
    name = f"bulk, {text} records"
    figures = (
        ComparedFigure(
            f"{name}, lists",
            "records/s",
            Better.HIGHER,
            "lists",
            "best",
            goals=_at_least(2.0, 5.0, 5.0),
            note="written, not synced; Kafka: the faster of produce_batch and produce",
        ),
        ComparedFigure(f"{name}, one call each", "records/s", Better.HIGHER, "calls", goals=_at_least(1.0, None, None)),
    )
    return Shape(name, LOGS, figures, served(partial(bulk_rates, size=size, ways=("lists", "calls")), synced=False))


def _durable() -> Shape:
    name = "durable bulk, 1 KiB records"
    figure = ComparedFigure(
        name, "B/s", Better.HIGHER, "bytes", goals=_at_least(2.0, 5.0, 5.0), note="synced before the ack"
    )
    return Shape(name, LOGS, (figure,), served(durable_rate, synced=True))


def _lone() -> Shape:
    name = "one durable 1 KiB record at a time"
    figures = (
        ComparedFigure(f"{name}, p50", "s", Better.LOWER, "p50", goals=_NO_SLOWER),
        ComparedFigure(f"{name}, p99", "s", Better.LOWER, "p99"),
    )
    return Shape(name, LOGS, figures, served(lone_latency, synced=True))


def _waiting(scale: Scale, way: str, bound: float) -> Shape:
    figures = tuple(
        ComparedFigure(
            f"{publishers} waiting {way}, durable 1 KiB",
            "records/s",
            Better.HIGHER,
            str(publishers),
            goals=_at_least(bound, bound, bound),
        )
        for publishers in scale.waiting_counts
    )
    return Shape(f"waiting {way}", LOGS, figures, served(partial(waiting_rates, way=way), synced=True))


def _follow(*, synced: bool) -> Shape:
    name = f"writer to reader, 1,000 records/s, {'synced' if synced else 'not synced'}"
    figures = (
        ComparedFigure(f"{name}, p50", "s", Better.LOWER, "p50", goals=_NO_SLOWER),
        ComparedFigure(f"{name}, p99", "s", Better.LOWER, "p99"),
    )
    return Shape(name, LOGS, figures, served(follow_latency, synced=synced))


def _consume() -> Shape:
    name = "consume 1 KiB records"
    figures = (
        ComparedFigure(f"{name}, one by one", "B/s", Better.HIGHER, "records", goals=_at_least(1.0, 1.0, None)),
        ComparedFigure(
            f"{name}, as Arrow",
            "B/s",
            Better.HIGHER,
            "arrow",
            "records",
            goals=_at_least(2.0, None, None),
            note="beside the records of the others one by one",
        ),
    )
    return Shape(name, LOGS, figures, served(consume_rates, synced=False, fill=fill_consumed))


def _start() -> Shape:
    memory = "memory of the server (PSS)"
    figures = (
        ComparedFigure(
            "start to the first durable ack", "s", Better.LOWER, "seconds", value_goal=Goal.value_at_most(1.0)
        ),
        ComparedFigure(f"{memory}, idle", "MB", Better.LOWER, "idle"),
        ComparedFigure(f"{memory}, after a durable bulk load", "MB", Better.LOWER, "after"),
        ComparedFigure(f"{memory}, peak", "MB", Better.LOWER, "peak"),
    )
    return Shape("start and memory", LOGS, figures, started(start_and_memory), warms_up=False)


def _recovery(scale: Scale) -> Shape:
    name = "first read after kill -9 under load"
    note = f"{scale.recovered_size // MIB:,} MiB of 1 KiB records, not synced"
    figure = ComparedFigure(name, "s", Better.LOWER, "seconds", goals=_NO_SLOWER, note=note)
    return Shape(name, LOGS, (figure,), started(recovery), warms_up=False)


def _disk() -> Shape:
    name = "disk bytes per byte of 1 KiB records"
    figure = ComparedFigure(name, "x", Better.LOWER, "ratio", note="after a bulk load, once it has settled")
    return Shape(name, LOGS, (figure,), started(disk_ratio), warms_up=False)
