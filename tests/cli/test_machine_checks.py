"""Checks of the machine: with the feature, without it, and where that cannot be found out."""

import errno
from pathlib import Path

import pytest

from seawall import limits
from seawall.cli.doctor import machine_checks
from seawall.cli.doctor.checks import Check, Status, size_text
from seawall.io.host import os_host
from seawall.io.interfaces import Host
from seawall.io.process.topology import Node, Topology
from seawall.testing.machine.host import SimHost

ONE_CORE = Topology((Node(0, (0,), limits.GIB),))
TWO_NODES = Topology((Node(0, (0, 1), 2 * limits.GIB), Node(1, (2, 3), 4 * limits.GIB)))
X86 = "processor\t: 0\nmodel name\t: Model X\nflags\t\t: fpu sse4_2 pclmulqdq avx2 avx512f clflushopt\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd pmull crc32\n"


@pytest.fixture
def fact(tmp_path: Path) -> Path:
    return tmp_path / "fact"


def finds(check: Check, status: Status, *found: str) -> None:
    assert check.status is status
    for part in found:
        assert part in check.found
    # A problem has a cost and a fix; a passed check has neither.
    assert bool(check.cost) is bool(check.fix) is (status is not Status.OK)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 * limits.MIB, "64.0 MiB"), (24 * limits.GIB, "24.0 GiB")],
)
def test_sizes_are_formatted(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("required", "status", "broken"), [(True, "missing", True), (True, "warn", False), (False, "missing", False)]
)
def test_only_what_is_required_and_missing_is_broken(required: bool, status: str, broken: bool) -> None:
    assert Check("x", Status(status), "", required=required).is_broken is broken


def test_cpu(fact: Path) -> None:
    fact.write_text(X86)
    finds(
        machine_checks.check_cpu(fact, TWO_NODES), Status.OK, "Model X, 4 cores, sse4.2 pclmul avx2 avx512 clflushopt"
    )
    finds(machine_checks.check_cpu(fact, ONE_CORE), Status.WARN, "1 core,")
    fact.write_text(ARM)
    finds(machine_checks.check_cpu(fact, TWO_NODES), Status.OK, "crc32 pmull")
    fact.write_text(X86.replace("sse4_2", ""))
    finds(machine_checks.check_cpu(fact, TWO_NODES), Status.WARN, "pclmul avx2")


def test_cpu_without_a_list_of_features(fact: Path) -> None:
    finds(machine_checks.check_cpu(fact, TWO_NODES), Status.OK, "4 cores, features unknown")


def test_numa() -> None:
    finds(
        machine_checks.check_numa(TWO_NODES),
        Status.OK,
        "node 0: 2 cores, 2.0 GiB; node 1: 2 cores, 4.0 GiB",
    )


def test_memory(fact: Path, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    finds(machine_checks.check_memory(4 * limits.GIB, fact, limit), Status.OK, "4.0 GiB total")
    fact.write_text("MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    limit.write_text("max\n")
    check = machine_checks.check_memory(4 * limits.GIB, fact, limit)
    assert (check.status, check.found) == (Status.OK, "4.0 GiB total, 2.0 GiB available")
    limit.write_text(f"{512 * limits.MIB}\n")
    finds(machine_checks.check_memory(4 * limits.GIB, fact, limit), Status.WARN, "container limit 512.0 MiB")
    limit.write_text(f"{3 * limits.GIB}\n")
    finds(machine_checks.check_memory(4 * limits.GIB, fact, limit), Status.OK, "container limit 3.0 GiB")
    fact.write_text("MemAvailable: 1000 kB\n")
    finds(machine_checks.check_memory(4 * limits.GIB, fact, limit), Status.WARN, "1000.0 KiB available")


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(machine_checks.check_shared_memory(tmp_path / "none"), Status.MISSING, "no ")
    monkeypatch.setattr(machine_checks, "SHARED_MEMORY_SIZE_MIN", 0)
    finds(machine_checks.check_shared_memory(tmp_path), Status.OK, f" in {tmp_path}")
    monkeypatch.setattr(machine_checks, "SHARED_MEMORY_SIZE_MIN", 1 << 80)
    finds(machine_checks.check_shared_memory(tmp_path), Status.WARN, " free of ")


class SteppingClock:
    """A clock that advances by one step with each reading, so that latencies are known."""

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns
        self.time_ns = 0

    def wall_ns(self) -> int:
        return self.time_ns

    def monotonic_ns(self) -> int:
        self.time_ns += self.step_ns
        return self.time_ns


def simulated_host(step_ns: int = 50_000) -> tuple[Host, SimHost]:
    simulated = SimHost.create(seed=1)
    simulated.files.make_directory("/data")
    return Host(simulated.files, simulated.memory, SteppingClock(step_ns), simulated.network), simulated


@pytest.mark.parametrize(
    ("step_ns", "status"), [(50_000, Status.OK), (10_000_000, Status.OK), (10_000_001, Status.WARN)]
)
def test_disk_sync_latency(fact: Path, step_ns: int, status: Status) -> None:
    host, _ = simulated_host(step_ns)
    check = machine_checks.check_disk_sync(host, "/data", fact)
    finds(check, status, f"median {step_ns // 1_000} µs for 4 KiB in /data")
    assert host.files.list("/data") == []


def test_disk_sync_of_a_folder_in_memory(fact: Path) -> None:
    fact.write_text(
        "x / ext4 rw 0 0\nx /data ext4 rw 0 0\nx /data tmpfs rw 0 0\nx /data/deeper xfs rw 0 0\nx /dat xfs rw 0 0\n"
    )
    host, _ = simulated_host()
    finds(machine_checks.check_disk_sync(host, "/data", fact), Status.WARN, "(tmpfs)")


def test_disk_sync_of_a_folder_that_cannot_be_written(fact: Path) -> None:
    host, simulated = simulated_host()
    simulated.files.fail("open", error=errno.EROFS)
    check = machine_checks.check_disk_sync(host, "/data", fact)
    finds(check, Status.MISSING, "cannot write in /data: Read-only file system")
    assert not check.is_broken


def test_a_failed_sync_means_the_disk_is_broken(fact: Path) -> None:
    host, simulated = simulated_host()
    simulated.files.fail("sync", nth=3)
    check = machine_checks.check_disk_sync(host, "/data", fact)
    finds(check, Status.MISSING)
    assert check.is_broken
    assert host.files.list("/data") == []


def test_disk_sync_on_this_machine(tmp_path: Path) -> None:
    check = machine_checks.check_disk_sync(os_host(), str(tmp_path), Path("/proc/mounts"))
    assert check.found.startswith("median ")
    assert list(tmp_path.iterdir()) == []


def test_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = simulated_host()
    finds(machine_checks.check_disk_free(host, "/data"), Status.OK, " in /data")
    finds(machine_checks.check_disk_free(host, "/none"), Status.MISSING, "/none: No such file")
    monkeypatch.setattr(machine_checks, "DISK_FREE_SIZE_MIN", 1 << 80)
    finds(machine_checks.check_disk_free(host, "/data"), Status.WARN, " in /data")


def test_io_uring() -> None:
    finds(machine_checks.check_io_uring(True, "works"), Status.OK, "works")
    finds(machine_checks.check_io_uring(False, "forbidden"), Status.MISSING, "forbidden")


@pytest.mark.parametrize(
    ("soft", "hard", "status", "found"),
    [
        (4_096, 8_192, Status.OK, "4096, a server raises that to 8192: 1000 connections of 2 descriptors each"),
        (1_024, 1_024, Status.WARN, "1024, a server raises that to 1024: 292 connections"),
        (1_024, -1, Status.OK, "1024, a server raises that to unlimited: 1000 connections"),
        (-1, -1, Status.OK, "unlimited, a server raises that to unlimited"),
    ],
)
def test_open_files(soft: int, hard: int, status: Status, found: str) -> None:
    finds(machine_checks.check_open_files(soft, hard, 1_000), status, found)


@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        ("always [madvise] never\n", Status.OK, "madvise"),
        ("always madvise [never]\n", Status.OK, "never"),
        ("[always] madvise never\n", Status.WARN, "always"),
        ("", Status.OK, "no transparent huge pages"),
    ],
)
def test_huge_pages(fact: Path, text: str, status: Status, found: str) -> None:
    fact.write_text(text)
    finds(machine_checks.check_huge_pages(fact), status, found)
