"""`os_host` bundles the real implementations of every interface."""

from seawall.io.disk.files import OsFiles
from seawall.io.host import os_host
from seawall.io.network.sockets import OsNetwork
from seawall.io.process.clocks import OsClock
from seawall.io.process.shared_memory import OsSharedMemory


def test_the_host_consists_of_the_real_implementations(tmp_path):
    host = os_host()
    assert isinstance(host.files, OsFiles)
    assert isinstance(host.memory, OsSharedMemory)
    assert isinstance(host.clock, OsClock)
    assert isinstance(host.network, OsNetwork)
    mapping = host.memory.create(str(tmp_path / "fabric"), 1)
    mapping.close()
    assert host.files.list(str(tmp_path)) == ["fabric"]
