"""The options for reading `format("seawall")`, parsed once into one typed object.

Names and meanings are those of Spark's Kafka connector where it has the same option. A Seawall topic has one partition,
so JSON offsets have partition "0" only, and an offset is a seq: the first one is 1.

Nothing is guessed: an option that is unknown, contradicts another one, or belongs to the other kind of query raises
`ConfigError` with what to do instead. This module must not know Spark, nor contact a server.
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
    OffsetSpec,
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
    """Where executors read from: files of sealed segments if possible (auto), only files, or only the network."""

    AUTO = "auto"
    FILES = "files"
    NETWORK = "network"


class Clock(StrEnum):
    """The time in column `timestamp`: the log's, or the writer's if the record has one."""

    LOG = "log"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics of a query: by name, or all whose full name matches a pattern."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of one micro-batch; None for no limit."""

    max_rows: int | None = None
    min_rows: int | None = None
    max_bytes: int | None = None
    #: The longest delay of a micro-batch by `min_rows`.
    max_delay_ms: int = _TRIGGER_DELAY_MS


@dataclass(frozen=True, slots=True)
class Splitting:
    """How to split a range of seqs into tasks."""

    min_partitions: int = 1
    max_records: int | None = None
    max_bytes: int = _PARTITION_SIZE


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of a query that reads."""

    server: ServerOptions
    subscription: Subscription
    start: OffsetSpec
    end: OffsetSpec
    #: True if a start time after the last record means the end of the topic; otherwise it is an error.
    is_late_start_latest: bool
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    read_from: ReadFrom = ReadFrom.AUTO
    clock: Clock = Clock.LOG
    virtual_partitions: int = 1
    pushes_filters: bool = False
    admission: Admission = Admission()
    splitting: Splitting = Splitting()


#: All options, and the kinds of query that they apply to.
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
    """Parse the options of a query; `ConfigError` if they are wrong."""
    options = GivenOptions(given, OPTIONS, "stream" if is_stream else "batch")
    start, end = _start_and_end(options, is_stream)
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
    """The columns of a query. Spark asks for them before it says whether the query is a batch or a stream."""
    options = GivenOptions(given, OPTIONS, None)
    has_headers, has_gaps = (options.get(name, read_flag, False) for name in ("includeHeaders", "includeGaps"))
    return read_columns(options.text("columns"), has_headers=has_headers, has_gaps=has_gaps)


def _subscription(options: GivenOptions) -> Subscription:
    given = options.given("subscribe", "subscribePattern", "assign")
    if len(given) != 1:
        found = "none was given" if not given else f"{' and '.join(given)} were given"
        raise ConfigError(f"give exactly one of subscribe, subscribePattern and assign to choose topics: {found}")
    text = options.text(given[0]) or ""
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"option subscribePattern: {text!r} is no regular expression: {error}") from error
        return Subscription(pattern=text)
    if given[0] == "assign":
        return Subscription(read_assignment("assign", text))
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise ConfigError("option subscribe is empty: name topics, with commas between them")
    return Subscription(names)


def _start_and_end(options: GivenOptions, is_stream: bool) -> tuple[OffsetSpec, OffsetSpec]:
    """Where reading starts and ends. A time takes precedence over times by topic, and those over offsets."""
    start = _offset_spec(options, "starting", LATEST if is_stream else EARLIEST)
    end = _offset_spec(options, "ending", LATEST)
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


def _offset_spec(options: GivenOptions, which: str, default: Offsets) -> OffsetSpec:
    timestamp_ms = options.get(f"{which}Timestamp", read_timestamp_ms, None)
    times = options.get(f"{which}OffsetsByTimestamp", read_times, None)
    offsets = options.get(f"{which}Offsets", read_offsets, default)
    if timestamp_ms is not None:
        return Times(timestamp_ms)
    return offsets if times is None else times


def _check_named(subscription: Subscription, spec: OffsetSpec, option: str) -> None:
    """Raise `ConfigError` unless JSON by topic names exactly the topics of the query."""
    by_topic = spec.seqs if isinstance(spec, Offsets) else spec.moments_ms
    if isinstance(by_topic, int) or subscription.pattern is not None:
        return
    foreign = sorted(set(by_topic) - set(subscription.names))
    absent = sorted(set(subscription.names) - set(by_topic))
    if foreign:
        raise ConfigError(f"{option} names {', '.join(foreign)}, which this query does not read")
    if absent:
        raise ConfigError(
            f"{option} has no entry for {', '.join(absent)}: name every topic (-2 is earliest, -1 latest)"
        )


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
            "no micro-batch could satisfy both"
        )
    return admission
