"""Arbitrary bytes as the header and as a checkpoint of a fabric, with correct checksums."""

import contextlib
import random
from collections.abc import Callable

import numpy as np
import pytest
from fuzz_mutation import mutate

from seawall.errors import SeawallError
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.checkpoint import Checkpoint, newest_checkpoint, write_checkpoint
from seawall.fabric.header import FabricHeader, Identity, header_checksum
from seawall.fabric.layout import HEADER_SIZE, FabricLayout, FabricSizes
from seawall.limits import KIB
from seawall.wire.format.frames import checksum

Target = Callable[[bytes], None]

SIZES = FabricSizes(brokers=1, goi_entries=128, pbr_entries=64, checkpoint_size=8 * KIB, blog_size=64 * KIB)
LAYOUT = FabricLayout.of(SIZES)


def read_header(data: bytes) -> None:
    whole = bytearray(data[:HEADER_SIZE].ljust(HEADER_SIZE, b"\0"))
    for _ in range(2):
        with contextlib.suppress(SeawallError):
            FabricHeader.parse(bytes(whole), "fuzzed")
        whole[12:16] = header_checksum(whole).to_bytes(4, "little")


def read_checkpoints(data: bytes) -> None:
    arrays = FabricArrays(memoryview(bytearray(LAYOUT.size)), LAYOUT)
    slot = arrays.checkpoints[1]
    content = np.frombuffer(data[: slot.size], np.uint8)
    slot[: content.size] = content
    newest_checkpoint(arrays)
    slot[44:48] = np.frombuffer(checksum(slot[:44].tobytes()).to_bytes(4, "little"), np.uint8)
    found = newest_checkpoint(arrays)
    assert found is None or found.clients.size + found.topics.size < slot.size


def sample_checkpoint() -> bytes:
    arrays = FabricArrays(memoryview(bytearray(LAYOUT.size)), LAYOUT)
    rows = np.arange(192, dtype=np.uint8)
    write_checkpoint(arrays, Checkpoint(1, 2, 3, 4, rows[:128], rows[128:]))
    return arrays.checkpoints[1][:256].tobytes()


TARGETS: dict[str, Target] = {"header": read_header, "checkpoint": read_checkpoints}

CORPUS: dict[str, list[bytes]] = {
    "header": [FabricHeader(Identity(b"b" * 16, b"d" * 16), SIZES, 5).encode()],
    "checkpoint": [sample_checkpoint()],
}


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_give_only_typed_errors(name: str) -> None:
    random_source = random.Random(f"seawall {name}")
    for data in [*CORPUS[name], b""]:
        TARGETS[name](data)
    for _ in range(300):
        TARGETS[name](mutate(random_source, random_source.choice(CORPUS[name])))
