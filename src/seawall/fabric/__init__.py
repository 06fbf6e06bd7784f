"""The shared memory of a pod: its regions, their writers, and how a process maps it.

It holds only state that can be rebuilt. This package must not know how brokers, sequencers and replicas use it.
"""
