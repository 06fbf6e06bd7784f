"""Room in the log for controls: what must work on a full disk gets what appends have left for it, and the ballast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seawall import limits
from seawall.core.types import TimestampNs
from seawall.engine.log_writer import LogWriter
from seawall.errors import DiskFullError
from seawall.storage.control_batches import SimpleControl
from seawall.storage.control_deletes import DeleteRecords
from seawall.storage.control_documents import FloorRaise, Loss, TermStart, TopicDelete
from seawall.storage.directory import DataDirectory

#: Room in the log that appends leave to deletes and to the next opening, for when the disk is full.
HEADROOM: Final = 16 * limits.KIB
_USES_HEADROOM: Final = (TopicDelete, DeleteRecords, FloorRaise, TermStart, Loss)


def reserve_control(
    writer: LogWriter, directory: DataDirectory, parts: Sequence[SimpleControl], length: int, now_ns: TimestampNs
) -> None:
    """Room in the log for a control of these parts with a block of `length` bytes; `DiskFullError` if there is none."""
    uses_headroom = all(isinstance(part, _USES_HEADROOM) for part in parts)
    needed = length + limits.BATCH_HEADER_SIZE + (0 if uses_headroom else HEADROOM)
    try:
        writer.reserve(needed, now_ns)
    except DiskFullError:
        if not uses_headroom or not directory.has_ballast:
            raise
        directory.release_ballast()
        writer.reserve(needed, now_ns, small=True)
