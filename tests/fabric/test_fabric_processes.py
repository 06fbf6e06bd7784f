"""Real processes over one fabric: slots of another process, locks that it releases, forks, and short memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from seawall.errors import LockedError
from seawall.fabric import records
from seawall.fabric.header import Identity
from seawall.fabric.inspect import report
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.fabric.mapping import Fabric, Start
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.kernels.runtime import jit
from seawall.kernels.runtime.slots import read_slot, ready_slots

LAPS = 3
DEADLINE_S = 100

PROLOGUE = """
import sys
import numpy as np
from seawall.fabric import records
from seawall.fabric.header import Identity
from seawall.fabric.layout import FabricSizes
from seawall.fabric.mapping import Fabric
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.kernels.runtime.slots import publish_slot

path, identity = sys.argv[1], Identity(b"boot" * 4, b"data" * 4)
"""

#: A broker: fills slots lap after lap, waiting until the other side has counted past what it writes over.
BROKER = """
fabric = Fabric.attach(OsSharedMemory(), path, identity)
arrays, entries = fabric.arrays, fabric.layout.sizes.pbr_entries
for index in range(int(sys.argv[2]) * entries):
    while index - int(arrays.completion_words[1][0]) >= entries:
        pass
    content = np.full(8, index * 3, np.int64)
    arrays.tail_words[1][0] = index + 1
    publish_slot(arrays.pbr_words[1], records.PBR_TOKEN, index, content)
"""

#: A role that holds the fabric until its standard input ends.
ROLE = """
fabric = Fabric.attach(OsSharedMemory(), path, identity)
fabric.arrays.blogs[0][7] = 42
print("attached", flush=True)
sys.stdin.read()
"""

SUPERVISOR = """
sizes = FabricSizes(brokers=2, goi_entries=128, pbr_entries=64, checkpoint_size=8192, blog_size=65536)
fabric = Fabric.open_or_create(OsSharedMemory(), path, sizes, identity)
"""


def start(work: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", PROLOGUE + work, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def shared(path: str, sizes: FabricSizes, identity: Identity) -> Iterator[Fabric]:
    fabric = Fabric.open_or_create(OsSharedMemory(), path, sizes, identity)
    fabric.share()
    yield fabric
    fabric.close()


@pytest.mark.skipif(jit.PYTHON_MODE, reason="Python stand-ins are atomic under one GIL only")
def test_slots_of_another_process_are_read_by_their_tokens(shared: Fabric, sizes: FabricSizes) -> None:
    """A read-only observer always sees consistent counts meanwhile."""
    child = start(BROKER, shared.path, str(LAPS))
    observer = Fabric.open_read_only(OsSharedMemory(), shared.path)
    slots, completion = shared.arrays.pbr_words[1], shared.arrays.completion_words[1]
    content, index = np.zeros(8, np.int64), 0
    while index < LAPS * sizes.pbr_entries:
        if read_slot(slots, records.PBR_TOKEN, index, content):
            assert content.tolist() == [index * 3] * 7 + [index + 1]
            index += 1
            completion[0] = index
            seen = report(observer, now_ns=0).brokers[1]
            assert seen.completed == index
            assert 0 <= seen.ready <= seen.pending <= sizes.pbr_entries
        elif child.poll():
            pytest.fail(child.communicate()[1])
    assert child.wait(DEADLINE_S) == 0
    assert shared.arrays.tail_words[1][0] == index
    assert ready_slots(slots, records.PBR_TOKEN, index, 64) == 0
    assert ready_slots(slots, records.PBR_TOKEN, index - 64, 64) == 64
    child.communicate()
    observer.close()
    del slots, completion


def test_a_killed_role_releases_its_lock_and_its_writes_stay(
    shared: Fabric, sizes: FabricSizes, identity: Identity
) -> None:
    child = start(ROLE, shared.path)
    assert child.stdout is not None
    assert child.stdout.readline() == "attached\n"
    with pytest.raises(LockedError, match="roles still use the fabric"):
        shared.remove()
    child.kill()
    child.communicate()
    assert shared.arrays.blogs[0][7] == 42
    shared.remove()


def test_a_fabric_of_a_killed_supervisor_is_found_warm(path: str, sizes: FabricSizes, identity: Identity) -> None:
    work = SUPERVISOR + 'fabric.arrays.control_words[4] = 99\nprint("running", flush=True)\nsys.stdin.read()\n'
    child = start(work, path)
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"
    with pytest.raises(LockedError, match="roles of a running pod use it"):
        Fabric.open_or_create(OsSharedMemory(), path, sizes, identity)
    child.kill()
    child.communicate()
    fabric = Fabric.open_or_create(OsSharedMemory(), path, sizes, identity)
    assert (fabric.start, int(fabric.arrays.control[0]["committed"])) == (Start.WARM, 99)
    fabric.close()


def test_a_forked_child_has_the_fabric_and_its_lock(path: str, sizes: FabricSizes, identity: Identity) -> None:
    """The child outlives the supervisor that forked it: no other may start until the child has ended, too."""
    work = SUPERVISOR + (
        "import os\n"
        "fabric.share()\n"
        "if os.fork():\n"
        "    os._exit(0)\n"
        "fabric.arrays.replica_words[3][0] = 5\n"
        'print("child", flush=True)\n'
        "sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    parent = start(work, path)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "child\n"
    assert parent.wait(DEADLINE_S) == 0
    with pytest.raises(LockedError):
        Fabric.open_or_create(OsSharedMemory(), path, sizes, identity)
    parent.communicate()
    fabric = Fabric.open_or_create(OsSharedMemory(), path, sizes, identity)
    assert (fabric.start, int(fabric.arrays.replica_vector[3]["durable"])) == (Start.WARM, 5)
    fabric.close()


def test_a_file_size_limit_raises_an_error_instead_of_a_signal(path: str) -> None:
    work = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n" + SUPERVISOR
    child = start(work, path)
    _, errors = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 1
    assert "DiskFullError" in errors
    assert r"files of this process must be smaller (ulimit -f): lower fabric.brokers (now 2)" in errors
    assert not os.path.exists(path)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 64 KiB."""
    directory = tmp_path / "shm"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs is not permitted: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_a_small_dev_shm_raises_an_error_instead_of_a_signal(small_tmpfs: Path, sizes: FabricSizes) -> None:
    """INV-FABRIC-BACKED."""
    child = start(SUPERVISOR, str(small_tmpfs / "fabric"))
    _, errors = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 1
    need = FabricLayout.of(sizes).size
    assert (
        f"DiskFullError: {small_tmpfs}/fabric: the fabric needs {need} bytes and 65536 are free there: lower" in errors
    )
    assert os.listdir(small_tmpfs) == []
