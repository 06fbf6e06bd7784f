"""Rules that parse and validate the values of settings, whatever source they come from.

A rule returns the parsed value or refuses it; error messages show the rule's description after "must be". Every rule
accepts text, because an environment variable can be nothing else.

This module must not know which settings exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

from seawall import limits
from seawall.errors import ConfigError

Value: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that a setting accepts: described by a phrase after "must be", parsed by `read` (None: refused)."""

    allowed: str
    read: Callable[[object], Value | None]


def switch() -> Rule:
    """True or false."""

    def read(raw: object) -> bool | None:
        if isinstance(raw, str):
            return {"true": True, "on": True, "false": False, "off": False}.get(raw.strip().lower())
        return raw if isinstance(raw, bool) else None

    return Rule("true or false", read)


def integer(low: int, high: int, *, power_of_two: bool = False) -> Rule:
    """A whole number in a range."""

    def read(raw: object) -> int | None:
        number = _number(raw, _WHOLE_NUMBER, {"": 1})
        if not isinstance(number, int) or not low <= number <= high:
            return None
        return None if power_of_two and number & (number - 1) else number

    return Rule(f"{'a power of two' if power_of_two else 'a whole number'} from {low} to {high}", read)


def size(low: int, high: int) -> Rule:
    """Bytes in a range."""
    units = {"": 1, "B": 1, "KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}

    def read(raw: object) -> int | None:
        number = _number(raw, _WHOLE_NUMBER, units)
        return number if isinstance(number, int) and low <= number <= high else None

    return Rule(f"a size from {low} to {high} bytes, such as 65536, 64KiB or 2GiB", read)


def size_or_zero(low: int, high: int) -> Rule:
    """Bytes in a range, or 0, which has a special meaning."""
    rule = size(low, high)

    def read(raw: object) -> Value | None:
        return 0 if size(0, 0).read(raw) == 0 else rule.read(raw)

    return Rule(f"0, or {rule.allowed}", read)


def addresses(most: int) -> Rule:
    """Listen addresses: one or several `host:port`, separated by commas; no host means every interface."""

    def read(raw: object) -> str | None:
        texts = [text.strip() for text in raw.split(",")] if isinstance(raw, str) else []
        matches = [_ADDRESS.fullmatch(text) for text in texts[: most + 1]]
        found = [(match[1] or "0.0.0.0", int(match[2])) for match in matches if match]
        if not 1 <= len(found) == len(texts) <= most or any(port > 65_535 for _, port in found):
            return None
        return ",".join(f"{host}:{port}" for host, port in found)

    return Rule("host:port, [ipv6]:port or :port, or several of them separated by commas", read)


def duration(low: float, high: float) -> Rule:
    """Seconds in a range."""
    units: dict[str, int | Decimal] = {"": 1, "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": 1, "m": 60, "h": 3600}

    def read(raw: object) -> float | None:
        seconds = _number(raw, _DECIMAL_NUMBER, units)
        return float(seconds) if seconds is not None and low <= seconds <= high else None

    return Rule(f"a time from {low:g} to {high:g} seconds, such as 2, 0.5 or 250ms", read)


def duration_or_zero(low: float, high: float) -> Rule:
    """Seconds in a range, or 0, which has a special meaning."""
    rule = duration(low, high)

    def read(raw: object) -> Value | None:
        return 0.0 if duration(0, 0).read(raw) == 0 else rule.read(raw)

    return Rule(f"0, or {rule.allowed}", read)


def path_text(*, may_be_empty: bool = False) -> Rule:
    """A path; a relative one is relative to the working directory of the process."""

    def read(raw: object) -> str | None:
        return raw if isinstance(raw, str) and "\0" not in raw and (raw or may_be_empty) else None

    return Rule("a path or empty" if may_be_empty else "a path", read)


def group_text() -> Rule:
    """The name or number of a user group, or nothing."""

    def read(raw: object) -> str | None:
        return raw if isinstance(raw, str) and re.fullmatch(r"[\w.$-]*", raw, re.ASCII) else None

    return Rule("the name or number of a user group, or empty", read)


def choice(words: type[StrEnum]) -> Rule:
    """One of a few words."""

    def read(raw: object) -> StrEnum | None:
        return words(raw) if isinstance(raw, str) and raw in set(words) else None

    return Rule("one of " + ", ".join(words), read)


_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]]*):([0-9]{1,5})", re.ASCII)

#: Longer text is refused before it is parsed as a number.
_NUMBER_TEXT_SIZE_MAX = 40
_WHOLE_NUMBER = re.compile(r"\s*(-?[0-9]+(?:_[0-9]+)*)\s*([A-Za-z]*)\s*")
_DECIMAL_NUMBER = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def _number(raw: object, pattern: re.Pattern[str], units: Mapping[str, int | Decimal]) -> int | float | None:
    """A number, given as such or as text with a unit; None if it is neither. NaN fails every range check."""
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    match = pattern.fullmatch(raw) if isinstance(raw, str) and len(raw) <= _NUMBER_TEXT_SIZE_MAX else None
    if match is None or match[2] not in units:
        return None
    # Decimals, so that 100us is the same number as 0.0001.
    number = Decimal(match[1]) * units[match[2]]
    return int(number) if pattern is _WHOLE_NUMBER else float(number)


# --- sections ----------------------------------------------------------------------------------------------------


def about(rule: Rule, text: str) -> Mapping[str, object]:
    """The metadata of a setting's field: its rule and its help text."""
    return {"rule": rule, "help": text}


@dataclass(frozen=True, slots=True)
class Section:
    """A group of settings that validates itself on construction."""

    def __post_init__(self) -> None:
        for declared in fields(self):
            raw: object = getattr(self, declared.name)
            rule: Rule = declared.metadata["rule"]
            value = rule.read(raw)
            if value is None:
                raise ConfigError(f"{type(self).__name__}.{declared.name} is {shown(raw)}: it must be {rule.allowed}")
            object.__setattr__(self, declared.name, value)


def shown(raw: object) -> str:
    """A value as error messages show it: shortened if it is long."""
    text = repr(raw)
    return text if len(text) <= 60 else text[:59] + "…"
