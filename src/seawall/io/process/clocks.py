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

    # The functions themselves: a clock is read several times for each small batch.
    #: Nanoseconds since the Unix epoch; may step back.
    wall_ns = staticmethod(time.time_ns)
    #: Nanoseconds since some fixed point; never steps back.
    monotonic_ns = staticmethod(time.monotonic_ns)
