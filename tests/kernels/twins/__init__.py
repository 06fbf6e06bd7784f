"""The meaning of every kernel in plain Python: one module for each kernel module, with the same names.

A twin is an executable specification. It is written in the obvious way (one bit at a time, a dict, a sorted list,
`struct`), not in the way of the kernel. Property tests require that both return the same codes and write the same bytes
to every output array. Only tests call twins: each takes a hundred or a thousand times as long as its kernel.

Twins take the same arrays as their kernels. Only the hash table and the heap are separate objects here, because the
position of an entry in the kernel's arrays is not part of the meaning.
"""
