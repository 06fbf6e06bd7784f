"""The number of the process, and its random bytes."""

import os

from seawall.io.process.own_process import process_id, random_bytes


def test_the_number_is_that_of_the_running_process() -> None:
    assert process_id() == os.getpid()


def test_random_bytes_are_as_many_as_asked_for_and_differ() -> None:
    assert len(random_bytes(16)) == 16
    assert random_bytes(16) != random_bytes(16)
