"""Types of routers: their settings, and the public description of one.

A router copies the records of its source topic to its destination topic: all of them, or those that match a filter.

    tag           the tag of a record equals this text
    tag_prefix    the tag of a record begins with this text
    node          the record comes from this node

A record must match all conditions that are given; a record without a tag matches no condition on tags, and one without
a node none on nodes.

This module must not know how settings are stored or sent, except for their names: those of the fields below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

from seawall import limits
from seawall.core.types import Seq
from seawall.errors import InvalidInputError, LimitError


class Guarantee(StrEnum):
    """What a router promises about its copies. Seawall copies exactly once under both names."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Everything about a router that may change: which records it copies, and how."""

    tag: str | None = None
    tag_prefix: str | None = None
    node: str | None = None
    #: False to copy records without their node, or without their tag.
    preserve_node: bool = True
    preserve_tag: bool = True
    #: True to allow a loop of routers; a record then passes routers with this setting at most `ROUTER_HOPS_MAX` times.
    allow_cycle: bool = False
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE

    def __post_init__(self) -> None:
        if self.tag is not None and self.tag_prefix is not None:
            raise InvalidInputError("a router filters by a whole tag or by how it begins, not by both")

    @property
    def is_filtered(self) -> bool:
        """True if the router copies only some records."""
        return self.tag is not None or self.tag_prefix is not None or self.node is not None

    def document(self) -> dict[str, str | bool | None]:
        """All settings by name, for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Self:
        """The settings in a document; those that it lacks have their defaults. `InvalidInputError` for others."""
        unknown = document.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise InvalidInputError(f"{', '.join(sorted(unknown))}: a router has no such setting")
        default = cls()
        return cls(
            _text(document, "tag", limits.TAG_SIZE_MAX),
            _text(document, "tag_prefix", limits.TAG_SIZE_MAX),
            _text(document, "node", limits.JOB_NODE_SIZE_MAX),
            _flag(document, "preserve_node", default.preserve_node),
            _flag(document, "preserve_tag", default.preserve_tag),
            _flag(document, "allow_cycle", default.allow_cycle),
            _guarantee(document.get("guarantee", default.guarantee)),
        )


@dataclass(frozen=True, slots=True)
class RouterInfo:
    """A router as it is now."""

    name: str
    source: str
    dest: str
    settings: RouterSettings
    #: Records that it has copied.
    forwarded: int
    #: The seq of the source that it reads next.
    next_seq: Seq
    #: Why it makes no progress: the destination refuses its copies; None if nothing blocks it.
    blocked: str | None = None


def _text(document: Mapping[str, object], name: str, size_max: int) -> str | None:
    text = document.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInputError(f"{name} of a router is text, not {text!r}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name} of a router: not encodable as UTF-8 ({error.reason})") from error
    if size > size_max:
        raise LimitError(f"{name} of a router has {size} bytes; at most {size_max} are allowed")
    return text


def _flag(document: Mapping[str, object], name: str, default: bool) -> bool:
    value = document.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} of a router is true or false, not {value!r}")
    return value


def _guarantee(value: object) -> Guarantee:
    for each in Guarantee:
        if each == value:
            return each
    raise InvalidInputError(f"guarantee {value!r} of a router: give {' or '.join(Guarantee)}")
