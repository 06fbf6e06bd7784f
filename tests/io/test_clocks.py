"""`OsClock` reads the clocks of the machine."""

import time

from seawall.io.process.clocks import OsClock


def test_the_clock_reads_the_system_clocks():
    clock = OsClock()
    before = time.time_ns()
    assert before <= clock.wall_ns() <= time.time_ns()
    before = time.monotonic_ns()
    assert before <= clock.monotonic_ns() <= time.monotonic_ns()
