"""A broker in its own process: its batches are complete whenever they are seen, and its ring survives a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seawall.broker.ring import BrokerRing, Stop, TopicDefaults
from seawall.fabric import records
from seawall.fabric.arrays import Bytes, FabricArrays
from seawall.fabric.header import Identity
from seawall.fabric.layout import FabricSizes
from seawall.fabric.mapping import Fabric
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.kernels.runtime import jit
from seawall.kernels.runtime.atomics import load_acquire_u64, store_release_u64
from seawall.kernels.runtime.slots import ready_slots
from seawall.limits import BATCH_HEADER_SIZE, KIB
from seawall.wire.format.batches import BatchSource, parse_batch_header, verify_block
from seawall.wire.format.codes import AckLevel

pytestmark = pytest.mark.skipif(jit.PYTHON_MODE, reason="Python stand-ins are atomic under one GIL only")

SLOTS = 64
BLOG = 64 * KIB
SEEN_MIN = 5 * SLOTS
IDENTITY = Identity(b"boot" * 4, b"data" * 4)

#: Publishes batches of many sizes, answers itself on arrival, and leaves a reservation open in between, until killed.
BROKER = """
import sys
import numpy as np
from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.fabric.header import Identity
from seawall.fabric.mapping import Fabric
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckLevel

fabric = Fabric.attach(OsSharedMemory(), sys.argv[1], Identity(b"boot" * 4, b"data" * 4))
ring, defaults, sent = BrokerRing(fabric.arrays, 1), TopicDefaults(0, AckLevel.ORDERED), 0
while True:
    block = bytes([sent % 251]) * (5 + sent * 997 % 5000)
    fields = dict(topic_id=1, client_id=9, client_seq=sent + 1, session_epoch=1, record_count=1, timestamp_ns=0)
    batch = np.frombuffer(encode_batch(batch_header(block, **fields), block), np.uint8)
    reserved = ring.reserve(700, 0) if sent % 7 == 0 else None
    while ring.publish(batch, 70, defaults).count == 0:
        ring.answers()
        if reserved is not None:
            ring.abandon(reserved)
            reserved = None
    sent += 1
    if reserved is not None:
        ring.abandon(reserved)
"""


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    sizes = FabricSizes(brokers=2, goi_entries=128, pbr_entries=SLOTS, checkpoint_size=8 * KIB, blog_size=BLOG)
    made = Fabric.open_or_create(OsSharedMemory(), str(tmp_path / "seawall.fabric"), sizes, IDENTITY)
    made.share()
    yield made
    made.close()


def client_seq_of(arrays: FabricArrays, index: int) -> int:
    """The client seq of the batch of a slot, which must be sound, or 0 of a NOP."""
    entry = arrays.pbr[1][index % SLOTS]
    if int(entry["flags"]) & records.FLAG_NOP:
        assert entry["size"] == 0
        return 0
    at = int(entry["blog_offset"]) % BLOG
    batch: Bytes = arrays.blogs[1][at : at + int(entry["size"])]
    header = parse_batch_header(batch[:BATCH_HEADER_SIZE], source=BatchSource.CLIENT)
    verify_block(header, batch[BATCH_HEADER_SIZE:])
    assert header.client_seq == entry["client_seq"]
    return int(header.client_seq)


def test_a_killed_broker_leaves_complete_batches_and_a_usable_ring(
    fabric: Fabric, make_batch: Callable[..., Bytes]
) -> None:
    arrays, seen, index = fabric.arrays, [0], 0
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", BROKER, fabric.path], stderr=subprocess.PIPE, text=True
    )
    try:
        while index < SEEN_MIN:
            if ready_slots(arrays.pbr_words[1], records.PBR_TOKEN, index, 1):
                seen.append(client_seq_of(arrays, index))
                index += 1
                store_release_u64(arrays.completion_words[1], records.COMPLETION_COMPLETED, index)
            elif child.poll() is not None:
                pytest.fail(child.communicate()[1])
    finally:
        child.kill()
        child.communicate()
    claimed = load_acquire_u64(arrays.tail_words[1], records.TAIL_CLAIMED)
    ring = BrokerRing(arrays, 1)
    assert ring.claimed == claimed
    assert ready_slots(arrays.pbr_words[1], records.PBR_TOKEN, index, SLOTS) == claimed - index
    seen += [client_seq_of(arrays, each) for each in range(index, claimed)]
    batches = [each for each in seen if each]
    assert batches == list(range(1, len(batches) + 1))
    store_release_u64(arrays.completion_words[1], records.COMPLETION_COMPLETED, claimed)
    done = ring.publish(make_batch(3, BLOG), 70, TopicDefaults(2, AckLevel.ORDERED))
    assert (done.stop, done.first) == (Stop.DONE, claimed)
    assert client_seq_of(arrays, claimed) == 3
    del arrays, ring
