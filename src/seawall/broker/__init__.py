"""A broker's part in the total order: batches into its ring, reservations, pressure, answers.

It must not know connections, topics or files, nor how batches are ordered.
"""
