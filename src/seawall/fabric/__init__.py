"""The shared memory of a pod: its regions, who writes them, and how a process comes to have them.

It holds only what can be rebuilt. It must not know what brokers, sequencers and replicas do with it.
"""
