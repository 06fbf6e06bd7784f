"""Memory limit and memory use, from the files of an imitated system and of the real one."""

import mmap
from pathlib import Path

import pytest

from seawall.io.process.memory_use import MemoryUse, trim_memory

STATUS = "Name:\tseawall\nVmRSS:\t9000 kB\nRssAnon:\t1000 kB\nRssFile:\t7900 kB\nRssShmem:\t100 kB\nThreads:\t4\n"
OWN = 1100 * 1024
NO_LIMIT_1 = "9223372036854771712\n"


class System:
    """An imitation of `/proc` and `/sys/fs/cgroup` below a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("proc/self/status", STATUS)

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def use(self, configured: int = 0) -> MemoryUse:
        return MemoryUse(configured, proc=str(self.path / "proc"), groups=str(self.path / "groups"))


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_without_groups_the_machine_is_the_limit(system: System) -> None:
    use = system.use()
    assert use.limit > 256 << 20
    assert use.source == "the memory of the machine"
    assert use.used() == OWN


def test_a_configured_limit_wins_and_counts_this_process_alone(system: System) -> None:
    system.write("proc/self/cgroup", "0::/pod\n")
    system.write("groups/pod/memory.max", "1000000\n")
    system.write("groups/pod/memory.stat", "anon 990000000\n")
    use = system.use(64 << 20)
    assert (use.limit, use.source, use.used()) == (64 << 20, "the configuration", OWN)


def test_the_smallest_limit_of_the_v2_cgroups_counts_all_their_processes(system: System) -> None:
    system.write("proc/self/cgroup", "0::/pod/seawall\n")
    system.write("groups/pod/seawall/memory.max", "max\n")
    system.write("groups/pod/memory.max", "50000000\n")
    system.write("groups/memory.max", "60000000\n")
    system.write("groups/pod/memory.stat", "anon 3000000\nfile 40000000\nshmem 500000\nsock 7\nslab 9\n")
    use = system.use()
    assert use.limit == 50_000_000
    assert use.source.endswith("groups/pod")
    assert use.used() == 3_500_007


def test_use_of_a_group_is_at_least_that_of_this_process(system: System) -> None:
    system.write("proc/self/cgroup", "0::/\n")
    system.write("groups/memory.max", "50000000\n")
    assert system.use().used() == OWN


def test_a_v1_cgroup_is_a_limit(system: System) -> None:
    system.write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/1\n0::/\nnonsense\n")
    system.write("groups/memory/docker/1/memory.limit_in_bytes", "70000000\n")
    system.write("groups/memory/memory.limit_in_bytes", NO_LIMIT_1)
    system.write("groups/memory/docker/1/memory.stat", "rss 1\ntotal_rss 8000000\ntotal_shmem 1000\ntotal_cache 9\n")
    use = system.use()
    assert (use.limit, use.used()) == (70_000_000, 8_001_000)


def test_a_container_that_sees_its_own_group_as_the_root_finds_its_limit(system: System) -> None:
    system.write("proc/self/cgroup", "4:memory:/docker/unseen\n")
    system.write("groups/memory/memory.limit_in_bytes", "70000000\n")
    assert system.use().limit == 70_000_000


def test_without_group_limits_the_machine_is_the_limit(system: System) -> None:
    system.write("proc/self/cgroup", "4:memory:/\n0::/gone\n")
    system.write("groups/memory/memory.limit_in_bytes", NO_LIMIT_1)
    assert system.use().source == "the memory of the machine"
    (system.path / "proc/self/status").unlink()
    assert system.use().used() == 0


def test_use_follows_the_touched_memory_of_this_process() -> None:
    """A mapping, because the allocator may serve an array from memory that it never returned."""
    use = MemoryUse()
    before = use.used()
    assert before > 0
    with mmap.mmap(-1, 96 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapping:
        for _ in range(96):
            mapping.write(bytes(1 << 20))
        with_mapping = use.used()
    assert with_mapping >= before + (80 << 20)
    assert use.used() <= with_mapping - (80 << 20)


def test_trim_memory_reports_whether_it_freed_memory() -> None:
    assert trim_memory() in (True, False)
