"""Machine code for the work that is done per record, frame or slot: numba functions over flat arrays.

Importing a module of this package loads numba. The first import on a machine also compiles the module's kernels into an
on-disk cache; `seawall doctor --warm` fills that cache in advance. `runtime/jit.py` has the rules for all kernels.
"""
