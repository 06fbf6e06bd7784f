"""Kernels of the sequencer and its brokers: collect, decide, order, commit, answer, apply, recover."""
