"""Fixtures: a fabric with two brokers, batches for their rings, and the results that a frontier would write."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest

from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.core.types import ClientId, ClientSeq, TimestampNs, TopicId
from seawall.fabric import records
from seawall.fabric.arrays import Bytes, FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.kernels.runtime.slots import publish_slot
from seawall.limits import KIB
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckLevel, AckStatus

SLOTS = 64
BLOG = 64 * KIB


@pytest.fixture
def arrays() -> FabricArrays:
    sizes = FabricSizes(brokers=2, goi_entries=128, pbr_entries=SLOTS, checkpoint_size=8 * KIB, blog_size=BLOG)
    layout = FabricLayout.of(sizes)
    made = FabricArrays(memoryview(mmap.mmap(-1, layout.size)), layout)
    made.control["term"] = 3
    return made


@pytest.fixture
def ring(arrays: FabricArrays) -> BrokerRing:
    return BrokerRing(arrays, 1)


@pytest.fixture
def defaults() -> TopicDefaults:
    return TopicDefaults(2, AckLevel.ORDERED)


@pytest.fixture
def make_batch() -> Callable[..., Bytes]:
    """A batch as a client sends it, by default of 200 bytes."""

    def make(client_seq: int = 1, size: int = 200, **fields: int) -> Bytes:
        block = bytes(size - 96)
        header = batch_header(
            block,
            topic_id=TopicId(4),
            client_id=ClientId(9),
            client_seq=ClientSeq(client_seq),
            session_epoch=6,
            record_count=2,
            timestamp_ns=TimestampNs(0),
            **fields,
        )
        return np.frombuffer(encode_batch(header, block), np.uint8)

    return make


@pytest.fixture
def decide(arrays: FabricArrays) -> Callable[..., None]:
    """Write the result of one slot of broker 1, as the commit frontier does."""

    def settle(index: int, position: int, status: AckStatus = AckStatus.OK, reason: int = 0) -> None:
        result = np.zeros(1, records.RESULT)
        result["position"], result["base_seq"], result["timestamp_ns"] = position, position + 1000, position + 2000
        result["status"], result["reason"] = int(status), reason
        publish_slot(arrays.result_words[1], records.RESULT_TOKEN, index, result.view(np.int64))

    return settle
