"""What kernels are built from: the compiler and its cache, memory, atomics, locks, rings, system calls."""
