"""What is committed together: bundles of records, the appends that store them, and what became of these."""

from __future__ import annotations

from collections.abc import Sequence

from seawall.engine.commit.appends import Append, Commit
from seawall.engine.commit.delivery import PendingBatch
from seawall.errors import OutcomeUnknownError


class Group:
    """Bundles that are committed together, and the appends that store them, in the same order."""

    __slots__ = ("appends", "commit", "parts", "record_count")

    def __init__(self, pending_batches: Sequence[PendingBatch]) -> None:
        self.commit: Commit | None = None
        #: Each bundle with its appends.
        self.parts = [(pending_batch, pending_batch.appends()) for pending_batch in pending_batches]
        if len(pending_batches) == 1:
            self.appends = self.parts[0][1]
            self.record_count = pending_batches[0].record_count
        else:
            self.appends = [each for _, part in self.parts for each in part]
            self.record_count = sum(pending_batch.record_count for pending_batch in pending_batches)


def error_of(appends: Sequence[Append]) -> Exception | None:
    """What went wrong with the first append with which something did."""
    for append in appends:
        if append.error is not None:
            return append.error
        if append.numbered is None:
            return OutcomeUnknownError("the commit ended before the records were decided; read to find out")
    return None
