"""The locks contain every package with the extras that other packages require."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = sorted((Path(__file__).parents[1] / "requirements").glob("*.txt"))
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?==", re.MULTILINE)


def locked() -> dict[str, set[str]]:
    """The extras that each package is locked with."""
    found: dict[str, set[str]] = {}
    for path in LOCKS:
        for name, extras in LOCKED.findall(path.read_text(encoding="utf-8")):
            found.setdefault(canonicalize_name(name), set()).update(filter(None, extras.split(",")))
    return found


def requirements_of(name: str, extras: set[str]) -> Iterator[Requirement]:
    """The requirements of an installed package; none for a package of other systems."""
    try:
        needs = requires(name) or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, needs):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


def test_requirements_with_extras_are_locked_with_them() -> None:
    """pip would take the newest version of a package locked without them, and refuse it for its missing hash."""
    found = locked()
    assert "coverage" in found
    missing = {
        (name, str(requirement))
        for name, extras in found.items()
        for requirement in requirements_of(name, extras)
        if not requirement.extras <= found[canonicalize_name(requirement.name)]
    }
    assert missing == set()
