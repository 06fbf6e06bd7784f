"""How much memory may be taken and is: by the files of a system that is made up, and of this one."""

from pathlib import Path

import numpy as np
import pytest

from seawall.io.process.memory_use import MemoryUse, trim_memory

STATUS = "Name:\tseawall\nVmRSS:\t9000 kB\nRssAnon:\t1000 kB\nRssFile:\t7900 kB\nRssShmem:\t100 kB\nThreads:\t4\n"
OWN = 1100 * 1024
NO_LIMIT_1 = "9223372036854771712\n"


class System:
    """Files as Linux has them, below a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("proc/self/status", STATUS)

    def write(self, name: str, text: str) -> None:
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

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


def test_what_is_set_counts_and_is_about_this_process_alone(system: System) -> None:
    system.write("proc/self/cgroup", "0::/pod\n")
    system.write("groups/pod/memory.max", "1000000\n")
    system.write("groups/pod/memory.stat", "anon 990000000\n")
    use = system.use(64 << 20)
    assert (use.limit, use.source, use.used()) == (64 << 20, "the configuration", OWN)


def test_a_group_of_version_2_is_a_limit_for_everything_in_it(system: System) -> None:
    system.write("proc/self/cgroup", "0::/pod/seawall\n")
    system.write("groups/pod/seawall/memory.max", "max\n")
    system.write("groups/pod/memory.max", "50000000\n")
    system.write("groups/memory.max", "60000000\n")
    system.write("groups/pod/memory.stat", "anon 3000000\nfile 40000000\nshmem 500000\nsock 7\nslab 9\n")
    use = system.use()
    assert use.limit == 50_000_000
    assert use.source.endswith("groups/pod")
    assert use.used() == 3_500_007


def test_a_group_whose_other_processes_take_less_counts_at_least_this_one(system: System) -> None:
    system.write("proc/self/cgroup", "0::/\n")
    system.write("groups/memory.max", "50000000\n")
    assert system.use().used() == OWN


def test_a_group_of_version_1_is_a_limit_too(system: System) -> None:
    system.write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/1\n0::/\nnonsense\n")
    system.write("groups/memory/docker/1/memory.limit_in_bytes", "70000000\n")
    system.write("groups/memory/memory.limit_in_bytes", NO_LIMIT_1)
    system.write("groups/memory/docker/1/memory.stat", "rss 1\ntotal_rss 8000000\ntotal_shmem 1000\ntotal_cache 9\n")
    use = system.use()
    assert (use.limit, use.used()) == (70_000_000, 8_001_000)


def test_a_container_that_sees_its_own_group_as_the_root_finds_it(system: System) -> None:
    system.write("proc/self/cgroup", "4:memory:/docker/unseen\n")
    system.write("groups/memory/memory.limit_in_bytes", "70000000\n")
    assert system.use().limit == 70_000_000


def test_no_limit_and_no_files_mean_no_limit(system: System) -> None:
    system.write("proc/self/cgroup", "4:memory:/\n0::/gone\n")
    system.write("groups/memory/memory.limit_in_bytes", NO_LIMIT_1)
    assert system.use().source == "the memory of the machine"
    (system.path / "proc/self/status").unlink()
    assert system.use().used() == 0


def test_this_process_takes_what_it_touches_and_no_less() -> None:
    use = MemoryUse()
    before = use.used()
    assert before > 0
    held = np.ones(96 << 20, np.uint8)
    with_it = use.used()
    assert with_it >= before + (80 << 20)
    del held
    assert use.used() <= with_it - (80 << 20)


def test_giving_back_is_harmless() -> None:
    assert trim_memory() in (True, False)
