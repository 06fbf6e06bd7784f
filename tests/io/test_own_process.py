"""The process id, and random bytes."""

import os

from seawall.io.process.own_process import process_id, random_bytes


def test_process_id_is_that_of_the_running_process() -> None:
    assert process_id() == os.getpid()


def test_random_bytes_have_the_requested_length_and_differ() -> None:
    assert len(random_bytes(16)) == 16
    assert random_bytes(16) != random_bytes(16)
