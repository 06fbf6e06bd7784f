"""Machine code for what happens once per record, frame or slot: numba functions over flat arrays.

Importing a module of this package loads numba and, the first time on a machine, compiles its kernels into an on-disk
cache (`seawall doctor --warm` does it ahead). `runtime/jit.py` has the rules that every kernel keeps.
"""
