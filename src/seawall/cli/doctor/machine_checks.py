"""Checks of the machine: processor, memory, disk, and limits of the operating system.

Each check takes its facts, or the files to read them from, as arguments; the doctor passes those of this machine. A
missing file (another operating system, a container that hides it) is a finding, never an error.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from seawall import limits
from seawall.bench.machine import cpu_model
from seawall.cli.doctor.checks import Check, Status, size_text
from seawall.config import Config
from seawall.errors import SyncError
from seawall.io.disk.files import write_all
from seawall.io.interfaces import Host
from seawall.io.process.descriptors import MANY_DESCRIPTORS, DescriptorBudget
from seawall.io.process.permissions import exposure
from seawall.io.process.topology import Topology

#: The doctor's name of each feature, and the names under which x86 and ARM kernels list it.
CPU_FEATURES = {
    "sse4.2": ("sse4_2",),
    "pclmul": ("pclmulqdq",),
    "avx2": ("avx2",),
    "avx512": ("avx512f",),
    "clflushopt": ("clflushopt",),
    "crc32": ("crc32",),
    "pmull": ("pmull",),
}
#: With one of these, checksums run at memory speed.
CHECKSUM_FEATURES = ("sse4.2", "crc32")

#: Below these a node runs, but the doctor warns.
MEMORY_SIZE_MIN = limits.GIB
SHARED_MEMORY_SIZE_MIN = 256 * limits.MIB
DISK_FREE_SIZE_MIN = limits.GIB
OPEN_FILES_MIN = 4_096

#: Writes of the sync check, and the latency above which it warns.
SYNC_WRITES = 32
SYNC_SLOW_NS = 10_000_000

#: File systems whose contents do not survive a restart: a sync there is fast but guarantees nothing.
VOLATILE_FILESYSTEMS = ("tmpfs", "ramfs", "devtmpfs")


def check_cpu(information: Path, topology: Topology) -> Check:
    """Processor model, cores that this process may use, and the relevant instruction sets."""
    words = set(_read(information).split())
    has = [feature for feature, names in CPU_FEATURES.items() if words.intersection(names)]
    cores = topology.cpu_count
    found = (
        f"{cpu_model(information)}, {cores} {'core' if cores == 1 else 'cores'}, {' '.join(has) or 'features unknown'}"
    )
    if cores < 2:
        cost = "the roles of a pod and their clients compete for one core"
        return Check("cpu", Status.WARN, found, cost, "give the machine or the container at least 2 cores")
    if words and not set(has).intersection(CHECKSUM_FEATURES):
        cost = "checksums are computed in software, several times slower"
        return Check("cpu", Status.WARN, found, cost, "use a processor with SSE4.2 or the ARMv8 CRC instructions")
    return Check("cpu", Status.OK, found)


def check_numa(topology: Topology) -> Check:
    """Memory nodes and their processors."""
    nodes = [f"node {node.id}: {len(node.cpus)} cores, {size_text(node.memory_bytes)}" for node in topology.nodes]
    return Check("numa", Status.OK, "; ".join(nodes))


def check_memory(total: int, information: Path, container_limit: Path) -> Check:
    """Memory for this process: total of the machine, available now, and the limit of its container."""
    found, usable = [f"{size_text(total)} total"], total
    for line in _read(information).splitlines():
        if line.startswith("MemAvailable:"):
            usable = int(line.split()[1]) * limits.KIB
            found.append(f"{size_text(usable)} available")
    limit = _read(container_limit).strip()
    if limit.isdecimal():
        usable = min(usable, int(limit))
        found.append(f"container limit {size_text(int(limit))}")
    if usable < MEMORY_SIZE_MIN:
        cost = "rings and caches compete with the page cache, and the kernel may kill the process"
        return Check("memory", Status.WARN, ", ".join(found), cost, f"leave at least {size_text(MEMORY_SIZE_MIN)} free")
    return Check("memory", Status.OK, ", ".join(found))


def check_shared_memory(directory: Path) -> Check:
    """Space for the fabric of a pod."""
    name, cost = "shared memory", "a pod keeps its fabric there; embedded logs and single nodes do not need it"
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return Check(name, Status.MISSING, f"no {directory}", cost, f"mount -t tmpfs -o size=2g tmpfs {directory}")
    found = f"{size_text(usage.free)} free of {size_text(usage.total)} in {directory}"
    if usage.free < SHARED_MEMORY_SIZE_MIN:
        fix = f"mount -o remount,size=2g {directory}   (in a container: docker run --shm-size=2g)"
        return Check(name, Status.WARN, found, cost, fix)
    return Check(name, Status.OK, found)


def check_disk_sync(host: Host, directory: str, mounts: Path) -> Check:
    """Time until a small write is durable: every durable ack waits that long."""
    name, fix = "disk sync", "check another directory: seawall --set bench.directory=DIR doctor"
    try:
        median_ns = sorted(_sync_times_ns(host, directory))[SYNC_WRITES // 2]
    except SyncError as error:
        cost = "nothing written to this disk is safe"
        return Check(name, Status.MISSING, str(error), cost, fix, required=True)
    except OSError as error:
        cost = "the disk was not measured"
        return Check(name, Status.MISSING, f"cannot write in {directory}: {error.strerror}", cost, fix)
    filesystem = _filesystem_of(Path(directory).resolve(), mounts)
    found = f"median {median_ns / 1_000:.0f} µs for 4 KiB in {directory}" + (f" ({filesystem})" if filesystem else "")
    if filesystem in VOLATILE_FILESYSTEMS:
        return Check(name, Status.WARN, found, "this directory is in memory: nothing in it survives a restart", fix)
    if median_ns > SYNC_SLOW_NS:
        cost = "every durable ack waits for a sync; many writers share one, a single writer does not"
        return Check(name, Status.WARN, found, cost, "use a local SSD, best with power-loss protection")
    return Check(name, Status.OK, found)


def check_disk_free(host: Host, directory: str) -> Check:
    """Free space on the same disk."""
    name, fix = "disk free", "free some space, or check another directory: seawall --set bench.directory=DIR doctor"
    try:
        free = host.files.free_bytes(directory)
    except OSError as error:
        return Check(name, Status.MISSING, f"{directory}: {error.strerror}", "the free space is unknown", fix)
    found = f"{size_text(free)} in {directory}"
    if free < DISK_FREE_SIZE_MIN:
        return Check(name, Status.WARN, found, "a log on a full disk refuses writes", fix)
    return Check(name, Status.OK, found)


def check_permissions(data: Path, config: Config) -> Check:
    """Whether other users of this machine can access the data directory, the tokens or the key of the server."""
    name = "permissions"
    found = [exposure(str(data), is_for_group=bool(config.storage.group))]
    found += [exposure(path, is_for_group=True) for path in (config.server.token_file, config.server.tls_key) if path]
    exposed = [each for each in found if each]
    if exposed:
        cost = "other users of this machine can read records, or connect with stolen credentials"
        return Check(name, Status.WARN, "; ".join(exposed), cost, "chmod -R go-rwx, or chmod o-rwx,g-w for a group")
    users = f"its owner and group {config.storage.group}" if config.storage.group else "its owner"
    access = f"only {users} can access {data}" if data.exists() else f"{data} does not exist"
    return Check(name, Status.OK, access)


def check_io_uring(available: bool, detail: str) -> Check:
    """Whether the kernel executes disk operations asynchronously."""
    if available:
        return Check("io_uring", Status.OK, detail)
    cost = "threads of compiled code execute disk operations instead"
    fix = (
        "Linux 5.6 or newer, and sysctl kernel.io_uring_disabled=0   (in a container: a seccomp profile that allows it)"
    )
    return Check("io_uring", Status.MISSING, detail, cost, fix)


def check_open_files(soft: int, hard: int, connections: int) -> Check:
    """The descriptor limit, and how a server would divide it: a server raises its limit to the hard one."""
    budget = DescriptorBudget.of(hard if hard >= 0 else MANY_DESCRIPTORS, connections)
    found = f"{_limit_text(soft)}, a server raises that to {_limit_text(hard)}: {budget}"
    if 0 <= hard < OPEN_FILES_MIN or budget.connections < connections:
        cost = f"a server refuses connections beyond {budget.connections} (server.connections is {connections})"
        return Check("open files", Status.WARN, found, cost, "ulimit -Hn 65536   (a service: LimitNOFILE=65536)")
    return Check("open files", Status.OK, found)


def check_huge_pages(enabled: Path) -> Check:
    """Whether the kernel uses transparent huge pages."""
    name, text = "huge pages", _read(enabled)
    mode = text[text.find("[") + 1 : text.find("]")] if "[" in text else ""
    if not mode:
        return Check(name, Status.OK, "this system has no transparent huge pages")
    if mode == "always":
        cost = "the kernel may stall a process for milliseconds while it compacts memory"
        return Check(name, Status.WARN, mode, cost, f"echo madvise > {enabled}")
    return Check(name, Status.OK, mode)


def _sync_times_ns(host: Host, directory: str) -> list[int]:
    path = str(Path(directory) / f".seawall-doctor-{host.clock.wall_ns()}")
    page = bytes(limits.PAGE_SIZE)
    times_ns = []
    file = host.files.open(path, create=True, exclusive=True)
    try:
        # Preallocate, as a log does, so that no write waits for the file system to allocate space.
        file.allocate(SYNC_WRITES * limits.PAGE_SIZE)
        file.sync()
        for index in range(SYNC_WRITES):
            start_ns = host.clock.monotonic_ns()
            write_all(file, [page], index * limits.PAGE_SIZE)
            file.sync()
            times_ns.append(host.clock.monotonic_ns() - start_ns)
    finally:
        file.close()
        host.files.unlink(path)
    return times_ns


def _filesystem_of(directory: Path, mounts: Path) -> str:
    """Type of the file system of a directory, by the longest mount point above it; empty if unknown."""
    found, depth = "", 0
    for line in _read(mounts).splitlines():
        _, point, kind, *_ = line.split(" ")
        parts = Path(point).parts
        # Later mounts cover earlier ones at the same point.
        if directory.parts[: len(parts)] == parts and len(parts) >= depth:
            found, depth = kind, len(parts)
    return found


def _limit_text(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
