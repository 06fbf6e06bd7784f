import time

from seawall.io.process.clocks import OsClock


def test_the_clocks_are_those_of_the_machine():
    clock = OsClock()
    before = time.time_ns()
    assert before <= clock.wall_ns() <= time.time_ns()
    before = time.monotonic_ns()
    assert before <= clock.monotonic_ns() <= time.monotonic_ns()
