"""The credit of a peer for pushed batches: running totals of what it accepts, and of what was sent to it.

A data frame is sent only while both totals are below the credit. This module must not know what is pushed.
"""

from __future__ import annotations

from seawall.errors import ProtocolError
from seawall.wire.format.codes import ErrorCode
from seawall.wire.lwp2.subscriptions import Credit


class PushCredit:
    """The credit of one subscription or watch."""

    __slots__ = ("_granted", "bytes_sent", "records_sent")

    def __init__(self, bytes_total: int, records_total: int) -> None:
        self._granted = Credit(bytes_total, records_total)
        self.bytes_sent = 0
        self.records_sent = 0

    @property
    def is_left(self) -> bool:
        """True if another frame may be sent."""
        return self.bytes_sent < self._granted.bytes_total and self.records_sent < self._granted.records_total

    def grant(self, granted: Credit) -> None:
        """Set the new totals; they must not decrease."""
        before = self._granted
        if granted.bytes_total < before.bytes_total or granted.records_total < before.records_total:
            raise ProtocolError("credit must not decrease", code=ErrorCode.INVALID_PAYLOAD, closes=False)
        self._granted = granted

    def spend(self, size: int, record_count: int) -> None:
        """Count a data frame that is sent."""
        self.bytes_sent += size
        self.records_sent += record_count
