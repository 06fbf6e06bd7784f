"""The owner of committed offsets: the name under which a reader stores how far it has read."""

from __future__ import annotations

from seawall.errors import InvalidInputError


def check_owner(owner: str | None) -> str:
    """The owner of a reader; `InvalidInputError` if it has none."""
    if owner is None:
        raise InvalidInputError("a reader without an owner cannot commit: open it with owner=…")
    return owner
