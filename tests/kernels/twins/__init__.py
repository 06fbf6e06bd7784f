"""The meaning of every kernel in plain Python: one module for each kernel module, the same names.

A twin is a specification that runs. It is written the obvious way (one bit at a time, a dict, a sorted list, `struct`),
not the way the kernel goes about it, and property tests hold the two to the same return codes and the same bytes in
every output array. Nothing but tests calls a twin: each takes a hundred or a thousand times as long as its kernel.

Twins take the same arrays as their kernels. Only the hash table and the heap are objects of their own here, since where
an entry lies inside the kernel's arrays is no part of the meaning.
"""
