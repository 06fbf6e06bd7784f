"""What a connection is about to receive, for whoever would rather know before receiving it."""

from __future__ import annotations

import array
import fcntl
import termios

__all__ = ["queued_size"]


def queued_size(connection: int) -> int:
    """Bytes that have come and were not received; 0 where that cannot be told."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(connection, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]
