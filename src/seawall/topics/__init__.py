"""The state of topics: configuration, floors, losses, deletes, tags, cursors and keys, as pure state.

The same state and the same batches in the same order give the same state, on every machine and after every restart.
Nothing here reads a clock, a file or a random number.
"""
