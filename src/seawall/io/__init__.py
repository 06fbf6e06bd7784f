"""The only layer that calls the operating system: files, shared memory, sockets, clocks, disk rings, topology.

Every layer above takes a `Host` (see `interfaces.py`) and never imports `os`, `socket`, `mmap` or `time` itself, so
that the simulators of `seawall.testing` can replace the machine.
"""
