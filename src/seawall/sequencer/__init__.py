"""Ordering: which batches of a publisher are new, and which numbers they get.

State lives in arrays and every step is one kernel, so the path of an ack does not wait for Python. This room decides
and never acts: no files, no sockets, no clock of its own.
"""
