"""Batches whose checksum comes behind them are stored as if it had been in front: nobody can tell, whatever comes."""

import os

import pytest
from lwp2_peer import has_received, world
from wire_damage import flipped, with_sum_behind

from seawall.kernels.codec.frames import SUM_FRAME_SIZE
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import AckStatus, ErrorCode, Features
from seawall.wire.lwp2.session import Error

OK, DUPLICATE = int(AckStatus.OK), int(AckStatus.DUPLICATE)
#: One that is like many others, ones for which memory is lent, one of several receives.
SIZES = [3, 5_000, 400 * KIB, 600 * KIB, 3 * MIB]


async def stored(log):
    """All values, however many reads they take; reading verifies headers and blocks."""
    found = []
    while batches := await log.read("events", from_seq=len(found) + 1, max_bytes=8 * MIB):
        for batch in batches:
            found += [record.value for record in batch]
    return found


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
@pytest.mark.parametrize("size", SIZES)
def test_they_are_stored_beside_others(on_loop, tmp_path, durability, size):
    values = [os.urandom(size + number) for number in range(12)]

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
@pytest.mark.parametrize("left", [1, 4, 5, SUM_FRAME_SIZE - 1, SUM_FRAME_SIZE, SUM_FRAME_SIZE + 1, SUM_FRAME_SIZE + 3])
def test_however_their_last_bytes_come(on_loop, tmp_path, size, left):
    async def work():
        async with world(tmp_path, durability="ephemeral") as made:
            peer = await made.peer()
            values = [os.urandom(size) for _ in range(4)]
            for value in values:
                frame = with_sum_behind(peer.batch(1, value))
                peer.send(frame[:-left])
                await has_received(made, len(frame) - left)
                peer.send(frame[-left:])
                (row,) = await peer.acks(1)
                assert row["status"] == OK
            assert await stored(made.log) == values
            peer.close()

    on_loop(work())


def test_what_has_to_wait_is_taken_later(on_loop, tmp_path):
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
@pytest.mark.parametrize("is_first_behind", [False, True])
def test_a_repetition_is_known_wherever_its_checksum_is(on_loop, tmp_path, size, is_first_behind):
    async def work():
        async with world(tmp_path, durability="ephemeral") as made:
            peer = await made.peer()
            await peer.publish(1, b"first")
            plain = peer.batch(1, os.urandom(size))
            for is_behind, status in ((is_first_behind, OK), (not is_first_behind, DUPLICATE)):
                peer.send(with_sum_behind(plain) if is_behind else plain)
                (row,) = await peer.acks(1)
                assert (row["status"], row["base_seq"]) == (status, 2)
            assert len(await stored(made.log)) == 2
            peer.close()

    on_loop(work())


@pytest.mark.parametrize("size", [3, 400 * KIB, 600 * KIB])
@pytest.mark.parametrize(
    ("damaged", "code"),
    [
        (lambda batch: flipped(with_sum_behind(batch), 120), ErrorCode.CRC_MISMATCH),
        (lambda batch: with_sum_behind(batch, crc=1), ErrorCode.CRC_MISMATCH),
        (lambda batch: flipped(with_sum_behind(batch), -1), ErrorCode.INVALID_PAYLOAD),
        (lambda batch: with_sum_behind(batch)[:-SUM_FRAME_SIZE] + batch[:SUM_FRAME_SIZE], ErrorCode.INVALID_PAYLOAD),
    ],
    ids=["block", "checksum", "frame of the checksum", "another frame"],
)
def test_damage_is_found_and_nothing_is_kept(on_loop, tmp_path, size, damaged, code):
    async def work():
        async with world(tmp_path, durability="ephemeral") as made:
            peer = await made.peer()
            good = [bytes(size)] * 3
            for value in good:
                assert (await peer.publish(1, value))["status"] == OK
            peer.send(damaged(peer.batch(1, os.urandom(size + 60))))
            error = await peer.answer(Error)
            assert (error.code, error.closes) == (code, True)
            await peer.ended()
            other = await made.peer(client_id=2)
            assert (await other.publish(1, b"goes on"))["status"] == OK
            assert await stored(made.log) == [*good, b"goes on"]
            other.close()

    on_loop(work())


def test_a_checksum_of_nothing_is_nobodys_business(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            behind = with_sum_behind(peer.batch(1, b"never sent"))[-SUM_FRAME_SIZE:]
            peer.send(behind * 3 + peer.batch(1, b"sent", seq=1) + behind)
            (row,) = await peer.acks(1)
            assert row["status"] == OK
            assert await stored(made.log) == [b"sent"]
            peer.close()

    on_loop(work())


def test_it_is_a_feature_that_is_granted(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=int(Features.TRAILING_CHECKSUM))
            assert peer.welcome.features == Features.TRAILING_CHECKSUM
            peer.close()

    on_loop(work())
