"""Checks of the machine: processor, memory, disk, and what the kernel grants.

Each check takes the facts, or the files it reads them from, as arguments: the doctor passes those of this machine. A
file that is not there (another operating system, a container that hides it) is a finding, never an error.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from seawall import limits
from seawall.bench.machine import cpu_model
from seawall.cli.checks import Check, Status, size_text
from seawall.config import Config
from seawall.errors import SyncError
from seawall.io.disk.files import write_all
from seawall.io.interfaces import Host
from seawall.io.process.descriptors import MANY_DESCRIPTORS, DescriptorBudget
from seawall.io.process.permissions import exposure
from seawall.io.process.topology import Topology

#: What the doctor calls a feature, and the names under which x86 and ARM kernels list it.
CPU_FEATURES = {
    "sse4.2": ("sse4_2",),
    "pclmul": ("pclmulqdq",),
    "avx2": ("avx2",),
    "avx512": ("avx512f",),
    "clflushopt": ("clflushopt",),
    "crc32": ("crc32",),
    "pmull": ("pmull",),
}
#: One of these makes checksums run at memory speed.
CHECKSUM_FEATURES = ("sse4.2", "crc32")

#: Below these a node runs, but not comfortably.
MEMORY_SIZE_MIN = limits.GIB
SHARED_MEMORY_SIZE_MIN = 256 * limits.MIB
DISK_FREE_SIZE_MIN = limits.GIB
OPEN_FILES_MIN = 4_096

#: Writes the sync check makes, and the latency above which it warns.
SYNC_WRITES = 32
SYNC_SLOW_NS = 10_000_000

#: File systems that keep nothing over a restart: a sync there is quick and promises nothing.
VOLATILE_FILESYSTEMS = ("tmpfs", "ramfs", "devtmpfs")


def check_cpu(information: Path, topology: Topology) -> Check:
    """Processor model, cores this process may use, and the instructions that matter here."""
    words = set(_read(information).split())
    has = [feature for feature, names in CPU_FEATURES.items() if words.intersection(names)]
    cores = topology.cpu_count
    found = (
        f"{cpu_model(information)}, {cores} {'core' if cores == 1 else 'cores'}, {' '.join(has) or 'features unknown'}"
    )
    if cores < 2:
        cost = "the roles of a pod and their clients share one core and wait for each other"
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
    """Memory this process can have: of the machine, free now, and the bound of its container."""
    found, usable = [f"{size_text(total)} in all"], total
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
    """Room for the fabric of a pod."""
    name, cost = "shared memory", "a pod keeps its fabric there; embedded logs and single nodes do without"
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
    """How long a small write takes until it is durable: every durable ack waits that long."""
    name, fix = "disk sync", "name another folder: seawall --set bench.directory=DIR doctor"
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
        return Check(name, Status.WARN, found, "this folder lives in memory: nothing in it survives a restart", fix)
    if median_ns > SYNC_SLOW_NS:
        cost = "every durable ack waits for a sync; many writers share one, a lone writer does not"
        return Check(name, Status.WARN, found, cost, "use a local SSD, best with power-loss protection")
    return Check(name, Status.OK, found)


def check_disk_free(host: Host, directory: str) -> Check:
    """Room on the same disk."""
    name, fix = "disk free", "free some space, or name another folder: seawall --set bench.directory=DIR doctor"
    try:
        free = host.files.free_bytes(directory)
    except OSError as error:
        return Check(name, Status.MISSING, f"{directory}: {error.strerror}", "the room left is not known", fix)
    found = f"{size_text(free)} in {directory}"
    if free < DISK_FREE_SIZE_MIN:
        return Check(name, Status.WARN, found, "a log that finds its disk full takes no more writes", fix)
    return Check(name, Status.OK, found)


def check_permissions(data: Path, config: Config) -> Check:
    """Whether other users of this machine can reach the data directory, the tokens or the key of the server."""
    name = "permissions"
    found = [exposure(str(data), is_for_group=bool(config.storage.group))]
    found += [exposure(path, is_for_group=True) for path in (config.server.token_file, config.server.tls_key) if path]
    exposed = [each for each in found if each]
    if exposed:
        cost = "other users of this machine can read records, or come in as somebody else"
        return Check(name, Status.WARN, "; ".join(exposed), cost, "chmod -R go-rwx, or chmod o-rwx,g-w for a group")
    there = f"{data} is for its owner" if data.exists() else f"{data} is not there"
    return Check(name, Status.OK, there + (f" and group {config.storage.group}" if config.storage.group else ""))


def check_io_uring(available: bool, detail: str) -> Check:
    """Whether the kernel carries out disk operations asynchronously."""
    if available:
        return Check("io_uring", Status.OK, detail)
    cost = "disk operations are carried out by threads of compiled code instead"
    fix = (
        "Linux 5.6 or newer, and sysctl kernel.io_uring_disabled=0   (in a container: a seccomp profile that allows it)"
    )
    return Check("io_uring", Status.MISSING, detail, cost, fix)


def check_open_files(soft: int, hard: int, connections: int) -> Check:
    """Descriptors this process may have, and how a server would share them out: it raises its limit to the hard one."""
    budget = DescriptorBudget.of(hard if hard >= 0 else MANY_DESCRIPTORS, connections)
    found = f"{_limit_text(soft)}, a server raises that to {_limit_text(hard)}: {budget}"
    if 0 <= hard < OPEN_FILES_MIN or budget.connections < connections:
        cost = f"a server refuses connections beyond {budget.connections} (server.connections is {connections})"
        return Check("open files", Status.WARN, found, cost, "ulimit -Hn 65536   (a service: LimitNOFILE=65536)")
    return Check("open files", Status.OK, found)


def check_huge_pages(enabled: Path) -> Check:
    """Whether the kernel makes huge pages by itself."""
    name, text = "huge pages", _read(enabled)
    mode = text[text.find("[") + 1 : text.find("]")] if "[" in text else ""
    if not mode:
        return Check(name, Status.OK, "transparent huge pages are not known here")
    if mode == "always":
        cost = "the kernel may stop a process for milliseconds while it gathers pages"
        return Check(name, Status.WARN, mode, cost, f"echo madvise > {enabled}")
    return Check(name, Status.OK, mode)


def _sync_times_ns(host: Host, directory: str) -> list[int]:
    path = str(Path(directory) / f".seawall-doctor-{host.clock.wall_ns()}")
    page = bytes(limits.PAGE_SIZE)
    times_ns = []
    file = host.files.open(path, create=True, exclusive=True)
    try:
        # Reserved ahead, as a log does it, so that no write has to wait for the file system to find room.
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
    """Type of the file system a folder lives on, by the longest mount point above it; empty if not known."""
    found, depth = "", 0
    for line in _read(mounts).splitlines():
        _, point, kind, *_ = line.split(" ")
        parts = Path(point).parts
        # Later mounts cover earlier ones at the same point.
        if directory.parts[: len(parts)] == parts and len(parts) >= depth:
            found, depth = kind, len(parts)
    return found


def _limit_text(limit: int) -> str:
    return "any number" if limit < 0 else str(limit)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
