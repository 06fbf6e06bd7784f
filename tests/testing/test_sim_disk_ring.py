"""A disk ring served by a simulated disk: the same submitter, every fault, nothing real."""

import errno

from seawall.io.disk.disk_ring import DiskRing, serve_with
from seawall.testing import SimDisk


def chain(ring: DiskRing, disk: SimDisk, file: object, data: bytes, at: int) -> list[int]:
    """A linked write and sync; their results in order."""
    ring.write(file, [data], at, tag=1, link=True)
    ring.sync(file, tag=2)
    ring.submit()
    assert serve_with(ring, disk.execute) == 2
    return [done.result for done in ring.reap(count=2)]


def new_disk() -> tuple[SimDisk, DiskRing]:
    disk = SimDisk(seed=3)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk, DiskRing(8)


def test_writes_reported_as_synced_survive_a_crash() -> None:
    disk, ring = new_disk()
    file = disk.open("/data/wal", create=True)
    disk.sync_directory("/data")
    assert chain(ring, disk, file, b"kept", 0) == [4, 0]
    ring.write(file, [b"lost"], 4, tag=3)
    ring.submit()
    serve_with(ring, disk.execute)
    assert [done.result for done in ring.reap()] == [4]
    disk.crash(keep="none")
    assert disk.durable_bytes("/data/wal") == b"kept"
    ring.close()


def test_a_failed_sync_poisons_the_ring_and_the_file() -> None:
    """INV-SYNC-FATAL, end to end."""
    disk, ring = new_disk()
    file = disk.open("/data/wal", create=True)
    disk.fail("sync", nth=1, error=errno.EIO)
    assert chain(ring, disk, file, b"gone", 0) == [4, -errno.EIO]
    assert ring.poison == -errno.EIO
    assert chain(ring, disk, file, b"more", 4) == [-errno.EIO, -errno.ECANCELED]
    ring.close()


def test_a_short_write_breaks_the_chain_before_its_sync() -> None:
    disk, ring = new_disk()
    file = disk.open("/data/wal", create=True)
    disk.fail("write", nth=1, error="short")
    written, synced = chain(ring, disk, file, b"0123456789", 0)
    assert 0 < written < 10
    assert synced == -errno.ECANCELED
    assert ring.poison == 0
    ring.close()


def test_a_full_disk_refuses_the_write_and_leaves_the_ring_usable() -> None:
    disk, ring = SimDisk(seed=3, capacity=8 * 4096), DiskRing(8)
    disk.make_directory("/data")
    file = disk.open("/data/wal", create=True)
    assert chain(ring, disk, file, bytes(16 * 4096), 0)[1] == -errno.ECANCELED
    file.truncate(0)
    assert chain(ring, disk, file, b"fits", 0) == [4, 0]
    ring.close()
