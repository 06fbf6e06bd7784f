"""Creating, finding, sharing and removing a fabric; each mismatch is an error that names the remedy."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from seawall.config import FabricConfig
from seawall.errors import (
    ChecksumError,
    ConflictError,
    CorruptionError,
    DiskFullError,
    InvalidInputError,
    LockedError,
    NotFoundError,
    UnsupportedError,
    WrongStateError,
)
from seawall.fabric import records
from seawall.fabric.header import FabricHeader, Identity, header_checksum
from seawall.fabric.layout import HEADER_AT, HEADER_SIZE, FabricLayout, FabricSizes
from seawall.fabric.mapping import Fabric, Start
from seawall.fabric.naming import fabric_path, forget_fabric, record_fabric, recorded_fabric, remove_leftover_fabric
from seawall.io.disk.files import OsFiles
from seawall.io.interfaces import Mapping, SharedMemory
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.kernels.runtime.slots import publish_slot, ready_slots
from seawall.testing import SimDisk, SimHost, SimSharedMemory

Parts = tuple[SharedMemory, str, FabricSizes, Identity]


@pytest.fixture
def parts(shared_memory: SharedMemory, path: str, sizes: FabricSizes, identity: Identity) -> Parts:
    return shared_memory, path, sizes, identity


def other_boot(identity: Identity) -> Identity:
    return Identity(bytes(16), identity.directory_id)


def rewrite_header(memory: SharedMemory, path: str, **fields: int) -> None:
    """Change fields of the header, with the checksum that fits unless it is given."""
    mapping = memory.attach(path, 4096)
    data = np.frombuffer(bytes(mapping.view[HEADER_AT : HEADER_AT + HEADER_SIZE]), records.HEADER).copy()
    for name, value in fields.items():
        data[0][name] = value
    if "crc" not in fields:
        data[0]["crc"] = header_checksum(data.tobytes())
    mapping.view[HEADER_AT : HEADER_AT + HEADER_SIZE] = data.tobytes()
    mapping.close()


def test_a_new_fabric_is_cold_and_zero(parts: Parts) -> None:
    memory, path, sizes, identity = parts
    fabric = Fabric.open_or_create(memory, path, sizes, identity, created_ns=5)
    assert (fabric.start, fabric.why) == (Start.COLD, "no fabric existed")
    assert fabric.header == FabricHeader(identity, sizes, 5)
    assert fabric.layout == FabricLayout.of(sizes)
    assert not fabric.arrays.control.view(np.uint8).any()
    assert not fabric.arrays.goi_words.any()
    assert FabricHeader.parse(fabric.arrays.header.tobytes(), path) == fabric.header
    fabric.close()


def test_the_same_boot_and_directory_are_found_warm(parts: Parts) -> None:
    first = Fabric.open_or_create(*parts)
    publish_slot(first.arrays.pbr_words[1], records.PBR_TOKEN, 5, np.arange(8, dtype=np.int64))
    first.arrays.control_words[records.CONTROL_COMMITTED] = 17
    first.close()
    second = Fabric.open_or_create(*parts)
    assert second.start is Start.WARM
    assert second.arrays.control[0]["committed"] == 17
    assert ready_slots(second.arrays.pbr_words[1], records.PBR_TOKEN, 5, 9) == 1
    second.close()


@pytest.mark.parametrize("which", ["boot_id", "directory_id"])
def test_another_boot_or_directory_starts_cold(parts: Parts, which: str) -> None:
    memory, path, sizes, identity = parts
    first = Fabric.open_or_create(*parts)
    first.arrays.control_words[records.CONTROL_COMMITTED] = 17
    first.close()
    now = dataclasses.replace(identity, **{which: b"another" + bytes(9)})
    second = Fabric.open_or_create(memory, path, sizes, now)
    assert second.start is Start.COLD
    assert second.why == now.mismatch(identity) != ""
    assert not second.arrays.control_words.any()
    assert second.header.identity == now
    second.close()


def test_another_version_of_another_boot_starts_cold_too(parts: Parts) -> None:
    memory, path, sizes, identity = parts
    Fabric.open_or_create(*parts).close()
    rewrite_header(memory, path, version=9)
    fabric = Fabric.open_or_create(memory, path, sizes, other_boot(identity))
    assert fabric.start is Start.COLD
    fabric.close()


def test_an_unfinished_creation_starts_cold(parts: Parts) -> None:
    memory, path, sizes, _ = parts
    memory.create(path, FabricLayout.of(sizes).size).close()
    fabric = Fabric.open_or_create(*parts)
    assert (fabric.start, fabric.why) == (Start.COLD, "its creation was not finished")
    fabric.close()


def test_a_creation_that_ended_before_the_first_byte_starts_cold(
    path: str, sizes: FabricSizes, identity: Identity
) -> None:
    Path(path).touch()
    fabric = Fabric.open_or_create(OsSharedMemory(), path, sizes, identity)
    assert (fabric.start, fabric.why) == (Start.COLD, "its creation was not finished")
    fabric.close()


def test_a_fabric_that_does_not_fit_is_kept_and_the_difference_is_named(parts: Parts) -> None:
    memory, path, sizes, identity = parts
    Fabric.open_or_create(*parts).close()
    with pytest.raises(
        ConflictError, match=r"other sizes than configured: brokers 2 \(1\); start and stop its pod once"
    ):
        Fabric.open_or_create(memory, path, dataclasses.replace(sizes, brokers=1), identity)
    rewrite_header(memory, path, version=2)
    with pytest.raises(UnsupportedError, match="a fabric of version 2"):
        Fabric.open_or_create(*parts)
    rewrite_header(memory, path, version=1, crc=3)
    with pytest.raises(ChecksumError, match="checksum of the header"):
        Fabric.open_or_create(*parts)
    rewrite_header(memory, path)
    warm = Fabric.open_or_create(*parts)
    assert warm.start is Start.WARM
    warm.close()


def test_roles_attach_only_after_the_supervisor_shares(parts: Parts) -> None:
    memory, path, sizes, identity = parts
    supervisor = Fabric.open_or_create(*parts)
    with pytest.raises(LockedError, match="the supervisor is still starting"):
        Fabric.attach(memory, path, identity)
    supervisor.share()
    roles = [Fabric.attach(memory, path, identity, sizes), Fabric.attach(memory, path, identity)]
    roles[0].arrays.tail_words[1][0] = 8
    assert roles[1].arrays.broker_tails[1]["claimed"] == supervisor.arrays.broker_tails[1]["claimed"] == 8
    supervisor.close()
    for role in roles:
        with pytest.raises(LockedError, match="roles of a running pod use it"):
            Fabric.open_or_create(*parts)
        role.close()
    Fabric.open_or_create(*parts).close()


def test_attaching_needs_the_right_fabric(parts: Parts) -> None:
    memory, path, sizes, identity = parts
    with pytest.raises(NotFoundError, match="no such fabric; start its pod first"):
        Fabric.attach(memory, path, identity)
    supervisor = Fabric.open_or_create(*parts)
    supervisor.share()
    with pytest.raises(ConflictError, match="not the requested fabric: it is from before the last reboot"):
        Fabric.attach(memory, path, other_boot(identity))
    with pytest.raises(ConflictError, match="pbr_entries 64"):
        Fabric.attach(memory, path, identity, dataclasses.replace(sizes, pbr_entries=128))
    supervisor.close()


def test_a_running_pod_is_not_discarded(parts: Parts) -> None:
    memory, path, sizes, identity = parts
    supervisor = Fabric.open_or_create(*parts)
    supervisor.share()
    with pytest.raises(LockedError, match="another pod uses this fabric; set another directory for this one"):
        Fabric.open_or_create(memory, path, sizes, other_boot(identity))
    Fabric.attach(memory, path, identity).close()
    supervisor.close()


def test_a_name_is_created_once(parts: Parts) -> None:
    fabric = Fabric.create(*parts)
    with pytest.raises(LockedError, match="the fabric already exists"):
        Fabric.create(*parts)
    fabric.close()


@pytest.mark.parametrize("kind", [OsSharedMemory, SimSharedMemory], ids=["real", "simulated"])
def test_a_fabric_that_is_replaced_during_its_creation_is_refused(
    path: str, sizes: FabricSizes, identity: Identity, kind: type[OsSharedMemory | SimSharedMemory]
) -> None:
    class LosingMemory(kind):
        """Shared memory that another process removes as soon as it is created."""

        def create(self, path: str, length: int) -> Mapping:
            mapping = super().create(path, length)
            self.remove(path)
            return mapping

    with pytest.raises(LockedError, match="another process is taking over this fabric"):
        Fabric.create(LosingMemory(), path, sizes, identity)


def test_a_supervisor_that_lost_its_fabric_gets_an_error(parts: Parts) -> None:
    memory, path, _, _ = parts
    fabric = Fabric.create(*parts)
    memory.remove(path)
    with pytest.raises(LockedError, match="taken over by another supervisor"):
        fabric.share()
    fabric.close()


def test_closing_is_refused_while_arrays_are_in_use(parts: Parts) -> None:
    fabric = Fabric.create(*parts)
    kept = fabric.arrays.blogs[0]
    with pytest.raises(WrongStateError, match="arrays of the fabric are still in use"):
        fabric.close()
    kept[0] = 3
    assert fabric.arrays.blogs[0][0] == 3
    del kept
    fabric.close()
    with pytest.raises(WrongStateError, match="this fabric is closed"):
        fabric.arrays.control.sum()


def test_removal_is_refused_while_roles_run(parts: Parts) -> None:
    memory, path, _, identity = parts
    fabric = Fabric.create(*parts)
    fabric.share()
    role = Fabric.attach(memory, path, identity)
    with pytest.raises(LockedError, match="roles still use the fabric"):
        fabric.remove()
    role.close()
    fabric.remove()
    fabric.arrays.blogs[1][-1] = 1
    fabric.close()
    with pytest.raises(NotFoundError):
        Fabric.open_read_only(memory, path)


def test_read_only_access_changes_nothing_and_needs_no_lock(parts: Parts) -> None:
    memory, path, _, _ = parts
    owner = Fabric.create(*parts)
    seen = Fabric.open_read_only(memory, path)
    owner.arrays.control_words[records.CONTROL_TERM] = 4
    assert seen.arrays.control[0]["term"] == 4
    assert seen.header == owner.header
    with pytest.raises(ValueError, match="read-only"):
        seen.arrays.control_words[0] = 1
    seen.close()
    owner.close()


def test_a_truncated_file_is_not_changed(path: str, sizes: FabricSizes, identity: Identity) -> None:
    memory = OsSharedMemory()
    fabric = Fabric.create(memory, path, sizes, identity)
    fabric.share()
    fabric.require_whole()
    os.truncate(path, 8192)
    with pytest.raises(CorruptionError, match=r"shorter than the \d+ bytes in its header: it was truncated"):
        fabric.require_whole()
    with pytest.raises(CorruptionError, match="it was truncated"):
        Fabric.attach(memory, path, identity)
    with pytest.raises(CorruptionError, match="it was truncated"):
        Fabric.open_read_only(memory, path)
    fabric.close()
    os.truncate(path, 100)
    with pytest.raises(CorruptionError, match="not a Seawall fabric: a file of 100 bytes"):
        Fabric.open_or_create(memory, path, sizes, identity)


def test_every_page_is_reserved(path: str, sizes: FabricSizes, identity: Identity) -> None:
    Fabric.create(OsSharedMemory(), path, sizes, identity).close()
    status = os.stat(path)
    assert status.st_blocks * 512 >= status.st_size == FabricLayout.of(sizes).size
    assert status.st_mode & 0o077 == 0


def test_missing_space_is_reported_before_anything_is_created(sizes: FabricSizes, identity: Identity) -> None:
    need = FabricLayout.of(sizes).size
    memory = SimSharedMemory(capacity=need - 1)
    message = (
        rf"/f: the fabric needs {need} bytes and {need - 1} are free there: lower fabric.brokers \(now 2\) or "
        r"fabric.blog_size \(now 65536\), of which blogs take 131072 bytes, .* or set fabric.directory"
    )
    with pytest.raises(DiskFullError, match=message):
        Fabric.create(memory, "/f", sizes, identity)
    with pytest.raises(NotFoundError):
        Fabric.open_read_only(memory, "/f")
    Fabric.create(SimSharedMemory(capacity=need), "/f", sizes, identity).close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, r"\d+ are free there: lower"),
        (errno.EFBIG, r"files of this process must be smaller \(ulimit -f\)"),
    ],
)
def test_space_that_runs_out_during_creation_is_reported_alike(
    path: str, sizes: FabricSizes, identity: Identity, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match=words):
        Fabric.create(OsSharedMemory(), path, sizes, identity)
    assert not os.path.exists(path)


def test_other_os_errors_are_raised_unchanged(
    path: str, sizes: FabricSizes, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="broken") as caught:
        Fabric.create(OsSharedMemory(), path, sizes, identity)
    assert not isinstance(caught.value, DiskFullError)


def test_a_missing_directory_is_named_in_the_error(tmp_path: Path, sizes: FabricSizes, identity: Identity) -> None:
    with pytest.raises(NotFoundError, match=r"its directory does not exist; create it, or set fabric.directory"):
        Fabric.create(OsSharedMemory(), str(tmp_path / "none" / "f"), sizes, identity)


def test_a_simulated_machine_keeps_the_fabric_over_a_kill_and_loses_it_with_the_power(
    sizes: FabricSizes, identity: Identity
) -> None:
    host = SimHost.create(seed=1)
    held = Fabric.open_or_create(host.memory, "/f", sizes, identity)
    held.arrays.control_words[records.CONTROL_COMMITTED] = 3
    with pytest.raises(LockedError):
        Fabric.open_or_create(host.memory, "/f", sizes, identity)
    host.kill()
    warm = Fabric.open_or_create(host.memory, "/f", sizes, identity)
    assert (warm.start, int(warm.arrays.control[0]["committed"])) == (Start.WARM, 3)
    host.crash()
    cold = Fabric.open_or_create(host.memory, "/f", sizes, identity)
    assert (cold.start, int(cold.arrays.control[0]["committed"])) == (Start.COLD, 0)


def test_the_path_of_a_fabric_depends_on_config_and_dev_shm() -> None:
    disk, token = SimDisk(seed=1), bytes(range(16))
    name = f"seawall-{token.hex()}.fabric"
    assert fabric_path(disk, FabricConfig(), "/data", token) == f"/data/{name}"
    disk.make_directory("/dev/shm")
    assert fabric_path(disk, FabricConfig(), "/data", token) == f"/dev/shm/{name}"
    assert fabric_path(disk, FabricConfig(directory="/dax"), "/data", token) == f"/dax/{name}"
    assert fabric_path(OsFiles(), FabricConfig(directory="x"), "/data", token) == str(Path("x", name).absolute())


def test_a_fabric_is_recorded_and_forgotten(tmp_path: Path) -> None:
    files, directory = OsFiles(), str(tmp_path)
    assert recorded_fabric(files, directory) is None
    path = fabric_path(files, FabricConfig(directory=directory), directory, bytes(16))
    record_fabric(files, directory, path)
    assert recorded_fabric(files, directory) == path
    forget_fabric(files, directory)
    assert recorded_fabric(files, directory) is None
    forget_fabric(files, directory)


@pytest.mark.parametrize("text", ["", "/etc/passwd", "/dev/shm/seawall-00.fabric", "\0"])
def test_a_record_that_names_no_fabric_removes_nothing(tmp_path: Path, text: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "FABRIC").write_text(text or str(victim))
    remove_leftover_fabric(OsFiles(), OsSharedMemory(), str(tmp_path))
    assert victim.exists()


def test_a_fabric_that_was_removed_or_replaced_can_be_closed(parts: Parts) -> None:
    memory, path, sizes, identity = parts
    made = Fabric.create(memory, path, sizes, identity)
    memory.remove(path)
    made.remove()
    other = Fabric.create(memory, path, sizes, identity)
    made.remove()
    assert Fabric.open_read_only(memory, path).header == other.header
    other.remove()
    with pytest.raises(NotFoundError):
        Fabric.open_read_only(memory, path)
    made.close()
    other.close()


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_a_path_that_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    """INV-OWN-MEMORY."""
    path = tmp_path / "squatted"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    else:
        path.mkdir()
    for read_only in (True, False):
        with pytest.raises((InvalidInputError, IsADirectoryError)):
            OsSharedMemory().attach(str(path), 1, read_only=read_only)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_memory_of_another_user_is_not_written(tmp_path: Path) -> None:
    """INV-OWN-MEMORY."""
    path = tmp_path / "others"
    path.write_bytes(bytes(4096))
    os.chown(path, 65_534, 65_534)
    with pytest.raises(InvalidInputError, match="belongs to user 65534"):
        OsSharedMemory().attach(str(path), 4096)
    OsSharedMemory().attach(str(path), 4096, read_only=True).close()
