"""The clocks of the operating system.

Nothing else in Seawall reads `time`, so that a simulated clock can replace this one. The monotonic clock counts from
the boot of the machine and is the same for all its processes, so that the processes of a pod can compare timestamps.
"""

from __future__ import annotations

import time

__all__ = ["OsClock"]


class OsClock:
    """Wall and monotonic time of the operating system."""

    __slots__ = ()

    # The functions without a wrapper: a small batch reads the clock several times.
    #: Nanoseconds since the Unix epoch; may step back.
    wall_ns = staticmethod(time.time_ns)
    #: Nanoseconds since some fixed point; never steps back.
    monotonic_ns = staticmethod(time.monotonic_ns)
