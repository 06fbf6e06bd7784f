"""Batches whose checksum follows them on the wire are stored like any other, however their bytes arrive."""

import os

import pytest
from lwp2_peer import world
from wire_damage import flipped, with_sum_behind

from seawall.kernels.codec.frames import SUM_FRAME_SIZE
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import AckStatus, ErrorCode, Features
from seawall.wire.lwp2.session import Error

OK, DUPLICATE = int(AckStatus.OK), int(AckStatus.DUPLICATE)
#: A small batch, one of several frames a receive, ones for which memory is lent, one of several receives.
SIZES = [3, 5_000, 400 * KIB, 600 * KIB, 3 * MIB]


async def stored(log):
    """All values, however many reads they take; reading verifies headers and blocks."""
    found = []
    while batches := await log.read("events", from_seq=len(found) + 1, max_bytes=8 * MIB):
        for batch in batches:
            found += [record.value for record in batch]
    return found


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_batches_with_trailing_checksums_are_stored_beside_others(on_loop, tmp_path, durability):
    values = [os.urandom(size + number) for size in SIZES for number in range(8)]

    async def work():
        async with world(tmp_path, durability=durability) as made:
            peer = await made.peer()
            assert (await peer.publish(1, b"first"))["status"] == OK
            for number, value in enumerate(values):
                plain = peer.batch(1, value)
                peer.send(plain if number % 4 == 3 else with_sum_behind(plain))
                if number % 2:
                    rows = await peer.acks(2)
                    assert {row["status"] for row in rows} == {OK}
            assert await stored(made.log) == [b"first", *values]
            peer.close()

    on_loop(work())


@pytest.mark.parametrize("size", SIZES)
def test_the_last_bytes_may_arrive_later(on_each_loop, tmp_path, size):
    async def work():
        async with world(tmp_path, durability="ephemeral") as made:
            peer = await made.peer()
            values = []
            for left in (1, 4, 5, SUM_FRAME_SIZE - 1, SUM_FRAME_SIZE, SUM_FRAME_SIZE + 1, SUM_FRAME_SIZE + 3):
                values.append(os.urandom(size))
                frame = with_sum_behind(peer.batch(1, values[-1]))
                peer.send(frame[:-left])
                await peer.until_received()
                peer.send(frame[-left:])
                (row,) = await peer.acks(1)
                assert row["status"] == OK
            assert await stored(made.log) == values
            peer.close()

    on_each_loop(work())


def test_batches_beyond_the_window_wait_and_are_stored(on_loop, tmp_path):
    """The window is full in the middle of what was received: the rest of it is split a second time."""

    async def work():
        async with world(tmp_path, durability="fsync") as made:
            peer = await made.peer(window_batches=2)
            values = [b"%d" % number for number in range(20)]
            peer.send(b"".join(with_sum_behind(peer.batch(1, value)) for value in values))
            assert len(await peer.acks(20)) == 20
            assert await stored(made.log) == values
            peer.close()

    on_loop(work())


@pytest.mark.parametrize("size", [3, 600 * KIB])
@pytest.mark.parametrize("is_first_trailing", [False, True])
def test_a_duplicate_is_detected_wherever_its_checksum_is(on_loop, tmp_path, size, is_first_trailing):
    async def work():
        async with world(tmp_path, durability="ephemeral") as made:
            peer = await made.peer()
            await peer.publish(1, b"first")
            plain = peer.batch(1, os.urandom(size))
            for is_trailing, status in ((is_first_trailing, OK), (not is_first_trailing, DUPLICATE)):
                peer.send(with_sum_behind(plain) if is_trailing else plain)
                (row,) = await peer.acks(1)
                assert (row["status"], row["base_seq"]) == (status, 2)
            assert len(await stored(made.log)) == 2
            peer.close()

    on_loop(work())


DAMAGE = {
    "block": (lambda batch: flipped(with_sum_behind(batch), 120), ErrorCode.CRC_MISMATCH),
    "checksum": (lambda batch: with_sum_behind(batch, crc=1), ErrorCode.CRC_MISMATCH),
    "frame of the checksum": (lambda batch: flipped(with_sum_behind(batch), -1), ErrorCode.INVALID_PAYLOAD),
    "another frame": (
        lambda batch: with_sum_behind(batch)[:-SUM_FRAME_SIZE] + batch[:SUM_FRAME_SIZE],
        ErrorCode.INVALID_PAYLOAD,
    ),
}


@pytest.mark.parametrize("size", [3, 400 * KIB, 600 * KIB])
def test_damage_is_detected_and_nothing_is_stored(on_loop, tmp_path, size):
    async def work():
        async with world(tmp_path, durability="ephemeral") as made:
            valid = []
            for client_id, (what, (damaged, code)) in enumerate(DAMAGE.items(), 1):
                peer = await made.peer(client_id)
                for _ in range(3):
                    valid.append(bytes(size))
                    assert (await peer.publish(1, valid[-1]))["status"] == OK
                peer.send(damaged(peer.batch(1, os.urandom(size + 60))))
                error = await peer.answer(Error)
                assert (what, error.code, error.closes) == (what, code, True)
                await peer.ended()
            other = await made.peer(client_id=99)
            assert (await other.publish(1, b"after"))["status"] == OK
            assert await stored(made.log) == [*valid, b"after"]
            other.close()

    on_loop(work())


def test_a_checksum_without_a_batch_is_ignored(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            trailing = with_sum_behind(peer.batch(1, b"never sent"))[-SUM_FRAME_SIZE:]
            peer.send(trailing * 3 + peer.batch(1, b"sent", seq=1) + trailing)
            (row,) = await peer.acks(1)
            assert row["status"] == OK
            assert await stored(made.log) == [b"sent"]
            peer.close()

    on_loop(work())


def test_trailing_checksums_are_a_feature_that_is_granted(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=int(Features.TRAILING_CHECKSUM))
            assert peer.welcome.features == Features.TRAILING_CHECKSUM
            peer.close()

    on_loop(work())
