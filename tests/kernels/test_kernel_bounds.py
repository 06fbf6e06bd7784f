"""Parsing bytes that claim gigabytes needs no memory for them: the test limits the address space."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from seawall.kernels.runtime import jit

pytestmark = pytest.mark.skipif(
    jit.PYTHON_MODE or not sys.platform.startswith("linux"), reason="compiled kernels, and Linux's count of pages"
)

SLACK = 24 * 1024 * 1024

SCRIPT = """
import resource, struct, sys
import crc32c
import numpy as np
from seawall.kernels.codec import blocks, columns, frames
from seawall.kernels.runtime import warm

warm.warm()
random = np.random.default_rng(11)
frame_rows, offsets = np.zeros(64, frames.FRAME_ROW), np.zeros(65, np.int64)
starts, lengths = np.zeros((2, columns.COLUMN_COUNT, 64), np.int64)
moments, state = np.zeros(64, np.int64), np.zeros(frames.STATE_SIZE, np.int64)


def parse(data):
    block = np.frombuffer(bytearray(data), np.uint8)
    for rules in (0, 1, 2):
        count = blocks.scan_block(block, 0, block.size, rules, 64, offsets)
        assert blocks.check_block(block, 0, block.size, crc32c.crc32c(data), rules, 64, offsets) == count
        if count > 0:
            columns.locate_envelopes(block, offsets, count, starts, lengths, moments)
    state[:] = 0
    frames.split_frames(block, 0, block.size, 64 << 20, frame_rows, state)
    assert 0 <= state[frames.STATE_CONSUMED] <= block.size
    assert state[frames.STATE_NEEDED] <= (64 << 20) + 44 + 144


def frame(kind, length):
    front = b"LANC" + struct.pack("<BBH", 2, kind, 0x51)
    back = struct.pack("<QQIIII", 1, 2, 3, length, 0, 0)
    return front + struct.pack("<I", crc32c.crc32c(front + back)) + back


def hostile():
    for length in (0, 1, 51, 52, 1 << 20, 1 << 26, (1 << 26) + 145, 1 << 31, (1 << 32) - 1):
        size = struct.pack("<I", length)
        yield b"\\1" + size
        yield b"\\xff\\2\\0" + size
        yield b"\\xff\\1\\0" + size + b"\\2\\0" + size
        inner = b"\\2\\0" + size + b"xyz"
        yield b"\\xff\\1\\0" + struct.pack("<I", len(inner)) + inner
        headers = b"\\x20\\0\\xff\\xff\\0\\0" + size
        yield b"\\xff\\1\\0" + struct.pack("<I", len(headers)) + headers
        for kind in (4, 8, 0x20, 0x40, 0):
            yield frame(kind, length) + bytes(52)
    for _ in range(1000):
        yield random.integers(0, 256, random.integers(0, 300), np.uint8).tobytes()
        yield b"LANC" + random.integers(0, 4, random.integers(0, 100), np.uint8).tobytes()


parse(b"\\1\\0\\0\\0\\0")
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    np.zeros(4 * int(sys.argv[1]), np.uint8)
except MemoryError:
    pass
else:
    sys.exit("the limit does not hold")
parsed = 0
for data in hostile():
    parse(data)
    for cut in range(0, min(len(data), 60), 7):
        parse(data[:cut])
    parsed += 1
print(parsed)
"""


def test_hostile_lengths_allocate_no_memory() -> None:
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(SLACK)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert int(done.stdout) > 2_000
