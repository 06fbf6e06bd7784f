"""The only door to the operating system: files, shared memory, sockets, clocks, disk rings, topology.

Everything above this room takes a `Host` (see `interfaces.py`) and never imports `os`, `socket`, `mmap` or `time`
itself, so that the simulators of `seawall.testing` can stand in for the machine.
"""
