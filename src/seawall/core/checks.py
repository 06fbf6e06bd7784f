"""Named invariants, checked where they matter.

`check` is for what must hold if Seawall is right: it fails only through a bug here, never through a caller, a peer or
a disk, which have errors of their own. It is an ordinary call, so `python -O` does not remove it. It has no place
inside loops over records; kernels report such findings as result codes.
"""

from __future__ import annotations

from seawall.errors import InvariantError


def check(condition: bool, name: str, detail: str = "") -> None:
    """Raise `InvariantError` unless the invariant called `name` ("INV-…") holds; `detail` gives the values seen."""
    if not condition:
        raise InvariantError(name, detail)
