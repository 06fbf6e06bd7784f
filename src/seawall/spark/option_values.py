"""Parses the values of options: counts, sizes, durations, flags, and where reading starts or ends.

Each function takes the name of its option for the error message. This module must not know which options exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from seawall.errors import ConfigError
from seawall.limits import KIB, MIB

#: In JSON offsets: the start and the end of a topic.
EARLIEST_SEQ: Final = -2
LATEST_SEQ: Final = -1

#: The keys of a topic's offset in JSON: its only partition, and the epoch of the topic.
PARTITION: Final = "0"
EPOCH: Final = "epoch"

_SIZES: Final = {"": 1, "b": 1, "k": KIB, "kb": KIB, "m": MIB, "mb": MIB, "g": 1024 * MIB, "gb": 1024 * MIB}
_DURATIONS_MS: Final = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_WITH_UNIT: Final = re.compile(r"\s*([0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Offsets:
    """A seq for all topics, or one for each; -2 is the earliest, -1 the latest."""

    seqs: int | Mapping[str, int]
    #: The epoch of the topic for its seq, if it was given.
    epochs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Times:
    """A time for all topics, or one for each, in milliseconds since 1970."""

    moments_ms: int | Mapping[str, int]


#: Where reading starts or ends.
OffsetSpec: TypeAlias = Offsets | Times

EARLIEST: Final = Offsets(EARLIEST_SEQ)
LATEST: Final = Offsets(LATEST_SEQ)


def read_flag(name: str, text: str) -> bool:
    """Parse true or false."""
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}: give true or false")
    return text.strip().lower() == "true"


def read_count(name: str, text: str) -> int:
    """Parse a whole number above 0."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"option {name} is {text!r}: give a whole number above 0")
    return int(text)


def read_whole(name: str, text: str) -> int:
    """Parse a whole number, 0 or above."""
    if not text.strip().isdecimal():
        raise ConfigError(f"option {name} is {text!r}: give a whole number, 0 or above")
    return int(text)


def read_choice(*choices: str) -> Callable[[str, str], str]:
    """A parser for one of these words, in any case."""

    def read(name: str, text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ConfigError(f"option {name} is {text!r}: give {' or '.join(map(str, choices))}")
        return word

    return read


def read_size(name: str, text: str) -> int:
    """Parse a number of bytes above 0, such as 1048576, 64m or 1g."""
    size = _with_unit(text, _SIZES)
    if not size:
        raise ConfigError(f"option {name} is {text!r}: give bytes above 0, as in 1048576, 64m or 1g")
    return size


def read_duration_ms(name: str, text: str) -> int:
    """Parse a duration above 0, such as 30 (seconds), 500ms, 15m or 1h, to milliseconds."""
    duration = _with_unit(text, _DURATIONS_MS)
    if not duration:
        raise ConfigError(f"option {name} is {text!r}: give a duration above 0, as in 500ms, 30s, 15m or 1h")
    return duration


def read_timestamp_ms(name: str, text: str) -> int:
    """Parse milliseconds since 1970."""
    if not text.strip().isdecimal():
        raise ConfigError(f"option {name} is {text!r}: give milliseconds since 1970")
    return int(text)


def read_offsets(name: str, text: str) -> Offsets:
    """Parse earliest, latest, or JSON with a seq for each topic."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    seqs, epochs = _by_topic(name, text, 'earliest, latest, or JSON as in {"events": {"0": 17}}')
    for topic, seq in seqs.items():
        if seq < EARLIEST_SEQ or seq == 0:
            raise ConfigError(
                f"option {name}: {seq} for topic {topic}: seqs begin at 1; -2 is the earliest, -1 the latest"
            )
    return Offsets(seqs, epochs)


def read_times(name: str, text: str) -> Times:
    """Parse JSON with a time for each topic."""
    moments, _ = _by_topic(name, text, 'JSON as in {"events": {"0": 1700000000000}}, in milliseconds since 1970')
    for topic, moment in moments.items():
        if moment < 0:
            raise ConfigError(f"option {name}: {moment} for topic {topic}: milliseconds since 1970 are not negative")
    return Times(moments)


def read_assignment(name: str, text: str) -> tuple[str, ...]:
    """Parse JSON with the partitions of each topic, which must be [0]; returns the topics."""
    wanted = 'give JSON as in {"events": [0]}'
    document = _document(name, text, wanted)
    for topic, partitions in document.items():
        if partitions != [0]:
            raise ConfigError(f"option {name}: topic {topic} has partition 0 and no other: {wanted}")
    return tuple(document)


def _by_topic(name: str, text: str, wanted: str) -> tuple[dict[str, int], dict[str, int]]:
    """The number of each topic, and the epochs that were given."""
    found: dict[str, int] = {}
    epochs: dict[str, int] = {}
    for topic, partitions in _document(name, text, f"give {wanted}").items():
        if not isinstance(partitions, dict) or not {PARTITION} <= set(partitions) <= {PARTITION, EPOCH}:
            raise ConfigError(f'option {name}: topic {topic} has partition "0" and no other: give {wanted}')
        if any(type(number) is not int for number in partitions.values()):
            raise ConfigError(f"option {name}: {partitions} for topic {topic} is no whole number: give {wanted}")
        found[topic] = partitions[PARTITION]
        epochs |= {topic: partitions[EPOCH]} if EPOCH in partitions else {}
    return found, epochs


def _document(name: str, text: str, wanted: str) -> dict[str, object]:
    """Parse a JSON object that is not empty."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {name} is {text!r}: {wanted}") from error
    if not isinstance(document, dict) or not document:
        raise ConfigError(f"option {name} is {text!r}: {wanted}")
    return document


def _with_unit(text: str, units: Mapping[str, int]) -> int | None:
    match = _WITH_UNIT.fullmatch(text)
    unit = None if match is None else units.get(match[2].lower())
    return None if match is None or unit is None else int(match[1]) * unit
