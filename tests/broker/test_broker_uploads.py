"""Uploads of batches in pieces: quick ones, slow ones, and those that are never completed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from seawall.broker.ring import BrokerRing, Stop, TopicDefaults
from seawall.broker.uploads import Upload, Uploads
from seawall.errors import FullError, InvalidInputError, InvariantError, LimitError, WrongStateError
from seawall.fabric import records
from seawall.fabric.arrays import Bytes, FabricArrays
from seawall.kernels.runtime.slots import ready_slots
from seawall.limits import BROKER_UPLOADS_MAX
from seawall.wire.format.codes import AckLevel

Make = Callable[..., Bytes]
BLOG = 64 * 1024
SLOTS = 64
LIFE_NS = 10_000_000


@pytest.fixture
def uploads(ring: BrokerRing) -> Uploads:
    return Uploads(ring, life_ms=10)


def receive(upload: Upload, batch: Bytes, count: int) -> None:
    upload.space[:count] = batch[upload.arrived : upload.arrived + count]
    upload.received(count)


def stored(arrays: FabricArrays, index: int) -> bytes:
    entry = arrays.pbr[1][index % SLOTS]
    at = int(entry["blog_offset"]) % BLOG
    return arrays.blogs[1][at : at + int(entry["size"])].tobytes()


def test_a_quick_upload_is_received_in_the_ring(
    arrays: FabricArrays, ring: BrokerRing, uploads: Uploads, defaults: TopicDefaults, make_batch: Make
) -> None:
    sent = make_batch(4, 1000)
    upload = uploads.begin(70, 1000, 0)
    assert np.shares_memory(upload.space, arrays.blogs[1])
    receive(upload, sent, 600)
    assert uploads.expire(LIFE_NS - 1) == 0
    with pytest.raises(WrongStateError, match="400 bytes"):
        uploads.finish(upload, defaults)
    receive(upload, sent, 400)
    assert ready_slots(arrays.pbr_words[1], records.PBR_TOKEN, 0, SLOTS) == 0
    assert uploads.finish(upload, defaults)
    assert stored(arrays, 0) == sent.tobytes()
    assert (ring.claimed, len(uploads)) == (1, 0)
    assert uploads.expire(10 * LIFE_NS) == 0


def test_a_slow_upload_moves_to_private_memory_and_releases_its_slot(
    arrays: FabricArrays, ring: BrokerRing, uploads: Uploads, defaults: TopicDefaults, make_batch: Make
) -> None:
    sent = make_batch(4, 1000)
    upload, other = uploads.begin(70, 1000, 0), uploads.begin(71, 500, 1)
    receive(upload, sent, 600)
    ring.publish(make_batch(9), 72, defaults)
    assert uploads.expire(LIFE_NS) == 1
    assert not np.shares_memory(upload.space, arrays.blogs[1])
    assert (upload.index, other.index) == (None, 1)
    assert arrays.pbr[1]["flags"][0] == records.FLAG_NOP
    assert arrays.pbr[1]["size"][0] == 0
    arrays.blogs[1][:1024] = 0xEE  # the bytes it had may be another batch's by now
    receive(upload, sent, 400)
    assert uploads.finish(upload, defaults)
    assert stored(arrays, 3) == sent.tobytes()
    assert uploads.expire(LIFE_NS + 1) == 1


def test_an_upload_to_a_full_ring_starts_in_private_memory_and_waits(
    arrays: FabricArrays, ring: BrokerRing, uploads: Uploads, make_batch: Make
) -> None:
    from_topic = TopicDefaults(0, AckLevel.ORDERED)
    assert ring.publish(np.concatenate([make_batch(1, 96)] * SLOTS), 70, from_topic).stop is Stop.DONE
    sent = make_batch(2)
    upload = uploads.begin(70, sent.size, 0)
    assert upload.index is None
    receive(upload, sent, sent.size)
    assert not uploads.finish(upload, from_topic)
    assert ring.answers().size == SLOTS
    arrays.completion_vector[1]["completed"] = 1
    assert uploads.finish(upload, from_topic)
    assert stored(arrays, SLOTS) == sent.tobytes()


def test_a_cancelled_upload_leaves_a_nop_and_is_over(
    arrays: FabricArrays, uploads: Uploads, defaults: TopicDefaults
) -> None:
    moved, reserved = uploads.begin(70, 1000, 0), uploads.begin(71, 1000, LIFE_NS)
    uploads.begin(72, 1000, LIFE_NS)
    uploads.expire(LIFE_NS)
    for upload in (moved, reserved):
        uploads.cancel(upload)
        with pytest.raises(WrongStateError, match="begin another one"):
            uploads.cancel(upload)
        with pytest.raises(WrongStateError, match="begin another one"):
            uploads.finish(upload, defaults)
    assert arrays.pbr[1]["flags"][:3].tolist() == [records.FLAG_NOP, records.FLAG_NOP, 0]
    assert len(uploads) == 1


def test_bytes_that_are_no_batch_are_refused(uploads: Uploads, defaults: TopicDefaults) -> None:
    reserved, private = uploads.begin(70, 300, 9), uploads.begin(71, 300, 0)
    uploads.expire(LIFE_NS)
    for upload in (reserved, private):
        receive(upload, np.zeros(300, np.uint8), 300)
        with pytest.raises(InvalidInputError, match=r"abandon it|cancel the upload"):
            uploads.finish(upload, defaults)
        uploads.cancel(upload)


def test_two_batches_in_one_upload_are_refused(uploads: Uploads, defaults: TopicDefaults, make_batch: Make) -> None:
    upload = uploads.begin(71, 400, 0)
    receive(upload, np.concatenate([make_batch(1), make_batch(2)]), 400)
    with pytest.raises(InvalidInputError, match="abandon it"):
        uploads.finish(upload, defaults)


def test_a_slot_that_was_abandoned_elsewhere_is_a_bug(
    ring: BrokerRing, uploads: Uploads, defaults: TopicDefaults, make_batch: Make
) -> None:
    upload = uploads.begin(70, 200, 0)
    receive(upload, make_batch(1), 200)
    ring.abandon(0)
    with pytest.raises(InvariantError, match="INV-BROKER-CLAIM-ENDS"):
        uploads.finish(upload, defaults)


def test_uploads_are_bounded_in_number_and_size(uploads: Uploads) -> None:
    with pytest.raises(LimitError, match="95 bytes"):
        uploads.begin(70, 95, 0)
    with pytest.raises(LimitError, match=r"fabric\.blog_size"):
        uploads.begin(70, BLOG + 1, 0)
    for _ in range(BROKER_UPLOADS_MAX):
        uploads.begin(70, 96, 0)
    with pytest.raises(FullError, match="later"):
        uploads.begin(70, 96, 0)


@pytest.mark.parametrize("count", [-1, 97])
def test_more_bytes_than_were_announced_are_refused(uploads: Uploads, count: int) -> None:
    with pytest.raises(InvalidInputError, match="only 96 are missing"):
        uploads.begin(70, 96, 0).received(count)
