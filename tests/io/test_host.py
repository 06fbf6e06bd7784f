from seawall.io.clocks import OsClock
from seawall.io.files import OsFiles
from seawall.io.host import os_host
from seawall.io.memory import OsSharedMemory
from seawall.io.sockets import OsNetwork


def test_the_host_is_made_of_the_real_parts(tmp_path):
    host = os_host()
    assert isinstance(host.files, OsFiles)
    assert isinstance(host.memory, OsSharedMemory)
    assert isinstance(host.clock, OsClock)
    assert isinstance(host.network, OsNetwork)
    mapping = host.memory.create(str(tmp_path / "fabric"), 1)
    mapping.close()
    assert host.files.list(str(tmp_path)) == ["fabric"]
