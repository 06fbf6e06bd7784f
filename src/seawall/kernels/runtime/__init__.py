"""The base of all kernels: the compiler and its cache, memory, atomics, locks, rings, system calls."""
