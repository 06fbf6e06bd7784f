"""The options of `format("seawall")`, read once into one typed object.

Names and meanings are those of Spark's Kafka connector, wherever it has the thing. A Seawall topic has one partition,
so JSON offsets know partition "0" only, and an offset is a seq: the first one is 1.

Nothing is guessed: an option that is unknown, contradicts another one, or belongs to the other kind of query is
refused, with what to do instead. This module must not know Spark, nor ask a server.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from seawall.errors import ConfigError
from seawall.limits import MIB
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

_Value = TypeVar("_Value")
_Default = TypeVar("_Default")

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
class ServerOptions:
    """Where the server is, and what it is told. Goes to executors as it is."""

    url: str
    token: str = field(default="", repr=False)
    #: Whether connections are encrypted, or a file of the authorities that are believed; None leaves it to the URL.
    tls: bool | str | None = None
    timeout_s: float = 30.0


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
_BOTH: Final = frozenset({"batch", "stream"})
_STREAM: Final = frozenset({"stream"})
_BATCH: Final = frozenset({"batch"})
OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "url": _BOTH,
    "token": _BOTH,
    "tls": _BOTH,
    "timeout": _BOTH,
    "subscribe": _BOTH,
    "subscribePattern": _BOTH,
    "assign": _BOTH,
    "startingOffsets": _BOTH,
    "startingTimestamp": _BOTH,
    "startingOffsetsByTimestamp": _BOTH,
    "startingOffsetsByTimestampStrategy": _BOTH,
    "endingOffsets": _BATCH,
    "endingTimestamp": _BATCH,
    "endingOffsetsByTimestamp": _BATCH,
    "failOnDataLoss": _BOTH,
    "includeGaps": _BOTH,
    "includeHeaders": _BOTH,
    "columns": _BOTH,
    "timestamps": _BOTH,
    "virtualPartitions": _BOTH,
    "maxOffsetsPerTrigger": _STREAM,
    "minOffsetsPerTrigger": _STREAM,
    "maxTriggerDelay": _STREAM,
    "maxBytesPerTrigger": _STREAM,
    "minPartitions": _BOTH,
    "maxRecordsPerPartition": _BOTH,
    "maxBytesPerPartition": _BOTH,
    "read": _BOTH,
    "filterPushdown": _BATCH,
}

_KNOWN: Final = {name.lower(): name for name in OPTIONS}


def read_options(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """The options of a query; `ConfigError` says what is wrong with them."""
    options = _Given(given, "stream" if is_stream else "batch")
    start, end = _places(options, is_stream)
    subscription = _subscription(options)
    _check_named(subscription, start, "startingOffsets")
    _check_named(subscription, end, "endingOffsets")
    strategy = options.get("startingOffsetsByTimestampStrategy", read_choice("error", "latest"), "error")
    return ReadOptions(
        server=_server(options),
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
    options = _Given(given, None)
    has_headers, has_gaps = (options.get(name, read_flag, False) for name in ("includeHeaders", "includeGaps"))
    return read_columns(options.text("columns"), has_headers=has_headers, has_gaps=has_gaps)


class _Given:
    """What was given, by the names it is known under."""

    def __init__(self, given: Mapping[str, str], kind: str | None) -> None:
        self._values: dict[str, str] = {}
        for key, value in given.items():
            name = _KNOWN.get(key.lower())
            if name is None:
                raise ConfigError(_unknown(key))
            if kind is not None and kind not in OPTIONS[name]:
                other = "batch" if kind == "stream" else "streaming"
                mine = "streaming" if kind == "stream" else "batch"
                raise ConfigError(f"option {name} is for {other} queries, and this is a {mine} one: leave it out")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        """The value of an option, None if it was not given."""
        return self._values.get(name)

    def get(self, name: str, read: Callable[[str, str], _Value], default: _Default) -> _Value | _Default:
        """The value of an option, read by a function that is told its name."""
        text = self._values.get(name)
        return default if text is None else read(name, text)

    def given(self, *names: str) -> list[str]:
        """Which of some options were given."""
        return [name for name in names if name in self._values]


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _KNOWN, n=1)
    hint = f"; did you mean {_KNOWN[near[0]]}?" if near else ""
    return f"no option of seawall is called {key!r}{hint} Options: {', '.join(OPTIONS)}"


def _server(options: _Given) -> ServerOptions:
    url = options.text("url")
    if url is None:
        raise ConfigError("option url is missing: give the address of a server, as in url=seawall://host:1992")
    said = options.text("tls")
    tls = said.lower() == "true" if said is not None and said.lower() in ("true", "false") else said
    timeout_ms = options.get("timeout", read_duration_ms, 30_000)
    return ServerOptions(url, options.text("token") or "", tls, timeout_ms / 1e3)


def _subscription(options: _Given) -> Subscription:
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


def _places(options: _Given, is_stream: bool) -> tuple[Place, Place]:
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


def _place(options: _Given, which: str, default: Offsets) -> Place:
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


def _admission(options: _Given) -> Admission:
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
