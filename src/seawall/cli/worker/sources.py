"""Notices changed sources, for `seawall worker --reload`: compares the modification times of files.

Watched are the `.py` files of the package that the module belongs to, with all its sub-packages, or, for a module
outside of a package, those of its directory. Nothing is imported to find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from seawall.errors import NotFoundError


@dataclass(slots=True)
class Sources:
    """The sources of a module, and their times when they were last looked at."""

    directory: Path
    is_package: bool
    _times: dict[Path, int] = field(default_factory=dict)

    @classmethod
    def of_module(cls, module: str) -> Sources:
        """The sources of a module by its name; notes their times."""
        top = module.partition(".")[0]
        try:
            found = find_spec(top)
        except (ImportError, ValueError):
            found = None
        if found is None or found.origin is None:
            raise NotFoundError(f"no module {top!r} is found from here: run this in its directory, or set PYTHONPATH")
        sources = cls(Path(found.origin).parent, found.submodule_search_locations is not None)
        sources._times = sources._now()
        return sources

    def changed(self) -> list[Path]:
        """The files that were changed, added or removed since the last call."""
        before, self._times = self._times, self._now()
        return sorted(path for path in before.keys() | self._times.keys() if before.get(path) != self._times.get(path))

    def _now(self) -> dict[Path, int]:
        return dict(self._files())

    def _files(self) -> Iterator[tuple[Path, int]]:
        for path in self.directory.glob("**/*.py" if self.is_package else "*.py"):
            try:
                yield path, path.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # removed meanwhile
