"""Check named invariants at run time.

A failed `check` is always a bug in Seawall. Mistakes of a caller, a peer or a disk have their own errors. `check` is an
ordinary call, so `python -O` does not remove it. Do not use it in loops over records; kernels report such violations
as result codes.
"""

from __future__ import annotations

from seawall.errors import InvariantError


def check(condition: bool, name: str, detail: str = "") -> None:
    """Raise `InvariantError` unless the invariant called `name` ("INV-…") holds; `detail` gives the values seen."""
    if not condition:
        raise InvariantError(name, detail)
