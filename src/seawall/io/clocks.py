"""The clocks of the real machine.

Nothing else in Seawall reads `time`, so that a simulated clock can stand in for this one. The monotonic clock counts
from the boot of the machine and is the same for all its processes, so that stamps may be compared across a pod.
"""

from __future__ import annotations

import time

__all__ = ["OsClock"]


class OsClock:
    """Wall and monotonic time of the operating system."""

    __slots__ = ()

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may step back."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed point; never steps back."""
        return time.monotonic_ns()
