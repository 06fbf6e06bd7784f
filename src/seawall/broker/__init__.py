"""The broker's side of the total order: publishes batches to its ring, reserves space, collects answers.

This package must not know connections, topics, files, or how batches are ordered.
"""
