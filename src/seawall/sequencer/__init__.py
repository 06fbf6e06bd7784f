"""Orders batches: decides which batches of a publisher are new, and assigns their numbers.

State lives in arrays and every step is one kernel call, so an ack does not wait for Python code. This package decides
and never acts: it has no files, no sockets and no clock of its own.
"""
