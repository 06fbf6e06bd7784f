"""The leases of one queue that outlive the process, as the log states them.

Each control adds rows; the last row of a job takes effect. Rows of jobs that are gone, and rows that later ones
replace, are dropped when they outnumber the others, so a call costs nothing for each job. This module must not know the
lease view, nor when a lease ends.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seawall.core.types import Seq
from seawall.storage.control.queues import LEASE_ROW, LeaseRows
from seawall.storage.segments.delete_sidecar import DeletedSeqs

#: Rows that are kept before the first look for those without effect.
_COMPACT_AT_MIN: Final = 4_096


class DurableLeases:
    """The rows of the leases of one queue."""

    __slots__ = ("_compact_at", "_count", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[LeaseRows] = []
        self._count = 0
        self._compact_at = _COMPACT_AT_MIN

    def __len__(self) -> int:
        """Rows that are kept; 0 if there are no leases."""
        return self._count

    def add(self, rows: LeaseRows) -> None:
        """Add the rows of a control."""
        self._pieces.append(rows)
        self._count += len(rows)

    def compact_if_due(self, dead: DeletedSeqs) -> None:
        """Drop rows without effect, if there may be many; `dead` are seqs that are not live."""
        if self._count >= self._compact_at:
            self.rows(dead)
            self._compact_at = max(_COMPACT_AT_MIN, 2 * self._count)

    def rows(self, dead: DeletedSeqs) -> LeaseRows:
        """The row in effect of each job, by rising seq, without those in `dead`."""
        rows: LeaseRows = np.concatenate([np.zeros(0, LEASE_ROW), *self._pieces])
        # The first of equal elements is kept: so look from the end.
        _, last = np.unique(rows["seq"][::-1], return_index=True)
        rows = rows[len(rows) - 1 - last]
        rows = rows[~dead.contains(rows["seq"].astype(np.int64))]
        self._pieces, self._count = ([rows] if len(rows) else []), len(rows)
        return rows

    def last_seq(self) -> Seq:
        """The highest seq of a row; 0 without any."""
        return Seq(max((int(rows["seq"][-1]) for rows in self._pieces), default=0))
