"""Tells how many bytes a connection has ready, before receiving them."""

from __future__ import annotations

import array
import fcntl
import termios

__all__ = ["queued_size"]


def queued_size(connection: int) -> int:
    """Bytes in the receive queue of a socket; 0 where the system does not say."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(connection, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]
