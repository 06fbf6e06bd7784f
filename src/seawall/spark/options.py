"""The options of reading `format("seawall")`, read once into one typed object.

Names and meanings are those of Spark's Kafka connector, wherever it has the thing. A Seawall topic has one partition,
so JSON offsets know partition "0" only, and an offset is a seq: the first one is 1.

Nothing is guessed: an option that is unknown, contradicts another one, or belongs to the other kind of query is
refused, with what to do instead. This module must not know Spark, nor ask a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from seawall.errors import ConfigError
from seawall.limits import MIB
from seawall.spark.given_options import BATCH, BOTH, SERVER_OPTIONS, STREAM, GivenOptions, ServerOptions
from seawall.spark.option_values import (
    EARLIEST,
    LATEST,
    Offsets,
    Place,
    Times,
    read_assignment,
    read_choice,
    read_count,
    read_duration_ms,
    read_flag,
    read_offsets,
    read_size,
    read_times,
    read_timestamp_ms,
)
from seawall.spark.schema import read_columns

_PARTITION_SIZE: Final = 64 * MIB
_TRIGGER_DELAY_MS: Final = 15 * 60_000


class ReadFrom(StrEnum):
    """Where executors read from: sealed segments if they can reach them, those or nothing, or the server alone."""

    AUTO = "auto"
    FILES = "files"
    NETWORK = "network"


class Clock(StrEnum):
    """Whose time the column `timestamp` shows: the log's, or the writer's where a record has one."""

    LOG = "log"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics: some by name, or all whose whole name fits a pattern."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """How much one micro-batch may take; None is no bound."""

    max_rows: int | None = None
    min_rows: int | None = None
    max_bytes: int | None = None
    #: A batch that `min_rows` would keep back comes after so long.
    max_delay_ms: int = _TRIGGER_DELAY_MS


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a range of seqs becomes tasks."""

    min_partitions: int = 1
    max_records: int | None = None
    max_bytes: int = _PARTITION_SIZE


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything that a query says about reading."""

    server: ServerOptions
    subscription: Subscription
    start: Place
    end: Place
    #: Whether a start in the future means the end, and is no error.
    is_late_start_latest: bool
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    read_from: ReadFrom = ReadFrom.AUTO
    clock: Clock = Clock.LOG
    virtual_partitions: int = 1
    pushes_filters: bool = False
    admission: Admission = Admission()
    splitting: Splitting = Splitting()


#: Every option, and the kinds of query it has a meaning for.
OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    **SERVER_OPTIONS,
    "subscribe": BOTH,
    "subscribePattern": BOTH,
    "assign": BOTH,
    "startingOffsets": BOTH,
    "startingTimestamp": BOTH,
    "startingOffsetsByTimestamp": BOTH,
    "startingOffsetsByTimestampStrategy": BOTH,
    "endingOffsets": BATCH,
    "endingTimestamp": BATCH,
    "endingOffsetsByTimestamp": BATCH,
    "failOnDataLoss": BOTH,
    "includeGaps": BOTH,
    "includeHeaders": BOTH,
    "columns": BOTH,
    "timestamps": BOTH,
    "virtualPartitions": BOTH,
    "maxOffsetsPerTrigger": STREAM,
    "minOffsetsPerTrigger": STREAM,
    "maxTriggerDelay": STREAM,
    "maxBytesPerTrigger": STREAM,
    "minPartitions": BOTH,
    "maxRecordsPerPartition": BOTH,
    "maxBytesPerPartition": BOTH,
    "read": BOTH,
    "filterPushdown": BATCH,
}


def read_options(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """The options of a query; `ConfigError` says what is wrong with them."""
    options = GivenOptions(given, OPTIONS, "stream" if is_stream else "batch")
    start, end = _places(options, is_stream)
    subscription = _subscription(options)
    _check_named(subscription, start, "startingOffsets")
    _check_named(subscription, end, "endingOffsets")
    strategy = options.get("startingOffsetsByTimestampStrategy", read_choice("error", "latest"), "error")
    return ReadOptions(
        server=options.server(),
        subscription=subscription,
        start=start,
        end=end,
        is_late_start_latest=strategy == "latest",
        columns=named_columns(given),
        fail_on_data_loss=options.get("failOnDataLoss", read_flag, True),
        read_from=ReadFrom(options.get("read", read_choice(*ReadFrom), "auto")),
        clock=Clock(options.get("timestamps", read_choice(*Clock), "log")),
        virtual_partitions=options.get("virtualPartitions", read_count, 1),
        pushes_filters=options.get("filterPushdown", read_flag, False),
        admission=_admission(options),
        splitting=Splitting(
            options.get("minPartitions", read_count, 1),
            options.get("maxRecordsPerPartition", read_count, None),
            options.get("maxBytesPerPartition", read_size, _PARTITION_SIZE),
        ),
    )


def named_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a query, before it is known whether it is a batch or a stream."""
    options = GivenOptions(given, OPTIONS, None)
    has_headers, has_gaps = (options.get(name, read_flag, False) for name in ("includeHeaders", "includeGaps"))
    return read_columns(options.text("columns"), has_headers=has_headers, has_gaps=has_gaps)


def _subscription(options: GivenOptions) -> Subscription:
    given = options.given("subscribe", "subscribePattern", "assign")
    if len(given) != 1:
        found = "none was given" if not given else f"{' and '.join(given)} were given"
        raise ConfigError(f"exactly one of subscribe, subscribePattern and assign says which topics: {found}")
    text = options.text(given[0]) or ""
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"option subscribePattern: {text!r} is no pattern: {error}") from error
        return Subscription(pattern=text)
    if given[0] == "assign":
        return Subscription(read_assignment("assign", text))
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise ConfigError("option subscribe is empty: name topics, with commas between them")
    return Subscription(names)


def _places(options: GivenOptions, is_stream: bool) -> tuple[Place, Place]:
    """Where reading begins and ends. Of what is given the first counts: time, times by topic, offsets."""
    start = _place(options, "starting", LATEST if is_stream else EARLIEST)
    end = _place(options, "ending", LATEST)
    if not is_stream and start == LATEST:
        raise ConfigError("startingOffsets=latest leaves a batch query nothing to read: give earliest, seqs or a time")
    if end == EARLIEST:
        raise ConfigError("endingOffsets=earliest leaves nothing to read: give latest, seqs or a time")
    if isinstance(end, Offsets) and isinstance(end.seqs, Mapping) and EARLIEST.seqs in end.seqs.values():
        raise ConfigError("endingOffsets: -2, the earliest, is no end of a topic; -1 is the latest")
    if (
        not is_stream
        and isinstance(start, Offsets)
        and isinstance(start.seqs, Mapping)
        and LATEST.seqs in start.seqs.values()
    ):
        raise ConfigError("startingOffsets: -1, the latest, leaves a batch query nothing to read; -2 is the earliest")
    return start, end


def _place(options: GivenOptions, which: str, default: Offsets) -> Place:
    timestamp_ms = options.get(f"{which}Timestamp", read_timestamp_ms, None)
    times = options.get(f"{which}OffsetsByTimestamp", read_times, None)
    offsets = options.get(f"{which}Offsets", read_offsets, default)
    if timestamp_ms is not None:
        return Times(timestamp_ms)
    return offsets if times is None else times


def _check_named(subscription: Subscription, place: Place, option: str) -> None:
    """JSON by topic names every topic that is read, and no other."""
    by_topic = place.seqs if isinstance(place, Offsets) else place.moments_ms
    if isinstance(by_topic, int) or subscription.pattern is not None:
        return
    foreign = sorted(set(by_topic) - set(subscription.names))
    absent = sorted(set(subscription.names) - set(by_topic))
    if foreign:
        raise ConfigError(f"{option} names {', '.join(foreign)}, which this query does not read")
    if absent:
        raise ConfigError(f"{option} says nothing of {', '.join(absent)}: name every topic (-2 is earliest, -1 latest)")


def _admission(options: GivenOptions) -> Admission:
    admission = Admission(
        options.get("maxOffsetsPerTrigger", read_count, None),
        options.get("minOffsetsPerTrigger", read_count, None),
        options.get("maxBytesPerTrigger", read_size, None),
        options.get("maxTriggerDelay", read_duration_ms, _TRIGGER_DELAY_MS),
    )
    if admission.max_rows and admission.min_rows and admission.min_rows > admission.max_rows:
        raise ConfigError(
            f"minOffsetsPerTrigger {admission.min_rows} is above maxOffsetsPerTrigger {admission.max_rows}: "
            "no batch would ever be both"
        )
    return admission
