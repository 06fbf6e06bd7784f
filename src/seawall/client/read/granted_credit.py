"""The credit that a reader grants to a server that pushes: running totals of bytes and records, as frame headers count
them.

The reader grants more once half of it is used, so that the server never waits for a reader that keeps up, and never
sends more than the reader can buffer. No I/O.
"""

from __future__ import annotations

from typing import Final

from seawall.limits import MIB
from seawall.wire.format.frames import FrameHeader
from seawall.wire.lwp2.subscriptions import Credit

#: How far the server may send ahead of the reader.
CREDIT_BYTES: Final = 32 * MIB
CREDIT_RECORDS: Final = 4_000_000


class GrantedCredit:
    """The credit of one subscription or watch."""

    def __init__(self) -> None:
        self._bytes = self._records = 0
        self._granted_bytes, self._granted_records = CREDIT_BYTES, CREDIT_RECORDS

    @property
    def granted(self) -> Credit:
        """The credit so far."""
        return Credit(self._granted_bytes, self._granted_records)

    def use(self, header: FrameHeader) -> None:
        """Count a data frame that has arrived."""
        self._bytes += header.payload_length
        self._records += header.record_count

    def more(self) -> Credit | None:
        """The credit to grant now that half of it is used; otherwise None."""
        used_bytes = self._bytes + CREDIT_BYTES - self._granted_bytes
        used_records = self._records + CREDIT_RECORDS - self._granted_records
        if used_bytes < CREDIT_BYTES // 2 and used_records < CREDIT_RECORDS // 2:
            return None
        self._granted_bytes = self._bytes + CREDIT_BYTES
        self._granted_records = self._records + CREDIT_RECORDS
        return self.granted
